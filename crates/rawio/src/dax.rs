//! Files whose pages are the medium itself (DAX): whether one is such a file, and whether writes
//! through a mapping of it are durable without a call.

#![expect(unsafe_code, reason = "nix has neither STATX_ATTR_DAX nor MAP_SYNC")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// What a synchronous mapping of a file came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapSync {
    /// Written data is durable once the processor's caches are flushed.
    Works,
    /// The file system or the device cannot: `msync(2)` is needed.
    Refused,
}

/// Returns whether a file's pages are the medium itself; `None` if the kernel does not report it
/// (Linux before 5.8, or a file system without DAX).
///
/// # Errors
/// Whatever `statx(2)` gives; never `EINTR`.
pub fn is_dax(file: impl AsFd) -> io::Result<Option<bool>> {
    /// The flag's bit in both fields, which are as wide as the kernel's.
    const DAX: u64 = libc::STATX_ATTR_DAX.unsigned_abs() as u64;
    loop {
        let mut raw = MaybeUninit::<libc::statx>::zeroed();
        // SAFETY: the path is a literal that ends in a NUL, the descriptor is borrowed and open,
        // and `raw` has room for one statx, the only thing that is written.
        let result = unsafe {
            libc::statx(
                file.as_fd().as_raw_fd(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH,
                libc::STATX_TYPE,
                raw.as_mut_ptr(),
            )
        };
        if result == 0 {
            // SAFETY: the call succeeded and filled the structure, all zeros before, in.
            let stat = unsafe { raw.assume_init() };
            let told = stat.stx_attributes_mask & DAX != 0;
            return Ok(told.then_some(stat.stx_attributes & DAX != 0));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Tries to map the first `len` bytes of a file, open for reading and writing, synchronously
/// (`MAP_SYNC`). The mapping is taken away again at once.
///
/// # Errors
/// If it cannot be mapped for another reason than that it cannot be synchronous.
pub fn try_map_sync(file: impl AsFd, len: usize) -> io::Result<MapSync> {
    // SAFETY: a new mapping at a place that the kernel chooses changes no memory that is in use;
    // the descriptor is borrowed and open.
    let place = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC,
            file.as_fd().as_raw_fd(),
            0,
        )
    };
    if place == libc::MAP_FAILED {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            // Kernels before 4.15 know no MAP_SHARED_VALIDATE, and say EINVAL.
            Some(libc::EOPNOTSUPP | libc::EINVAL) => Ok(MapSync::Refused),
            _ => Err(error),
        };
    }
    // SAFETY: the mapping was made above, is as long as it was asked to be, and nobody has a
    // reference into it.
    let result = unsafe { libc::munmap(place, len) };
    match result {
        0 => Ok(MapSync::Works),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::OpenOptionsExt as _;

    #[test]
    fn a_file_without_dax_refuses_to_be_mapped_synchronously() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let dax = is_dax(&file).unwrap();
        let sync = try_map_sync(&file, 1 << 20).unwrap();
        // Whoever runs this on NVM has both.
        assert!(sync == MapSync::Refused || dax == Some(true), "{dax:?}");
    }

    #[test]
    fn what_cannot_be_mapped_at_all_is_an_error() {
        let mut options = std::fs::File::options();
        options.read(true).custom_flags(libc::O_PATH);
        let path_only = options.open("/").unwrap();
        assert!(try_map_sync(path_only, 4096).is_err());
    }
}
