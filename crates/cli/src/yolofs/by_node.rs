//! Mounts of the node service, for the commands that know mounts of both kinds.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use localfs::canonical_within;

use super::mount::{MountArgs, in_kib};
use bootstore::store::StoreSettings;
use host::run_dir::RunDir;
use node_api::boot_choice::BootChoice;
use node_api::client::{CallError, NodeClient};
use node_api::nic::NicName;
use node_api::spec::MountSpec;
use node_api::status::MountStatus;

/// What HTTP says of things that are not there.
const NOT_FOUND: u16 = 404;

/// Has the node mount.
///
/// # Errors
/// [`CallError::Nobody`] if there is no node; what it refuses.
pub(super) fn mount(
    args: &MountArgs,
    store: &StoreSettings,
    run_dir: &RunDir,
    mountpoint: &Path,
) -> Result<(), CallError> {
    let node = NodeClient::of(run_dir);
    let made = node.make(&spec(args, store, mountpoint)?)?;
    if args.wait_prewarm && made.mount.status.boot.is_some() {
        node.prewarm(&made.mount.status.id, args.budget.map(|size| size.0))?;
    }
    Ok(())
}

fn spec(args: &MountArgs, store: &StoreSettings, mountpoint: &Path) -> anyhow::Result<MountSpec> {
    let source = match NicName::of_source(&args.source)? {
        Some(_) => args.source.clone(),
        None => {
            let source = canonical_within(&args.source, args.source_deadline);
            source.with_context(|| format!("opening the source {}", args.source.display()))?
        }
    };
    let boot = match &args.boot {
        // The node may run in another directory.
        BootChoice::File(path) => BootChoice::File(absolute(path)?),
        other => other.clone(),
    };
    Ok(MountSpec {
        source,
        mountpoint: mountpoint.to_owned(),
        store: store.absolute(),
        boot,
        mode: args.mode,
        inject: !args.no_inject,
        lock: args.lock,
        budget_bytes: args.budget.map(|size| size.0),
        readahead_kib: match args.readahead {
            Some(size) => Some(in_kib(size)),
            None if args.no_inject && args.boot != BootChoice::None => Some(0),
            None => None,
        },
        threads: args.threads,
        auto: args.auto,
        suid_dev: args.suid_dev,
        all_xattrs: args.xattrs.all_xattrs,
        plain: false,
        lasting: true,
        label: None,
        nic: args.nic.spec()?,
    })
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("finding {}", path.display()))
}

/// Has the node unmount, and returns whether the mount was the node's.
///
/// # Errors
/// What the node refuses.
pub(super) fn unmount(run_dir: &RunDir, mountpoint: &Path, lazy: bool) -> anyhow::Result<bool> {
    match NodeClient::of(run_dir).unmount(&RunDir::id_of(mountpoint), lazy) {
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
