//! Zygotes: interpreters that have imported already, and become a sandbox's program by a fork.
//!
//! A Zygote runs code of the packages that it imports, so it has no rights outside. But its children
//! need namespaces, mounts and users of their own. It is therefore root of a user namespace: so it can
//! make these for its children, and affect nothing else. The users of its children
//! exist in this namespace only.
//!
//! Its children are ours (`CLONE_PARENT`), so they outlive it, and we get their exit status.

mod choice;
mod derive;
mod imports;
mod launch;
mod pool;
mod protocol;
mod ranges;
mod spares;
mod strays;
mod users;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use parking_lot::Mutex;
use rawio::child::Started;
use rawio::pidfd::{Namespace, PidFd, owner_of};
use serde::{Deserialize, Serialize};

pub(crate) use derive::derive;
pub use imports::IMPORTS_MAX;
pub(crate) use imports::ImportKey;
pub(crate) use launch::launch;
pub use pool::ZygoteCounts;
pub(crate) use pool::{IsRoot, Living, ZYGOTES_MAX, Zygotes};
use spares::Spares;
pub(crate) use spares::Waiting;
pub(crate) use users::Users;

use crate::cache::Hits;
use crate::cgroup::{Group, Lent, Pool};
use crate::error::{Result, SandboxError, step};
use crate::launch::{Parts, User};
use crate::network::{Lease, Network, Networks};
use crate::packages::{Packages, paths_of};
use crate::request::Request;
use protocol::{Control, ForkRequest};

/// How long a Zygote may take to import: packages may have to be read from a slow disk.
const IMPORT_PATIENCE: Duration = Duration::from_secs(60);

/// How long it may take to fork, and its child to give up its rights. One that takes longer hangs.
const FORK_PATIENCE: Duration = Duration::from_secs(10);

/// What a Zygote is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZygoteSpec {
    /// The base that it and its children have.
    pub base: String,
    /// The interpreter, by its path in the base.
    pub interpreter: String,
    /// The packages that it imports; each is a directory of the store.
    #[serde(default)]
    pub packages: Packages,
    /// Modules of the base that it imports besides.
    #[serde(default)]
    pub modules: Vec<String>,
    /// The directory of packages.
    #[serde(default)]
    pub store: Option<std::path::PathBuf>,
    /// Bytes of memory that it may have. One that has more is replaced.
    pub memory_bytes: u64,
    /// Modules that it imports behind its packages, if they are found: what the programs with these packages have
    /// imported. `None` for a Zygote that somebody asked for, which has just what it was asked to have.
    #[serde(skip)]
    pub learned: Option<Vec<String>>,
}

impl ZygoteSpec {
    /// Returns a Zygote of a base that has imported modules of the base only.
    pub fn new(base: &str, interpreter: &str, modules: &[&str]) -> Self {
        Self {
            base: base.to_owned(),
            interpreter: interpreter.to_owned(),
            packages: Packages::new(),
            modules: modules.iter().map(|&module| module.to_owned()).collect(),
            store: None,
            memory_bytes: 512 << 20,
            learned: None,
        }
    }
}

/// The view of a Zygote.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ZygoteView {
    /// Its id.
    pub id: String,
    /// The base.
    pub base: String,
    /// Its packages.
    pub packages: Packages,
    /// The Zygote that it was forked from, if it was not started as a program.
    #[serde(default)]
    pub parent: Option<String>,
    /// How long they took to import, in milliseconds, those of its parents too.
    pub import_ms: f64,
    /// Sandboxes that were forked from it.
    pub forks: u64,
    /// Bytes of its memory that are not another process's, too: pages that several share count in part.
    #[serde(default)]
    pub unshared_bytes: u64,
    /// Bytes of memory that it is charged for, with what its children share with it.
    pub memory_bytes: u64,
    /// The number of its process.
    pub pid: u32,
    /// Children that were forked in advance, and wait for what they are to run.
    #[serde(default)]
    pub waiting: usize,
}

