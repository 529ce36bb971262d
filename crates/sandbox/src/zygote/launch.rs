//! The start of a Zygote.

use std::ffi::{CStr, CString};
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nix::libc;
use nix::sys::resource::{Resource, getrlimit};
use parking_lot::Mutex;
use rawio::child::{OwnMount, Started, Step};
use rawio::mount::{DetachedMount, Forbids, MountContext};

use super::protocol::{Control, Settings};
use super::users::Users;
use super::{Conversation, IMPORT_PATIENCE, Spares, Zygote, ZygoteSpec};
use crate::begun::{NamedSteps, Plan};
use crate::cache::Hits;
use crate::cgroup::{Group, Lent};
use crate::error::{Result, SandboxError, step};
use crate::launch::Mounts;
use crate::packages::paths_of;
use crate::process::end;
use crate::record::new_id;
use crate::request::Request;
use crate::starters::Starters;
use crate::stdio::null_stdio;

/// The interpreter's program.
const PROGRAM: &str = include_str!("zygote.py");

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
    users: Arc<Users>,
    lent: Arc<Lent>,
    group: Group,
) -> std::result::Result<Zygote, Failure> {
    let begun = begin(&spec, starters, filter, *users, group);
    let (started, control, group) = begun?;
    let failed = |error: SandboxError, group: Group| {
        end(&started.process);
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
        spares: Spares::default(),
        lent,
    })
}

fn begin(
    spec: &ZygoteSpec,
    starters: &Starters,
    filter: String,
    users: Users,
    mut group: Group,
) -> std::result::Result<(Started, Control, Group), Failure> {
    match start(spec, starters, filter, users, &mut group) {
        Ok((started, control)) => Ok((started, control, group)),
        Err(error) => Err(Box::new((error, Some(group)))),
    }
}

fn start(
    spec: &ZygoteSpec,
    starters: &Starters,
    filter: String,
    users: Users,
    group: &mut Group,
) -> Result<(Started, Control)> {
    let mut request = Request::new(&spec.base, &[&spec.interpreter]);
    request.packages.clone_from(&spec.store);
    request.limits.memory_bytes = spec.memory_bytes;
    group.limit(&request.limits)?;
    let settings = Settings {
        modules: &spec.modules,
        paths: paths_of(&spec.packages),
        learned: spec.learned.as_deref().unwrap_or_default(),
        filter,
    };
    let settings = serde_json::to_string(&settings).map_err(step("writing settings"))?;
    let arguments = [&spec.interpreter, "-I", "-c", PROGRAM, &settings];
    let (ours, theirs) = Control::pair().map_err(step("making a socket"))?;
    let [null, _, _] = null_stdio()?;
    let (go, mut tell) = io::pipe().map_err(step("making a pipe"))?;
    let proc = own_processes()?;
    let mounts = Mounts::of(&request)?;
    let (mounts, places): (Vec<_>, Vec<_>) = mounts.places().unzip();
    let groups = group.legacy();
    let mut descriptors = vec![null.as_fd(), null.as_fd(), null.as_fd(), theirs.as_fd()];
    descriptors.extend(&groups);
    descriptors.extend([go.as_fd(), proc.as_fd()]);
    descriptors.extend(mounts);
    let plan = Launch {
        program: arguments.map(|argument| CString::new(argument).unwrap_or_default()),
        variables: [c"PATH=/usr/local/bin:/usr/bin:/bin", c"HOME=/tmp"].map(CStr::to_owned),
        groups: groups.len(),
        places,
    };
    let (started, way) = crate::begun::begin(starters, plan, group.birth(), &descriptors)?;
    let mapped = map_users(started.pid, users).and_then(|()| tell.write_all(&[0]));
    let arrived = mapped
        .map_err(step("giving a Zygote its users"))
        .inspect_err(|_| end(&started.process));
    arrived.and_then(|()| way.arrived(&started.process))?;
    Ok((started, ours))
}

/// How a Zygote is started.
struct Launch {
    program: [CString; 5],
    variables: [CString; 2],
    /// How many control groups it joins.
    groups: usize,
    places: Vec<&'static CStr>,
}

impl Plan for Launch {
    /// None of processes: in one, its children would end with it. The table of processes that it sees has its own only.
    fn namespaces(&self) -> i32 {
        libc::CLONE_NEWUSER
            | libc::CLONE_NEWNS
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS
            | libc::CLONE_NEWNET
    }

    fn steps<'a>(&'a self, descriptors: &'a [BorrowedFd<'a>]) -> Option<NamedSteps<'a>> {
        let (own, rest) = descriptors.split_at_checked(4)?;
        let mut rest = rest.iter().copied();
        let mut steps = Vec::new();
        for _ in 0..self.groups {
            steps.push(("joining a control group", Step::JoinCgroup(rest.next()?)));
        }
        steps.push(("waiting for its users", Step::AwaitByte(rest.next()?)));
        steps.push(("naming the host", Step::HostName(c"zygote")));
        steps.push(("mounting /proc", Step::Attach(rest.next()?, c"/proc")));
        let tmp = Step::Mount(OwnMount {
            fs_type: c"tmpfs",
            options: c"mode=1777,size=16m",
            forbids: DATA_ONLY,
            at: c"/tmp",
        });
        steps.push(("mounting /tmp", tmp));
        for &place in &self.places {
            steps.push(("mounting a directory", Step::Attach(rest.next()?, place)));
        }
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
            ("placing descriptors", Step::Descriptors(own)),
            (
                "executing the interpreter",
                Step::Execute(&self.program[0], &self.program, &self.variables),
            ),
        ]);
        Some(steps)
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
fn map_users(pid: u32, users: Users) -> io::Result<()> {
    let map = format!("0 {} {}", users.first, users.count());
    for name in ["gid_map", "uid_map"] {
        // In one call, as the kernel wants it.
        fs::write(format!("/proc/{pid}/{name}"), &map)?;
    }
    Ok(())
}
