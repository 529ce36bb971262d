//! Opening an image or a raw disk.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use blockimages::{BlobSource, CONFIG_NAME, RawDevice, Start, open_image_from};
use blocks::{BlockDevice, DeviceAccess};

/// Returns whether a path names a block image: its directory, or its configuration. Anything else is a raw disk.
#[must_use]
pub fn is_image(path: &Path) -> bool {
    path.is_dir() || path.file_name().is_some_and(|name| name == CONFIG_NAME)
}

/// Opens an image, with who has layers that are not on this machine and what is known of its start; or a raw disk.
///
/// # Errors
/// If it cannot be opened like this, or somebody else owns what can be written to.
pub fn open_image(
    path: &Path,
    access: DeviceAccess,
    blobs: Option<&dyn BlobSource>,
    start: &Start,
) -> anyhow::Result<Arc<dyn BlockDevice>> {
    let opening = || format!("opening {}", path.display());
    if !is_image(path) {
        let device = RawDevice::open(path, access).with_context(opening)?;
        return Ok(Arc::new(device));
    }
    let device = open_image_from(path, blobs, start).with_context(opening)?;
    ensure!(
        access == DeviceAccess::ReadOnly || device.info().access == DeviceAccess::ReadWrite,
        "{} has only sealed layers: leave `writable` out, or put a qcow2 overlay on the export",
        path.display()
    );
    Ok(Arc::new(device))
}