/// An interpreter that waits.
#[derive(Debug)]
pub(crate) struct Zygote {
    pub(crate) id: String,
    pub(crate) spec: ZygoteSpec,
    /// The Zygotes that it descends from, the first one first, and itself: each with its packages.
    pub(crate) ancestry: Vec<String>,
    pub(crate) parent: Option<String>,
    /// How long its packages took to import, and those of its parents.
    pub(crate) import_ms: f64,
    /// How much of that was its own part.
    pub(crate) own_ms: f64,
    pub(crate) forks: AtomicU64,
    /// How often it was of use lately, itself or one that descends from it.
    pub(crate) hits: Mutex<Hits>,
    /// Its users, and its children's.
    users: Arc<Users>,
    started: Started,
    control: Mutex<Conversation>,
    group: Mutex<Option<Group>>,
    spares: Spares,
    /// The groups that it was given for its children.
    pub(crate) lent: Arc<Lent>,
}

/// The socket, and the number of the last request. One request is under way at a time: the interpreter
/// has one thread.
#[derive(Debug)]
struct Conversation {
    control: Control,
    last: u64,
}

/// A child of a Zygote that has given up its rights.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) started: Started,
    pub(crate) user: User,
    /// Its address on the bridge.
    pub(crate) network: Option<Lease>,
}

impl Zygote {
    /// Takes a control group for a child.
    pub(crate) fn take_group(&self, pool: &Pool) -> Result<Group> {
        self.lent
            .take(pool)
            .map_err(|error| match self.lent.is_closed() {
                true => self.fault("has been ended".to_owned()),
                false => error,
            })
    }

    /// Has a child run a request, as the user of a group: one that waits in it, or a new one.
    pub(crate) fn fork(
        &self,
        request: &Request,
        packages: &Packages,
        parts: &Parts<'_>,
        spare: Option<Waiting>,
        networks: &Networks,
    ) -> Result<Child> {
        let group = parts.group;
        let waits = request.network == Network::Veth;
        let (ready, theirs) = io::pipe().map_err(step("making a pipe"))?;
        let (go, tell) = io::pipe().map_err(step("making a pipe"))?;
        let groups = group.legacy();
        let stdio = parts.stdio.iter();
        let mut descriptors: Vec<BorrowedFd<'_>> = stdio.map(|fd| fd.as_fd()).collect();
        descriptors.push(theirs.as_fd());
        if spare.is_none() {
            descriptors.push(group.lent_birth()?);
            descriptors.extend(&groups);
        }
        let mut places = Vec::new();
        for (mount, place) in parts.mounts.places() {
            descriptors.push(mount);
            places.push(place.to_str().unwrap_or_default());
        }
        if waits {
            descriptors.push(go.as_fd());
        }
        // Inside, the user of a slot is the one behind root's by as much.
        let user = group.slot + 1;
        let fork = ForkRequest {
            id: 0,
            user,
            command: &request.command,
            environment: variables(request),
            paths: paths_of(packages),
            dir: if request.code.is_some() {
                "/code"
            } else {
                "/tmp"
            },
            places,
            groups: groups.len(),
            limits: limits_of(request),
            tmp_bytes: request.limits.tmp_bytes,
            spare: false,
            waits,
            zygote: None,
        };
        let process = match spare {
            None => self.ask(fork, &descriptors)?,
            Some(waiting) => {
                let sent = waiting.control.send(&fork, &descriptors);
                sent.map_err(|error| self.refused(&error))?;
                waiting.process
            }
        };
        drop((theirs, go));
        let user = User(self.users.first + user);
        let networks = waits.then_some(networks);
        match self.accept(&process, user, ready, tell, networks) {
            Ok((pid, network)) => {
                self.forks.fetch_add(1, Relaxed);
                Ok(Child {
                    started: Started { pid, process },
                    user,
                    network,
                })
            }
            Err(error) => {
                // The process that the Zygote has named may be anybody's. What was born in the group is ours to end.
                self.end_all_in(group, &process);
                Err(error)
            }
        }
    }

    /// Gives a child an address if there are `networks` for it, and waits until it has given up its rights.
    fn accept(
        &self,
        process: &PidFd,
        user: User,
        ready: io::PipeReader,
        mut tell: io::PipeWriter,
        networks: Option<&Networks>,
    ) -> Result<(u32, Option<Lease>)> {
        let connected = networks.map(|networks| (networks, self.connect(process, networks)));
        let network = match connected {
            Some((networks, connected)) => Some((networks, connected?)),
            None => None,
        };
        // That nobody reads is found when nobody is ready.
        let _gone = tell.write_all(&[0]);
        match (self.check(process, user, ready), network) {
            (Ok(pid), network) => Ok((pid, network.map(|(_, network)| network))),
            (Err(error), network) => {
                if let Some((networks, network)) = network {
                    networks.put_back(network, true);
                }
                Err(error)
            }
        }
    }

