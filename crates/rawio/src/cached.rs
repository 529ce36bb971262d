//! What the page cache has of a file.

#![expect(unsafe_code, reason = "neither libc nor nix has cachestat(2)")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::dax::is_dax;

/// The number of `cachestat(2)`, the same on all architectures that Rust's Linux targets have.
const SYS_CACHESTAT: libc::c_long = 451;

/// The kernel's `struct cachestat_range`.
#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

/// The kernel's `struct cachestat`.
#[repr(C)]
#[derive(Default)]
struct Stat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Returns how many of the pages that contain `len` bytes of a file from `offset` are in the page cache. For a
/// DAX file the result is 0 without a system call: Linux 6.12 takes its records of mapped DAX
/// pages for those of evicted ones, and crashes.
///
/// # Errors
/// If the file is open as a path only, or the kernel does not support it (Linux before 6.5).
pub fn cached_pages(file: impl AsFd, offset: u64, len: u64) -> io::Result<u64> {
    if len == 0 {
        return Ok(0); // to the kernel, no length means up to the end
    }
    if is_dax(&file)? == Some(true) {
        return Ok(0);
    }
    let range = Range { offset, len };
    let mut stat = Stat::default();
    // SAFETY: both structures have the kernel's layout and live through the call, which only
    // reads the first and only writes the second; the descriptor is borrowed and open.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_fd().as_raw_fd(),
            &raw const range,
            &raw mut stat,
            0,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(stat.cached)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_was_just_written_is_cached() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 10 * 4096]).unwrap();
        match cached_pages(&file, 4096, 5 * 4096) {
            Ok(pages) => assert_eq!(pages, 5),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOSYS)),
        }
        assert_eq!(cached_pages(&file, 0, 0).unwrap(), 0);
    }
}
