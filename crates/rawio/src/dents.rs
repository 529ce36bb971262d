//! Reading a directory with the cursors of the kernel, from which a listing can be continued later.

#![expect(
    unsafe_code,
    reason = "safe wrappers of getdents64 hide the cursor of an entry"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Bytes asked for at a time: some hundred names, and no more than a thread has to spare.
const CHUNK: usize = 32768;

/// Bytes before the name in the kernel's `linux_dirent64`: inode (8), cursor (8), length (2),
/// type (1).
const HEAD: usize = 19;

/// One name in a directory, as the kernel lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawEntry<'a> {
    /// The name; `.` and `..` are among them.
    pub name: &'a [u8],
    /// Inode number; of a mount point, that of the directory below the mount.
    pub inode: u64,
    /// Where a listing continues behind this entry: a position for [`nix::unistd::lseek`].
    pub next: u64,
}

/// A buffer to list directories with, again and again.
#[derive(Debug)]
pub struct Lister {
    buf: Vec<u8>,
}

impl Default for Lister {
    fn default() -> Self {
        Self::new()
    }
}

impl Lister {
    /// Returns a buffer.
    #[must_use]
    pub fn new() -> Self {
        Self {
            buf: vec![0; CHUNK],
        }
    }

    /// Reads the next entries from the descriptor's position; none at the end.
    ///
    /// # Errors
    /// Whatever `getdents64(2)` gives; never `EINTR`.
    pub fn next(&mut self, dir: impl AsFd) -> io::Result<Entries<'_>> {
        loop {
            // SAFETY: the kernel writes at most `buf.len()` bytes to `buf`, which is borrowed
            // mutably for the whole call; the descriptor is borrowed and open.
            let read = unsafe {
                libc::syscall(
                    libc::SYS_getdents64,
                    dir.as_fd().as_raw_fd(),
                    self.buf.as_mut_ptr(),
                    self.buf.len(),
                )
            };
            if let Ok(read) = usize::try_from(read) {
                let rest = &self.buf[..read.min(self.buf.len())];
                return Ok(Entries { rest });
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// Some entries of a directory.
#[derive(Clone, Copy, Debug)]
pub struct Entries<'a> {
    rest: &'a [u8],
}

impl Entries<'_> {
    /// Returns whether there is none: the directory's end.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = RawEntry<'a>;

    /// A record that does not fit ends the listing: the kernel never writes one.
    fn next(&mut self) -> Option<RawEntry<'a>> {
        let inode = number(self.rest.get(..8)?)?;
        let next = number(self.rest.get(8..16)?)?;
        let len = usize::try_from(number(self.rest.get(16..18)?)?).ok()?;
        let name = self.rest.get(HEAD..len)?;
        let name = &name[..name.iter().position(|byte| *byte == 0)?];
        self.rest = self.rest.get(len..)?;
        Some(RawEntry { name, inode, next })
    }
}

/// The kernel of this machine writes numbers as this machine does.
#[expect(clippy::host_endian_bytes, reason = "the kernel writes native numbers")]
fn number(bytes: &[u8]) -> Option<u64> {
    match *bytes {
        [a, b] => Some(u16::from_ne_bytes([a, b]).into()),
        _ => Some(u64::from_ne_bytes(bytes.try_into().ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::{Whence, lseek};
    use std::collections::BTreeSet;
    use std::fs::{self, File};

    fn list(fd: &File) -> Vec<(Vec<u8>, u64, u64)> {
        let mut lister = Lister::new();
        let mut all = Vec::new();
        loop {
            let entries = lister.next(fd).unwrap();
            if entries.is_empty() {
                return all;
            }
            all.extend(entries.map(|e| (e.name.to_vec(), e.inode, e.next)));
        }
    }

    #[test]
    fn lists_what_is_there_with_inodes_and_cursors() {
        let dir = tempfile::tempdir().unwrap();
        for i in 0..2000 {
            fs::write(dir.path().join(format!("a-name-of-some-length-{i}")), b"").unwrap();
        }
        let fd = File::open(dir.path()).unwrap();
        let all = list(&fd);
        let names: BTreeSet<&[u8]> = all.iter().map(|(name, ..)| name.as_slice()).collect();
        assert_eq!(names.len(), 2002);
        assert!(names.contains(b"..".as_slice()));
        for (name, inode, _) in all.iter().filter(|(name, ..)| name.starts_with(b"a")) {
            let path = dir.path().join(std::str::from_utf8(name).unwrap());
            let want = std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
            assert_eq!(*inode, want);
        }
        let (.., cursor) = all[1000];
        lseek(&fd, i64::try_from(cursor).unwrap(), Whence::SeekSet).unwrap();
        assert_eq!(list(&fd), all[1001..]);
    }

    #[test]
    fn damaged_records_end_the_listing() {
        for rest in [&[1; 7][..], &[0; 24], &[255; 64]] {
            assert_eq!(Entries { rest }.next(), None);
        }
    }
}
