//! What the processes that serve give up before they do (docs/security.md).
//!
//! Both kinds keep these capabilities, if they have them:
//!
//! - `CAP_DAC_READ_SEARCH`: a source has files of many owners, and a mount shows them all; who may
//!   read which is for the kernel to say, by the attributes.
//! - `CAP_FOWNER`: to read other owners' files without leaving a time of access on them.
//! - `CAP_SYS_ADMIN`: to see `trusted.` attributes, without which an overlay's whiteouts and opaque
//!   directories are none; and in the standalone daemon to unmount. Whatever else it would allow
//!   takes system calls that are not in the list.
//! - `CAP_IPC_LOCK`: for `--lock`.

use std::path::Path;

use anyhow::{Context as _, bail};
use confine::{Capability, Confinement, Files, Identity, Reads, Set, Unlisted};

/// How strictly to confine: `on`, `off`, or `strict`, where a system call that was forgotten in
/// the list is the end of the process instead of an error: for tests and for looking for faults.
const HOW: &str = "YOLOFS_CONFINE";

const SERVING: [Capability; 4] = [
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_FOWNER,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_IPC_LOCK,
];

/// Confines a worker, and makes it another user if it is to be one. To be called before it starts a
/// thread. It makes and writes no file from then on, but those it is handed. It may read whatever
/// permissions allow, for nobody knows yet of which sources it will be handed descriptors.
///
/// # Errors
/// If the process has threads, or the kernel refuses: it must not serve then.
pub(crate) fn worker(identity: Option<Identity>) -> anyhow::Result<()> {
    let Some(unlisted) = asked()? else {
        return Ok(());
    };
    let confinement = Confinement {
        identity,
        capabilities: SERVING.to_vec(),
        files: Files {
            reads: Reads::All,
            writes: Vec::new(),
        },
        calls: Set::Serve,
        unlisted,
    };
    confinement.apply().context("confining the worker")
}

/// Takes the capabilities from a daemon that will mount and unmount by itself, and which writes
/// its trace to `trace`. To be called before it starts a thread.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn before_mounting(trace: Option<&Path>) -> anyhow::Result<()> {
    if asked()?.is_none() {
        return Ok(());
    }
    let mut keep = SERVING.to_vec();
    if trace.is_some() {
        // Wherever the user wants it.
        keep.push(Capability::CAP_DAC_OVERRIDE);
    }
    confine::capabilities::keep_only(&keep).context("giving up capabilities")
}

/// Whether a daemon asks somebody on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// It does.
    Asked,
    /// It has nothing to do there.
    None,
}

/// Takes from a daemon, with all its threads, the system calls that it does not need once it has
/// mounted. Landlock cannot be had with it: that would keep the daemon from unmounting.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn once_mounted(network: Network) -> anyhow::Result<()> {
    let Some(unlisted) = asked()? else {
        return Ok(());
    };
    let set = match network {
        Network::Asked => Set::ServeAndConnect,
        Network::None => Set::ServeAndUnmount,
    };
    confine::calls::allow_only(set, unlisted).context("confining the daemon")
}

/// How strictly to confine, or `None` if not at all.
fn asked() -> anyhow::Result<Option<Unlisted>> {
    match std::env::var(HOW).as_deref() {
        Err(std::env::VarError::NotPresent) | Ok("on") => Ok(Some(Unlisted::Refused)),
        Ok("strict") => Ok(Some(Unlisted::Kills)),
        Ok("off") => Ok(None),
        _ => bail!("{HOW} is on, off or strict"),
    }
}
