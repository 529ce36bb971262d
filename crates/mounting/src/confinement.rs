//! The privileges that serving processes drop before they serve (docs/security.md).
//!
//! Both kinds keep these capabilities, if they have them:
//!
//! - `CAP_DAC_READ_SEARCH`: a source has files of many owners, and a mount shows them all; the kernel
//!   checks access by the attributes.
//! - `CAP_FOWNER`: to read other owners' files without leaving a time of access on them.
//! - `CAP_SYS_ADMIN`: to read `trusted.` attributes, without which an overlay's whiteouts and opaque
//!   directories do not work, and to pass files through. Its other uses need system calls that are
//!   not in the list.
//! - `CAP_IPC_LOCK`: for `--lock`.

mod block;
mod images;
mod intake;

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use confine::{
    Capability, Confinement, Files, Identity, Ports, Programs, Reads, Rings, Set, Unlisted,
};

pub use block::{BlockAccess, block_mounted};
pub use images::{ImageNeeds, image_daemon, image_daemon_mounted, image_worker};
pub use intake::{Asks, Intake, Rights};
use node_api::nic_needs::Needs;

/// How strictly to confine: `on`, `off`, or `strict`, where a system call that was forgotten in
/// the list is the end of the process instead of an error: for tests and for looking for faults.
const HOW: &str = "YOLOFS_CONFINE";

/// What it takes to copy what a container has written to another place, as it is: the snapshotter
/// does, when the fast place for it is full.
const COPYING: [Capability; 4] = [
    Capability::CAP_CHOWN,
    Capability::CAP_FSETID,
    Capability::CAP_MKNOD,
    Capability::CAP_SETFCAP,
];

/// A service that mounts layers for an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Docker's guardian, which starts a worker, and that.
    Docker,
    /// containerd's snapshotter.
    Snapshotter,
}

/// What the kernel's requests come from.
const FUSE: &str = "/dev/fuse";
/// Where is said how far the kernel reads ahead in a mount.
const READAHEAD: &str = "/sys/devices/virtual/bdi";

const SERVING: [Capability; 4] = [
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_FOWNER,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_IPC_LOCK,
];

/// What it takes to ask a block service for a source that is on no disk: to read a key and the
/// origin's files, whosever they are, and to look names up in the mount; and `--lock`.
const ASKING: [Capability; 2] = [Capability::CAP_DAC_READ_SEARCH, Capability::CAP_IPC_LOCK];

/// Confines a worker, and changes its user if one is given. To be called before it starts a thread.
/// Afterwards it creates and writes no file except those it receives. It may read whatever
/// permissions allow, since the sources whose descriptors it will receive are not known yet.
///
/// # Errors
/// If the process has threads, or the kernel refuses: it must not serve then.
pub fn worker(identity: Option<Identity>) -> anyhow::Result<()> {
    let Some(unlisted) = asked()? else {
        return Ok(());
    };
    let confinement = Confinement {
        identity,
        capabilities: SERVING.to_vec(),
        files: Files {
            reads: Reads::All,
            writes: Vec::new(),
            ports: Ports::Called(Vec::new()),
            ..Files::default()
        },
        calls: Set::Serve,
        unlisted,
    };
    confinement.apply().context("confining the worker")
}

/// What is known of a worker that asks a block service.
#[derive(Clone, Debug)]
pub struct Asking {
    /// The user that it becomes, if it changes.
    pub identity: Option<Identity>,
    /// The files and ports of the client of the service.
    pub needs: Needs,
    /// Whether it has files of a disk, too, which may be anybody's and anywhere.
    pub disk: bool,
    /// The process that makes its connections.
    pub connections: Connections,
}

/// The process that connects to the block service of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connections {
    /// The worker itself.
    #[default]
    Own,
    /// The node: the worker may make no socket.
    ByNode,
}

/// Confines the worker of a mount that uses a block service to the access that this needs. Without
/// settings from the node it is not restricted further.
///
/// # Errors
/// As [`worker`].
pub fn network_worker(network: Option<&Asking>) -> anyhow::Result<()> {
    let Some(unlisted) = asked()? else {
        return Ok(());
    };
    let Some(network) = network else {
        return confine::capabilities::keep_only(&SERVING)
            .and_then(|()| confine::calls::allow_only(Set::ServeAndCall, unlisted))
            .context("confining the worker");
    };
    let needs = &network.needs;
    let (capabilities, reads) = match network.disk {
        true => (SERVING.to_vec(), Reads::All),
        false => (ASKING.to_vec(), Reads::ContentBeneath(needs.reads.clone())),
    };
    let confinement = Confinement {
        identity: network.identity,
        capabilities,
        files: Files {
            reads,
            writes: needs.writes.clone(),
            ports: Ports::Called(needs.ports.clone()),
            ..Files::default()
        },
        calls: match network.connections {
            Connections::Own => calls_of(needs),
            Connections::ByNode => Set::ServeAndAsk,
        },
        unlisted,
    };
    confinement.apply().context("confining the worker")
}

/// Returns the calls that it takes to ask a service.
fn calls_of(needs: &Needs) -> Set {
    match needs.socket {
        Some(_) => Set::ServeAndCall,
        None => Set::ServeAndConnect,
    }
}

