//! The place of the beginning of a file on its disk, so that many files are read in the disk's order.

#![expect(unsafe_code, reason = "neither libc nor nix has FS_IOC_FIEMAP")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `_IOWR('f', 11, struct fiemap)`, with the 32 bytes of its head.
const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;

/// The kernel's `struct fiemap`, with room for one `struct fiemap_extent`.
#[repr(C)]
#[derive(Default)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extent: Extent,
}

/// The kernel's `struct fiemap_extent`.
#[repr(C)]
#[derive(Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// Returns the byte of the disk at which the first extent of a file begins; `None` if it has none on a disk, or its
/// file system does not report it.
///
/// # Errors
/// If the file is open as a path only, or cannot be read.
///
/// ```
/// let file = tempfile::NamedTempFile::new()?;
/// assert_eq!(rawio::extent::first_physical(&file)?, None);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn first_physical(file: impl AsFd) -> io::Result<Option<u64>> {
    let mut map = Map {
        length: u64::MAX,
        extent_count: 1,
        ..Map::default()
    };
    // SAFETY: the structure has the kernel's layout and lives through the call, which writes no more than one extent
    // behind its head, as `extent_count` says; the descriptor is borrowed and open.
    let result = unsafe {
        libc::ioctl(
            file.as_fd().as_raw_fd(),
            FS_IOC_FIEMAP as libc::Ioctl,
            &raw mut map,
        )
    };
    if result == 0 {
        return Ok((map.mapped_extents > 0).then_some(map.extent.physical));
    }
    match io::Error::last_os_error() {
        error if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOTTY)) => Ok(None),
        error => Err(error),
    }
}
