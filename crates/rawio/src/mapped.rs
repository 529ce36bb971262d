//! Bytes of a file, read through a mapping as programs and libraries do it.

#![expect(
    unsafe_code,
    reason = "mapping a file is unsafe, because it may change"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use memmap2::{Mmap, MmapOptions};

/// A file that is mapped for reading.
#[derive(Debug)]
pub struct MappedFile(Mmap);

impl MappedFile {
    /// Maps a file, all of it. Of an empty one there is nothing to copy.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn map(file: impl AsFd) -> io::Result<Self> {
        // SAFETY: a mapping is unsafe because the bytes behind a reference to it may change.
        // Nothing here makes a reference to them: they are only copied out.
        let map = unsafe { MmapOptions::new().map(file.as_fd().as_raw_fd()) }?;
        Ok(Self(map))
    }

    /// Copies bytes from `offset` on into `buffer`, as many as there are, and returns how many.
    ///
    /// A page that the file system cannot give is no error but a signal (`SIGBUS`), which ends
    /// the process.
    pub fn copy(&self, offset: usize, buffer: &mut [u8]) -> usize {
        let len = buffer.len().min(self.0.len().saturating_sub(offset));
        if len > 0 {
            let to = buffer.as_mut_ptr();
            // SAFETY: `len` bytes from `offset` are inside the mapping, and as many are in the
            // buffer, which is not part of it. Whether another process changes the bytes
            // meanwhile decides what is copied and nothing else: no reference to them exists.
            unsafe { std::ptr::copy_nonoverlapping(self.0.as_ptr().add(offset), to, len) };
        }
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn what_is_copied_is_what_the_file_has_up_to_its_end() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 4096]).unwrap();
        file.write_all(&[2; 10]).unwrap();
        let map = MappedFile::map(&file).unwrap();
        let mut buffer = [0; 20];
        assert_eq!(map.copy(4094, &mut buffer), 12);
        assert_eq!(buffer[..13], [1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0]);
        assert_eq!(map.copy(5000, &mut buffer), 0);
        let empty = MappedFile::map(tempfile::tempfile().unwrap()).unwrap();
        assert_eq!(empty.copy(0, &mut buffer), 0);
    }
}
