//! From a request to a process: the resources that it gets, and the order in which it drops all other rights.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use nix::libc;
use nix::sys::resource::Resource;
use rawio::child::{Instruction, OwnMount, Started, Step};
use rawio::mount::{DetachedMount, Forbids};

use crate::begun::{NamedSteps, Plan, start_on};
use crate::cgroup::{Group, Limits};
use crate::confinement::Confinement;
use crate::error::{Result, at};
use crate::network::Lease;
use crate::request::Request;
use crate::rooms::Room;
use crate::starters::Starters;
use crate::tmp;

/// The mount attributes of data: no privileges for programs, no devices.
const DATA_ONLY: Forbids = Forbids::PRIVILEGES.and(Forbids::DEVICES);

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

    /// The mounts, and where they go.
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

/// How a sandbox is started.
#[derive(Debug)]
pub(crate) struct Launch {
    strings: (Vec<CString>, Vec<CString>),
    /// `None` where it is there already.
    tmp_options: Option<CString>,
    dir: &'static CStr,
    user: User,
    limits: Limits,
    filter: Arc<[Instruction]>,
    /// How many control groups it joins.
    groups: usize,
    enters_network: bool,
    /// Whether its namespaces of IPC and mounts are there.
    has_room: bool,
    is_scoped: bool,
    places: Vec<&'static CStr>,
}

/// The resources of a new sandbox.
pub(crate) struct Parts<'a> {
    pub(crate) group: &'a Group,
    pub(crate) network: Option<&'a Lease>,
    pub(crate) room: Option<&'a Room>,
    pub(crate) mounts: &'a Mounts,
    pub(crate) stdio: &'a [OwnedFd; 3],
    pub(crate) user: User,
}

impl Launch {
    /// Starts a sandbox, and returns when it executes its program.
    pub(crate) fn start(
        request: &Request,
        parts: &Parts<'_>,
        confinement: &Confinement,
        starters: &Starters,
    ) -> Result<Started> {
        let groups = parts.group.legacy();
        let network = parts.network.and_then(Lease::namespace);
        let scope = confinement.scope_of(request.network);
        let (mounts, places): (Vec<_>, Vec<_>) = parts.mounts.places().unzip();
        let mut descriptors: Vec<_> = parts.stdio.iter().map(OwnedFd::as_fd).collect();
        descriptors.extend(&groups);
        descriptors.extend(network);
        let room = parts.room;
        descriptors.extend(room.map(|room| room.ipc.as_fd()));
        descriptors.extend(room.map(|room| room.mounts.as_fd()));
        descriptors.extend(scope);
        descriptors.extend(mounts);
        let plan = Self {
            strings: request.strings()?,
            tmp_options: room
                .is_none_or(|room| room.tmp_bytes != request.limits.tmp_bytes)
                .then(|| tmp::options(request.limits.tmp_bytes)),
            dir: if request.code.is_some() {
                c"/code"
            } else {
                c"/tmp"
            },
            user: parts.user,
            limits: request.limits,
            filter: Arc::clone(&confinement.filter),
            groups: groups.len(),
            enters_network: network.is_some(),
            has_room: room.is_some(),
            is_scoped: scope.is_some(),
            places,
        };
        start_on(starters, plan, parts.group.birth(), &descriptors)
    }
}

impl Plan for Launch {
    /// The network's is entered, not made, and those that are ready are.
    fn namespaces(&self) -> i32 {
        let own = libc::CLONE_NEWPID | libc::CLONE_NEWUTS;
        match self.has_room {
            true => own,
            false => own | libc::CLONE_NEWNS | libc::CLONE_NEWIPC,
        }
    }

    fn steps<'a>(&'a self, descriptors: &'a [BorrowedFd<'a>]) -> Option<NamedSteps<'a>> {
        let (stdio, rest) = descriptors.split_at_checked(3)?;
        let mut rest = rest.iter().copied();
        let mut steps = Vec::with_capacity(32);
        for _ in 0..self.groups {
            steps.push(("joining a control group", Step::JoinCgroup(rest.next()?)));
        }
        if self.enters_network {
            let enter = Step::Enter(rest.next()?, libc::CLONE_NEWNET);
            steps.push(("entering a network namespace", enter));
        }
        if self.has_room {
            let enter = Step::Enter(rest.next()?, libc::CLONE_NEWIPC);
            steps.push(("entering a namespace of IPC", enter));
            // The last one: what is mounted from here on is the sandbox's.
            let enter = Step::Enter(rest.next()?, libc::CLONE_NEWNS);
            steps.push(("entering a namespace of mounts", enter));
        }
        let scope = match self.is_scoped {
            true => Some(rest.next()?),
            false => None,
        };
        steps.push(("naming the host", Step::HostName(c"sandbox")));
        steps.push(("mounting /proc", Step::Mount(proc_mount())));
        if let Some(options) = &self.tmp_options {
            steps.push(("mounting /tmp", Step::Mount(tmp::mount(options))));
        }
        for &place in &self.places {
            steps.push(("mounting a directory", Step::Attach(rest.next()?, place)));
        }
        let filter = &self.filter;
        steps.extend(confine_steps(
            &self.limits,
            self.user,
            scope,
            filter,
            self.dir,
        ));
        steps.push(("placing descriptors", Step::Descriptors(stdio)));
        let (arguments, variables) = &self.strings;
        let execute = Step::Execute(arguments.first()?, arguments, variables);
        steps.push(("executing the program", execute));
        Some(steps)
    }
}

/// The steps after which a process has only the rights of its user. The thread that starts it is confined
/// by [`confine_starter`](crate::confinement::confine_starter).
pub(crate) fn confine_steps<'a>(
    limits: &Limits,
    User(user): User,
    scope: Option<BorrowedFd<'a>>,
    filter: &'a [Instruction],
    dir: &'a CStr,
) -> NamedSteps<'a> {
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
    if let Some(scope) = scope {
        steps.push(("confining by Landlock", Step::Restrict(scope)));
    }
    steps.push(("filtering system calls", Step::Filter(filter)));
    steps
}

/// A `/proc` of the sandbox's own processes, and of nothing else of the machine.
fn proc_mount() -> OwnMount<'static> {
    OwnMount {
        fs_type: c"proc",
        options: c"subset=pid",
        forbids: DATA_ONLY.and(Forbids::PROGRAMS),
        at: c"/proc",
    }
}