    /// Ends and reaps whatever was born in a group, and reaps the process that the Zygote has named if it is ours.
    fn end_all_in(&self, group: &Group, named: &PidFd) {
        let born = group.processes().unwrap_or_default();
        if let Err(error) = group.kill() {
            log::warn!("a child of the Zygote {} runs on: {error}", self.id);
        }
        crate::process::exit_status(named, 0);
        for pid in born.into_iter().filter_map(|pid| i32::try_from(pid).ok()) {
            // Only those that are our children, which keep their numbers until they are reaped.
            let _others = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
        }
    }

    /// Gives a child an address on the bridge. It is in a network namespace that this Zygote has made; one of somebody
    /// else, such as the machine's, gets none.
    fn connect(&self, child: &PidFd, networks: &Networks) -> Result<Lease> {
        let looking = || step("looking at the namespaces of a Zygote's child");
        let own = self.started.process.namespace(Namespace::User);
        let namespace = child.namespace(Namespace::Network).map_err(looking())?;
        let (Some(own), Some(namespace)) = (own.map_err(looking())?, namespace) else {
            return Err(SandboxError::Invalid(
                "a Zygote's child cannot have an address: it has ended, or this is a kernel before Linux 6.11"
                    .to_owned(),
            ));
        };
        let owner = owner_of(namespace.as_fd()).map_err(looking())?;
        let inode = |namespace: OwnedFd| File::from(namespace).metadata().map(|of| of.ino());
        let owner = owner.map(inode).transpose().map_err(looking())?;
        if owner != Some(inode(own).map_err(looking())?) {
            return Err(self.fault("has a child in a network of others".to_owned()));
        }
        networks.connect(namespace)
    }

    /// Sends a request, and returns the process that came back.
    fn ask(&self, mut fork: ForkRequest<'_>, descriptors: &[BorrowedFd<'_>]) -> Result<PidFd> {
        let mut conversation = self.control.lock();
        conversation.last += 1;
        fork.id = conversation.last;
        let sent = conversation.control.send(&fork, descriptors);
        sent.map_err(|error| self.refused(&error))?;
        let (answer, mut came) = conversation
            .control
            .receive(FORK_PATIENCE)
            .map_err(|error| self.fault(format!("does not answer: {error}")))?;
        if let Some(error) = answer.error {
            return Err(self.fault(format!("cannot fork: {error}")));
        }
        match came.pop() {
            Some(process) if came.is_empty() && answer.id == fork.id => Ok(PidFd::from(process)),
            _ => Err(self.fault("does not keep to the protocol".to_owned())),
        }
    }

    /// Waits until a child has given up its rights, and looks itself whether it has. Returns its number, or 0 if it has
    /// ended already.
    fn check(&self, process: &PidFd, user: User, ready: io::PipeReader) -> Result<u32> {
        let said =
            read_ready(ready).map_err(|error| self.fault(format!("has a child that {error}")))?;
        if said != [0] {
            let error = String::from_utf8_lossy(&said);
            return Err(self.fault(format!(
                "has a child that cannot give up its rights: {error}"
            )));
        }
        let Ok(Some(pid)) = process.number() else {
            return Ok(0);
        };
        let checked = check_status(pid, user);
        checked.map_err(|what| self.fault(format!("has a child that {what}")))?;
        Ok(pid)
    }

    fn refused(&self, error: &io::Error) -> SandboxError {
        match error.kind() {
            io::ErrorKind::InvalidInput => SandboxError::Invalid(error.to_string()),
            _ => self.fault(format!("takes no request: {error}")),
        }
    }

    fn fault(&self, problem: String) -> SandboxError {
        let zygote = self.id.clone();
        SandboxError::Zygote { zygote, problem }
    }

    /// Returns whether it can be forked from: it runs, and has not grown beyond its limit.
    pub(crate) fn is_fit(&self) -> bool {
        let lives = matches!(self.started.process.ended_within(Duration::ZERO), Ok(false));
        lives && self.memory_bytes() < self.spec.memory_bytes / 8 * 7
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let group = self.group.lock();
        group
            .as_ref()
            .map_or(0, |group| group.memory_bytes().unwrap_or(0))
    }

    /// Returns an estimate of the bytes of memory that would be free without it: a page that several
    /// processes share counts in part.
    pub(crate) fn unshared_bytes(&self) -> u64 {
        crate::process::unshared_bytes(self.started.pid) + self.spares.unshared_bytes()
    }

    /// What the record of a sandbox says of it.
    fn describe(id: &str, packages: &Packages) -> String {
        let packages: Vec<_> = packages.iter().map(String::as_str).collect();
        format!("{id} [{}]", packages.join(" "))
    }

    pub(crate) fn view(&self) -> ZygoteView {
        ZygoteView {
            id: self.id.clone(),
            base: self.spec.base.clone(),
            packages: self.spec.packages.clone(),
            parent: self.parent.clone(),
            unshared_bytes: self.unshared_bytes(),
            import_ms: self.import_ms,
            forks: self.forks.load(Relaxed),
            memory_bytes: self.memory_bytes(),
            pid: self.started.pid,
            waiting: self.spares.count(),
        }
    }

    /// Ends it, and returns its control group. Its children continue.
    pub(crate) fn end(&self) -> Option<Group> {
        let group = self.group.lock().take();
        crate::process::end(&self.started.process);
        group
    }
}

