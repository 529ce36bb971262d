//! Pages of a file that are kept in memory.

#![expect(
    unsafe_code,
    reason = "mapping a file is unsafe, because it may change"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use memmap2::{Mmap, MmapOptions};

/// Pages of a file that stay in the page cache until this is dropped.
#[derive(Debug)]
pub struct LockedPages(Mmap);

impl LockedPages {
    /// Brings `len` bytes of a file from `offset` into memory and keeps them there; whole pages,
    /// the first and the last included.
    ///
    /// # Errors
    /// If the file cannot be mapped, or the process may not lock so much (`RLIMIT_MEMLOCK`).
    pub fn lock(file: impl AsFd, offset: u64, len: usize) -> io::Result<Self> {
        let mut options = MmapOptions::new();
        options.offset(offset).len(len);
        // SAFETY: a mapping is unsafe because the bytes behind a reference to it may change, and
        // because touching what was cut off the file is a fault. Nothing here ever makes a
        // reference to the bytes or touches them: the mapping is private to this structure, which
        // only locks and unmaps it. The kernel reports what it cannot bring in as an error.
        let map = unsafe { options.map(file.as_fd().as_raw_fd()) }?;
        map.lock()?;
        Ok(Self(map))
    }

    /// Returns how many bytes are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// How many KiB of this process are locked.
    fn locked_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmLck:"));
        line.unwrap()
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse()
            .unwrap()
    }

    #[test]
    fn pages_are_locked_until_dropped() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 3 * 4096]).unwrap();
        let before = locked_kib();
        let pages = LockedPages::lock(&file, 4096, 5000).unwrap();
        assert_eq!(pages.len(), 5000);
        assert_eq!(locked_kib(), before + 8);
        drop(pages);
        assert_eq!(locked_kib(), before);
    }

    #[test]
    fn a_directory_cannot_be_locked() {
        let dir = std::fs::File::open("/").unwrap();
        assert!(LockedPages::lock(&dir, 0, 4096).is_err());
    }
}
