//! From a request to a process: the resources that it gets, and the order in which it drops all other rights.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::libc;
use nix::sys::resource::Resource;
use rawio::child::{Birth, Instruction, OwnMount, StartError, Started, Step, Steps};
use rawio::mount::{DetachedMount, Forbids};

use crate::cgroup::Group;
use crate::error::{Result, SandboxError, at, step};
use crate::network::{Lease, Network};
use crate::request::Request;

/// How long a process may take to reach its program, which may have to be read from a slow disk.
const PATIENCE: Duration = Duration::from_secs(30);

/// The namespaces that each sandbox has to itself. The network's is entered, not made.
const NAMESPACES: i32 =
    libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// The mount attributes of data: no privileges for programs, no devices.
const DATA_ONLY: Forbids = Forbids::PRIVILEGES.and(Forbids::DEVICES);

/// The filter and the ruleset that every program gets; made once.
#[derive(Debug)]
pub(crate) struct Confinement {
    filter: Vec<Instruction>,
    /// Keeps a program that shares the machine's network from its abstract sockets, if Landlock can.
    scope: Option<OwnedFd>,
}

impl Confinement {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            filter: instructions(confine::guest::own()?),
            scope: confine::guest::scope()?,
        })
    }
}

impl Confinement {
    /// The filter as bytes in hexadecimal digits, for a process that applies it itself.
    pub(crate) fn filter_text(&self) -> String {
        let bytes = self.filter.iter().flat_map(|at| {
            let [a, b] = at.code.to_le_bytes();
            let [c, d, e, f] = at.operand.to_le_bytes();
            [a, b, at.jump_true, at.jump_false, c, d, e, f]
        });
        bytes.map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Drops rights of the calling thread that neither it nor the programs that it starts need: they inherit
/// this, so it is done once, and not by each of them.
pub(crate) fn confine_starter() -> Result<()> {
    let filters = confine::guest::inherited()?;
    let filters: Vec<_> = filters.into_iter().map(instructions).collect();
    let mut steps = vec![Step::EmptyBoundingSet];
    steps.extend(filters.iter().map(|filter| Step::Filter(filter)));
    rawio::child::take_own_steps(&steps).map_err(step("confining a thread"))
}

fn instructions(filter: Vec<confine::guest::Instruction>) -> Vec<Instruction> {
    let convert = |(code, jump_true, jump_false, operand)| Instruction {
        code,
        jump_true,
        jump_false,
        operand,
    };
    filter.into_iter().map(convert).collect()
}

/// Descriptors of directories, to be mounted in the new sandbox.
#[derive(Debug, Default)]
pub(crate) struct Mounts(Vec<(DetachedMount, &'static CStr)>);

impl Mounts {
    /// Opens what a request names, in the namespace of mounts that the caller is in.
    pub(crate) fn of(request: &Request) -> Result<Self> {
        let read_only = DATA_ONLY.and(Forbids::WRITING);
        let named = [
            (&request.code, c"/code", read_only),
            (&request.packages, c"/packages", read_only),
            (&request.scratch, c"/scratch", DATA_ONLY),
        ];
        let mut mounts = Vec::new();
        for (path, place, forbids) in named {
            if let Some(path) = path {
                mounts.push((detached(path, forbids)?, place));
            }
        }
        Ok(Self(mounts))
    }

    /// The places of the mounts, and the mounts.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (&'static str, Step<'_>)> {
        let mounts = self.0.iter();
        mounts.map(|(mount, place)| ("mounting a directory", Step::Attach(mount.as_fd(), place)))
    }

    /// The mounts alone, and where they go.
    pub(crate) fn places(&self) -> impl Iterator<Item = (BorrowedFd<'_>, &'static CStr)> {
        self.0.iter().map(|(mount, place)| (mount.as_fd(), *place))
    }
}

/// A directory that is to be at `/code`.
pub(crate) fn code_mount(path: &Path) -> Result<DetachedMount> {
    detached(path, DATA_ONLY.and(Forbids::WRITING))
}

fn detached(path: &Path, forbids: Forbids) -> Result<DetachedMount> {
    let dir = open_dir(path)?;
    let copy = DetachedMount::copy_of(dir.as_fd()).map_err(at("mounting", path))?;
    copy.forbid(forbids).map_err(at("mounting", path))?;
    Ok(copy)
}

/// A directory, opened to be mounted somewhere.
fn open_dir(path: &Path) -> Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = File::options();
    options.read(true).custom_flags(nix::libc::O_DIRECTORY);
    options.open(path).map_err(at("opening", path))
}

/// The user that a sandbox is, and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User(pub(crate) u32);

/// All that a new sandbox is made of. It goes to the thread that starts it and comes back.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) request: Request,
    pub(crate) group: Group,
    pub(crate) network: Option<Lease>,
    pub(crate) mounts: Mounts,
    pub(crate) stdio: [OwnedFd; 3],
    pub(crate) user: User,
    strings: (Vec<CString>, Vec<CString>),
    tmp_size: CString,
}

impl Launch {
    pub(crate) fn new(
        request: Request,
        group: Group,
        network: Option<Lease>,
        mounts: Mounts,
        stdio: [OwnedFd; 3],
        user: User,
    ) -> Result<Self> {
        let strings = request.strings()?;
        let tmp_size = number(request.limits.tmp_bytes);
        Ok(Self {
            request,
            group,
            network,
            mounts,
            stdio,
            user,
            strings,
            tmp_size,
        })
    }

