//! Mounting a source with a recorder under it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use yolofs::{Mount, MountOptions};

use host::mount_table::needs_root;
use mounting::recorded::Recorded;

/// How long a mount may stay in use after the command was killed: its processes end first.
pub(crate) const UMOUNT_PATIENCE: Duration = Duration::from_secs(10);

/// Mounts a source with a recorder that sees every request; `label` is what the mount table shows.
///
/// # Errors
/// If it cannot be mounted.
pub(crate) fn mount_recorded(
    recorded: &Recorded,
    mountpoint: &Path,
    label: &str,
) -> anyhow::Result<Mount> {
    let options = MountOptions::new(mountpoint, label);
    Mount::start(Arc::new(recorded.file_system()), &options).with_context(|| {
        format!(
            "mounting the source with a recorder under it{}",
            needs_root()
        )
    })
}