/// The limits that a program sets for itself.
fn limits_of(request: &Request) -> BTreeMap<&'static str, u64> {
    let limits = &request.limits;
    let processes = launch::processes_max().min(limits.processes.into());
    BTreeMap::from([
        ("RLIMIT_CORE", 0),
        ("RLIMIT_NOFILE", limits.descriptors.into()),
        ("RLIMIT_NPROC", processes),
        ("RLIMIT_MEMLOCK", 64 << 10),
    ])
}

/// What a program's environment is; the interpreter was started with another one.
fn variables(request: &Request) -> BTreeMap<&str, &str> {
    let set = request.environment.iter();
    let mut all: BTreeMap<_, _> = set
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    all.entry("PATH").or_insert("/usr/local/bin:/usr/bin:/bin");
    all
}

/// Reads what a child says when it has given up its rights: a zero, or what kept it from that.
fn read_ready(ready: io::PipeReader) -> std::result::Result<Vec<u8>, String> {
    use std::io::Read as _;
    match protocol::readable(ready.as_fd(), FORK_PATIENCE) {
        Ok(true) => {}
        Ok(false) => return Err("takes too long to give up its rights".to_owned()),
        Err(error) => return Err(format!("cannot be waited for: {error}")),
    }
    let mut said = vec![0; 4096];
    let len = File::from(OwnedFd::from(ready)).read(&mut said);
    said.truncate(len.unwrap_or(0));
    Ok(said)
}

/// Reads what the kernel says of a process, and returns what is wrong with it. The Zygote is not believed:
/// its packages could have kept its child from giving up its rights.
fn check_status(pid: u32, User(user): User) -> std::result::Result<(), String> {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        return Ok(()); // it has ended
    };
    let fields: BTreeMap<&str, &str> = status
        .lines()
        .filter_map(|line| line.split_once(":\t"))
        .collect();
    let of = |name| fields.get(name).copied().unwrap_or_default();
    if of("State").starts_with('Z') {
        return Ok(());
    }
    let four = |id: u32| {
        [
            id.to_string(),
            id.to_string(),
            id.to_string(),
            id.to_string(),
        ]
        .join("\t")
    };
    let none = "0000000000000000";
    let wanted = [
        ("Uid", four(user)),
        ("Gid", four(user)),
        ("CapInh", none.to_owned()),
        ("CapPrm", none.to_owned()),
        ("CapEff", none.to_owned()),
        ("CapBnd", none.to_owned()),
        ("CapAmb", none.to_owned()),
        ("NoNewPrivs", "1".to_owned()),
        ("Seccomp", "2".to_owned()),
    ];
    for (name, value) in &wanted {
        if of(name) != value {
            return Err(format!("has {name} {:?} instead of {value:?}", of(name)));
        }
    }
    Ok(())
}