    /// Starts the process. The calling thread is in the namespace of the base.
    pub(crate) fn start(&self, confinement: &Confinement) -> Result<Started> {
        let stdio = self.stdio.each_ref().map(OwnedFd::as_fd);
        let arguments: Vec<&CStr> = self.strings.0.iter().map(CString::as_c_str).collect();
        let variables: Vec<&CStr> = self.strings.1.iter().map(CString::as_c_str).collect();
        let Some(program) = arguments.first() else {
            return Err(SandboxError::Invalid("a sandbox has a program".to_owned()));
        };
        let mut steps = Vec::with_capacity(32);
        for procs in self.group.legacy() {
            steps.push(("joining a control group", Step::JoinCgroup(procs)));
        }
        if let Some(network) = self.network.as_ref().and_then(Lease::namespace) {
            let enter = Step::Enter(network, libc::CLONE_NEWNET);
            steps.push(("entering a network namespace", enter));
        }
        steps.push(("naming the host", Step::HostName(c"sandbox")));
        steps.push(("mounting /proc", Step::Mount(proc_mount())));
        steps.push(("mounting /tmp", Step::Mount(tmp_mount(&self.tmp_size))));
        steps.extend(self.mounts.steps());
        let dir = if self.request.code.is_some() {
            c"/code"
        } else {
            c"/tmp"
        };
        steps.extend(confine_steps(&self.request, self.user, confinement, dir));
        steps.push(("placing descriptors", Step::Descriptors(&stdio)));
        let execute = Step::Execute(program, &arguments, &variables);
        steps.push(("executing the program", execute));
        let birth = Birth {
            namespaces: u64::from(NAMESPACES.cast_unsigned()),
            cgroup: Some(self.group.birth()),
        };
        start(&steps, birth, |_| Ok(()))
    }
}

/// Starts a process by steps that have names.
pub(crate) fn start(
    steps: &[(&'static str, Step<'_>)],
    birth: Birth<'_>,
    born: impl FnOnce(u32) -> std::io::Result<()>,
) -> Result<Started> {
    let (names, steps): (Vec<_>, Vec<_>) = steps.iter().cloned().unzip();
    let started = Steps(&steps).start(birth, PATIENCE, born);
    started.map_err(|error| match error {
        StartError::Step { index, source } => {
            step(names.get(index).copied().unwrap_or("a step"))(source)
        }
        other => SandboxError::Start(other),
    })
}

/// The steps after which a process has only the rights of its user. The thread that starts it is confined
/// by [`confine_starter`].
pub(crate) fn confine_steps<'a>(
    request: &Request,
    User(user): User,
    confinement: &'a Confinement,
    dir: &'a CStr,
) -> Vec<(&'static str, Step<'a>)> {
    let limits = &request.limits;
    let limit = |resource, value| ("setting a limit", Step::Limit(resource, value));
    let mut steps = vec![
        ("starting a session", Step::NewSession),
        limit(Resource::RLIMIT_CORE, 0),
        limit(Resource::RLIMIT_NOFILE, limits.descriptors.into()),
        limit(Resource::RLIMIT_NPROC, limits.processes.into()),
        limit(Resource::RLIMIT_MEMLOCK, 64 << 10),
        (
            "becoming another user",
            Step::Become {
                uid: user,
                gid: user,
            },
        ),
        ("giving up capabilities", Step::ClearCapabilities),
        ("giving up new privileges", Step::NoNewPrivileges),
        // As the user: what it may not enter, it does not start in.
        ("entering its directory", Step::ChangeDir(dir)),
    ];
    if let (Network::Host, Some(scope)) = (request.network, &confinement.scope) {
        steps.push(("confining by Landlock", Step::Restrict(scope.as_fd())));
    }
    let filter = Step::Filter(&confinement.filter);
    steps.push(("filtering system calls", filter));
    steps
}

/// A `/proc` of the sandbox's own processes, and of nothing else of the machine.
fn proc_mount() -> OwnMount<'static> {
    OwnMount {
        fs_type: c"proc",
        parameters: vec![(c"subset", Some(c"pid"))],
        forbids: DATA_ONLY.and(Forbids::PROGRAMS),
        at: c"/proc",
    }
}

/// A `/tmp` of a bounded size, which is gone with the sandbox.
fn tmp_mount(size: &CStr) -> OwnMount<'_> {
    OwnMount {
        fs_type: c"tmpfs",
        parameters: vec![
            (c"mode", Some(c"1777")),
            (c"size", Some(size)),
            // One for each 4 KiB: names cost memory, too, which no size bounds.
            (c"nr_inodes", Some(c"65536")),
        ],
        forbids: DATA_ONLY,
        at: c"/tmp",
    }
}

fn number(number: u64) -> CString {
    // Digits have no NUL in them.
    CString::new(number.to_string()).unwrap_or_default()
}
