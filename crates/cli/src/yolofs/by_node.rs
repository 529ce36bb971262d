//! Mounts of the node service, for the commands that know mounts of both kinds.

use std::path::Path;

use host::run_dir::RunDir;
use node_api::client::{CallError, NodeClient};
use node_api::control::WhenInUse;
use node_api::spec::MountSpec;
use node_api::status::MountStatus;

/// What HTTP says of things that are not there.
const NOT_FOUND: u16 = 404;

/// What a mount waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// It is there.
    Mounted,
    /// Its boot image is in its page cache.
    Prewarmed,
}

/// Has the node mount.
///
/// # Errors
/// [`CallError::Nobody`] if there is no node; what it refuses.
pub(super) fn mount(spec: &MountSpec, run_dir: &RunDir, until: Until) -> Result<(), CallError> {
    let node = NodeClient::of(run_dir);
    let made = node.make(spec)?;
    if until == Until::Prewarmed && made.mount.status.boot.is_some() {
        node.prewarm(&made.mount.status.id, spec.budget_bytes)?;
    }
    Ok(())
}

/// Returns whether a node would serve mounts.
///
/// # Errors
/// If one listens, and does not answer.
pub(super) fn listens(run_dir: &RunDir) -> anyhow::Result<bool> {
    match NodeClient::of(run_dir).node() {
        Ok(_) => Ok(true),
        Err(CallError::Nobody(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Has the node unmount, and returns whether the mount was the node's.
///
/// # Errors
/// What the node refuses.
pub(super) fn unmount(
    run_dir: &RunDir,
    mountpoint: &Path,
    when_in_use: WhenInUse,
) -> anyhow::Result<bool> {
    match NodeClient::of(run_dir).unmount(&RunDir::id_of(mountpoint), when_in_use) {
        Ok(()) => Ok(true),
        Err(
            CallError::Nobody(_)
            | CallError::Refused {
                status: NOT_FOUND, ..
            },
        ) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns the mounts of the node: none if there is no node.
///
/// # Errors
/// If it does not answer.
pub(crate) fn mounts(run_dir: &RunDir) -> anyhow::Result<Vec<MountStatus>> {
    match NodeClient::of(run_dir).mounts() {
        Ok(mounts) => Ok(mounts.into_iter().map(|mount| mount.status).collect()),
        Err(CallError::Nobody(_)) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}
