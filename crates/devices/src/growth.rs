//! Making a device larger.

use anyhow::{Context as _, ensure};
use blocks::BlockDevice;

/// Makes a device larger, for good. The same size again changes nothing.
///
/// # Errors
/// If it would become smaller, cannot be written to, or fails.
///
/// ```
/// use blocks::DeviceAccess;
///
/// let dir = tempfile::tempdir()?;
/// let disk = dir.path().join("disk.raw");
/// std::fs::write(&disk, [7; 4096])?;
/// let device = devices::open::open_image(&disk, DeviceAccess::ReadWrite, None, &Default::default())?;
/// devices::grow(&*device, 8192)?;
/// assert_eq!(device.info().size, 8192);
/// assert!(devices::grow(&*device, 4096).is_err());
/// # Ok::<(), anyhow::Error>(())
/// ```
pub fn grow(device: &dyn BlockDevice, size: u64) -> anyhow::Result<()> {
    let info = device.info();
    ensure!(
        size >= info.size,
        "it has {} bytes: a device cannot be made smaller, since its end may be in use",
        info.size
    );
    ensure!(
        size.is_multiple_of(u64::from(info.block_size)),
        "{size} bytes are no multiple of its blocks of {} bytes",
        info.block_size
    );
    device.grow(size).context("making it larger")
}
