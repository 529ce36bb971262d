//! The start of a Zygote.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nix::fcntl::{OFlag, openat};
use nix::libc;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::Mode;
use parking_lot::Mutex;
use rawio::child::{Birth, OwnMount, Started, Step};
use rawio::mount::{DetachedMount, Forbids, MountContext};

use super::protocol::{Control, Settings};
use super::users::Users;
use super::{Conversation, IMPORT_PATIENCE, Zygote, ZygoteSpec};
use crate::cache::Hits;
use crate::cgroup::{Group, Lent};
use crate::error::{Result, SandboxError, at, step};
use crate::launch::{Mounts, start};
use crate::packages::paths_of;
use crate::record::new_id;
use crate::request::Request;
use crate::starters::Starters;
use crate::stdio::null_stdio;

/// The interpreter's program.
const PROGRAM: &str = include_str!("zygote.py");

/// No namespace of processes: in one, its children would end with it. The table of processes that it
/// sees has its own only.
const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWNET;

/// The most processes that a child can be allowed, on a machine of any size.
const PROCESSES_MAX: u64 = 32_768;

/// The most processes that a child can be allowed: it inherits the limit, and only lowers it. A Zygote has no right
/// to more than this process has, which is less on a machine with little memory.
pub(super) fn processes_max() -> u64 {
    let own = getrlimit(Resource::RLIMIT_NPROC);
    own.map_or(PROCESSES_MAX, |(_, most)| most.min(PROCESSES_MAX))
}

const DATA_ONLY: Forbids = Forbids::PRIVILEGES.and(Forbids::DEVICES);

/// What went wrong, and the group that can be used again.
pub(crate) type Failure = Box<(SandboxError, Option<Group>)>;

/// Starts a Zygote in a group, and waits until it has imported. The group comes back with an error.
pub(crate) fn launch(
    spec: ZygoteSpec,
    starters: &Starters,
    filter: String,
    users: Users,
    lent: Arc<Lent>,
    group: Group,
) -> std::result::Result<Zygote, Failure> {
    let begun = begin(&spec, starters, filter, users, group);
    let (started, control, group) = begun?;
    let failed = |error: SandboxError, group: Group| {
        let _gone = started.process.signal(nix::sys::signal::Signal::SIGKILL);
        if let Ok(true) = started.process.ended_within(super::FORK_PATIENCE) {
            crate::process::exit_status(&started.process, started.pid);
        }
        Box::new((error, Some(group)))
    };
    let id = match new_id() {
        Ok(id) => format!("z{id}"),
        Err(error) => return Err(failed(error, group)),
    };
    let imported = control.receive(IMPORT_PATIENCE);
    let problem = match &imported {
        Ok((answer, _)) => answer.error.clone(),
        Err(error) => Some(error.to_string()),
    };
    if let Some(problem) = problem {
        let problem = format!("has not imported: {problem}");
        let zygote = format!("{id} of {:?}", spec.packages);
        return Err(failed(SandboxError::Zygote { zygote, problem }, group));
    }
    // The sum of no numbers is -0.0 for an iterator.
    let import_ms = imported.map_or(0.0, |(answer, _)| answer.times.values().sum::<f64>() + 0.0);
    Ok(Zygote {
        ancestry: vec![Zygote::describe(&id, &spec.packages)],
        parent: None,
        id,
        spec,
        import_ms,
        own_ms: import_ms,
        forks: AtomicU64::new(0),
        hits: Mutex::new(Hits::default()),
        users,
        started,
        control: Mutex::new(Conversation { control, last: 0 }),
        group: Mutex::new(Some(group)),
        lent,
    })
}

/// What goes to the thread that starts it.
struct Parts {
    mounts: Mounts,
    program: [CString; 5],
    control: OwnedFd,
    stdio: [OwnedFd; 3],
    users: Users,
    group: Group,
    /// The table of all processes, which the thread does not see.
    processes: File,
}