/// Drops the capabilities and the access to files that a daemon does not need, before it reads
/// untrusted data: it writes and creates only beneath `run_dir`, in the directory of `trace`, and in
/// the cache of a block service that it uses. It can no longer mount or unmount;
/// a helper does that. To be called before it starts a thread.
///
/// # Errors
/// If the kernel refuses, or the cache cannot be made.
pub fn before_mounting(
    run_dir: &Path,
    trace: Option<&Path>,
    network: Option<&Needs>,
) -> anyhow::Result<()> {
    if is_off()? {
        return Ok(());
    }
    let mut keep = SERVING.to_vec();
    let mut writes = vec![run_dir.to_owned(), FUSE.into(), READAHEAD.into()];
    let cache = network.map_or(&[][..], |needs| &needs.writes);
    for dir in cache {
        // There are no rules for what is not there.
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    }
    writes.extend(cache.iter().cloned());
    if let Some(trace) = trace {
        writes.extend(trace.parent().map(Path::to_owned));
    }
    if trace.is_some() || !cache.is_empty() {
        // Wherever the user wants it; a cache may be that of the node's workers.
        keep.push(Capability::CAP_DAC_OVERRIDE);
    }
    confine::capabilities::keep_only(&keep).context("giving up capabilities")?;
    let files = Files {
        reads: Reads::All,
        writes,
        ports: Ports::Called(network.map_or_else(Vec::new, |needs| needs.ports.clone())),
        ..Files::default()
    };
    files.confine().context("confining the daemon to its files")
}

/// Removes from a daemon, with all its threads, the system calls that it does not need once it has
/// mounted.
///
/// # Errors
/// If the kernel refuses.
pub fn once_mounted(network: Option<&Needs>) -> anyhow::Result<()> {
    let Some(unlisted) = asked()? else {
        return Ok(());
    };
    let set = network.map_or(Set::Serve, calls_of);
    confine::calls::allow_only(set, unlisted).context("confining the daemon")
}

/// Confines the process that mounts, unmounts and guards for a daemon.
///
/// # Errors
/// If the kernel refuses.
pub fn mounter() -> anyhow::Result<()> {
    let Some(unlisted) = asked()? else {
        return Ok(());
    };
    // To get to the place, whoever may.
    let keep = [Capability::CAP_SYS_ADMIN, Capability::CAP_DAC_READ_SEARCH];
    confine::capabilities::keep_only(&keep)
        .and_then(|()| confine::calls::allow_only(Set::Mount, unlisted))
        .context("confining the process that mounts and unmounts")
}

/// Drops the capabilities that a service that mounts the layers of an engine does not need, for its
/// children too, and kills it on system calls that only an attacker makes. It mounts, so Landlock
/// cannot be used. To be called before it starts a thread.
///
/// # Errors
/// If the kernel refuses.
pub fn engine(service: Service) -> anyhow::Result<()> {
    if is_off()? {
        return Ok(());
    }
    let mut keep = SERVING.to_vec();
    // To write into a store that belongs to somebody else, and files below directories that do.
    keep.push(Capability::CAP_DAC_OVERRIDE);
    let programs = match service {
        Service::Docker => Programs::Executed,
        Service::Snapshotter => {
            keep.extend(COPYING);
            Programs::Never
        }
    };
    confine::capabilities::keep_only(&keep)
        .and_then(|()| confine::calls::deny_intrusion(programs, Rings::Never))
        .context("confining the service")
}

/// Confines `nicfetch serve`, before it reads anything from the network: it writes beneath `writes`,
/// which are created if missing, listens on `ports`, and connects to any; it reads what its user may.
/// To be called before it starts a thread.
///
/// # Errors
/// If the kernel refuses, or a directory cannot be made.
pub fn nicfetch(writes: Vec<PathBuf>, ports: Vec<u16>) -> anyhow::Result<()> {
    if is_off()? {
        return Ok(());
    }
    for dir in &writes {
        // There are no rules for what is not there.
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir);
        made.with_context(|| format!("making {}", dir.display()))?;
    }
    // For who runs it as root: a port below 1024, and files of another user.
    let keep = [
        Capability::CAP_NET_BIND_SERVICE,
        Capability::CAP_DAC_OVERRIDE,
    ];
    let files = Files {
        reads: Reads::All,
        writes,
        ports: Ports::Opened(ports),
        ..Files::default()
    };
    confine::capabilities::keep_only(&keep)
        .and_then(|()| files.confine())
        .and_then(|()| confine::calls::deny_intrusion(Programs::Never, Rings::Never))
        .context("confining nicfetch")
}

/// Has a process that was started by a confined one killed should it execute a program itself.
///
/// # Errors
/// If the kernel refuses.
pub fn execute_nothing() -> anyhow::Result<()> {
    if is_off()? {
        return Ok(());
    }
    confine::calls::deny_intrusion(Programs::Never, Rings::Never).context("confining the service")
}

/// Returns whether nothing is to be confined.
///
/// # Errors
/// If the variable is none of the words.
fn is_off() -> anyhow::Result<bool> {
    Ok(asked()?.is_none())
}

/// How strictly to confine, or `None` if not at all.
fn asked() -> anyhow::Result<Option<Unlisted>> {
    match std::env::var(HOW).as_deref() {
        Err(std::env::VarError::NotPresent) | Ok("on") => Ok(Some(Unlisted::Refused)),
        Ok("strict") => Ok(Some(Unlisted::Kills)),
        Ok("off") => Ok(None),
        _ => bail!("{HOW} must be on, off or strict"),
    }
}
