//! The page cache of a block device.

#![expect(unsafe_code, reason = "nix has no BLKFLSBUF")]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

const BLKFLSBUF: libc::c_ulong = 0x1261;

/// Writes what is dirty in the page cache of a block device, and drops all that nobody uses. It takes root.
///
/// # Errors
/// If it is no block device, or the kernel refuses.
pub fn flush_and_drop(device: impl AsFd) -> io::Result<()> {
    // SAFETY: the request has no argument, and the descriptor is borrowed and open.
    let result = unsafe {
        libc::ioctl(
            device.as_fd().as_raw_fd(),
            BLKFLSBUF as libc::Ioctl,
            0_usize,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_file_has_no_such_cache() {
        let file = tempfile::tempfile().unwrap();
        let error = super::flush_and_drop(&file).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
    }
}