fn begin(
    spec: &ZygoteSpec,
    starters: &Starters,
    filter: String,
    users: Users,
    mut group: Group,
) -> std::result::Result<(Started, Control, Group), Failure> {
    let prepared = (|| {
        let mut request = Request::new(&spec.base, &[&spec.interpreter]);
        request.packages.clone_from(&spec.store);
        request.limits.memory_bytes = spec.memory_bytes;
        group.limit(&request.limits)?;
        let mounts = Mounts::of(&request)?;
        let settings = Settings {
            modules: &spec.modules,
            paths: paths_of(&spec.packages),
            learned: spec.learned.as_deref().unwrap_or_default(),
            filter,
        };
        let settings = serde_json::to_string(&settings).map_err(step("writing settings"))?;
        let arguments = [&spec.interpreter, "-I", "-c", PROGRAM, &settings];
        let program = arguments.map(|argument| CString::new(argument).unwrap_or_default());
        let (ours, theirs) = Control::pair().map_err(step("making a socket"))?;
        let processes = File::open("/proc").map_err(at("opening", "/proc"))?;
        Ok((mounts, program, ours, theirs, null_stdio()?, processes))
    })();
    let (mounts, program, ours, control, stdio, processes) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return Err(Box::new((error, Some(group)))),
    };
    let parts = Box::new(Parts {
        mounts,
        program,
        control,
        stdio,
        users,
        group,
        processes,
    });
    let ran = starters.run(move || {
        let started = parts.start();
        (started, parts.group)
    });
    match ran {
        Ok((Ok(started), group)) => Ok((started, ours, group)),
        Ok((Err(error), group)) => Err(Box::new((error, Some(group)))),
        // The thread is gone, and the group with it: as at the end of everything.
        Err(error) => Err(Box::new((error, None))),
    }
}

impl Parts {
    fn start(&self) -> Result<Started> {
        let (go, tell) = io::pipe().map_err(step("making a pipe"))?;
        let proc = own_processes()?;
        let [null, _, _] = &self.stdio;
        let descriptors = [
            null.as_fd(),
            null.as_fd(),
            null.as_fd(),
            self.control.as_fd(),
        ];
        let program = self.program.each_ref().map(CString::as_c_str);
        let variables: [&CStr; 2] = [c"PATH=/usr/local/bin:/usr/bin:/bin", c"HOME=/tmp"];
        let mut steps = Vec::new();
        for procs in self.group.legacy() {
            steps.push(("joining a control group", Step::JoinCgroup(procs)));
        }
        steps.push(("waiting for its users", Step::AwaitByte(go.as_fd())));
        steps.push(("naming the host", Step::HostName(c"zygote")));
        let attach = Step::Attach(proc.as_fd(), c"/proc");
        steps.push(("mounting /proc", attach));
        let tmp = Step::Mount(OwnMount {
            fs_type: c"tmpfs",
            parameters: vec![(c"mode", Some(c"1777")), (c"size", Some(c"16m"))],
            forbids: DATA_ONLY,
            at: c"/tmp",
        });
        steps.push(("mounting /tmp", tmp));
        steps.extend(self.mounts.steps());
        let limit = |resource, value| ("setting a limit", Step::Limit(resource, value));
        steps.extend([
            ("starting a session", Step::NewSession),
            limit(Resource::RLIMIT_CORE, 0),
            limit(Resource::RLIMIT_NPROC, processes_max()),
            (
                "becoming root of its namespace",
                Step::Become { uid: 0, gid: 0 },
            ),
            ("giving up new privileges", Step::NoNewPrivileges),
            ("entering its directory", Step::ChangeDir(c"/tmp")),
            ("placing descriptors", Step::Descriptors(&descriptors)),
            (
                "executing the interpreter",
                Step::Execute(program[0], &program, &variables),
            ),
        ]);
        let birth = Birth {
            namespaces: u64::from(NAMESPACES.cast_unsigned()),
            cgroup: Some(self.group.birth()),
        };
        let mut tell = tell;
        start(&steps, birth, |pid| {
            map_users(&self.processes, pid, self.users)?;
            tell.write_all(&[0])
        })
    }
}

/// A table of processes in which a user sees its own processes only.
fn own_processes() -> Result<DetachedMount> {
    let made = MountContext::open(c"proc").and_then(|context| {
        context.set(c"hidepid", b"ptraceable")?;
        context.set(c"subset", b"pid")?;
        context.mount_forbidding(DATA_ONLY.and(Forbids::PROGRAMS))
    });
    made.map_err(step("mounting /proc"))
}

/// Says which users a process's namespace has.
fn map_users(processes: &File, pid: u32, users: Users) -> io::Result<()> {
    let map = format!("0 {} {}", users.first, users.count());
    for name in ["gid_map", "uid_map"] {
        let path = format!("{pid}/{name}");
        let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let file = openat(processes, path.as_str(), flags, Mode::empty())?;
        File::from(file).write_all(map.as_bytes())?;
    }
    Ok(())
}
