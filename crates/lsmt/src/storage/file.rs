//! Storage in a file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::unistd::{Whence, lseek};
use parking_lot::Mutex;

use super::{ReadAt, Storage};

/// A file, with holes where the file system has them.
#[derive(Debug)]
pub struct FileStorage {
    file: File,
    /// Looking for holes moves the file's position, which all users share.
    seeking: Mutex<()>,
}

impl FileStorage {
    /// Wraps an open file; it is written only through [`Storage`].
    pub fn new(file: File) -> Self {
        Self {
            file,
            seeking: Mutex::new(()),
        }
    }
}

impl ReadAt for FileStorage {
    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }
}

fn signed(number: u64) -> io::Result<i64> {
    i64::try_from(number).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

impl Storage for FileStorage {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        let end = range.end.min(self.size()?);
        if end <= range.start {
            return Ok(());
        }
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let (at, len) = (signed(range.start)?, signed(end - range.start)?);
        match fallocate(&self.file, hole, at, len) {
            Err(Errno::EOPNOTSUPP) => write_zeros(self, range.start..end),
            other => Ok(other?),
        }
    }

    fn data_ranges(&self) -> io::Result<Vec<Range<u64>>> {
        let size = self.size()?;
        let _one = self.seeking.lock();
        let mut ranges = Vec::new();
        let mut at = 0;
        while at < size {
            let start = match lseek(&self.file, signed(at)?, Whence::SeekData) {
                Err(Errno::ENXIO) => break,
                other => other?,
            };
            let end = lseek(&self.file, start, Whence::SeekHole)?;
            let (start, end) = (start.unsigned_abs(), end.unsigned_abs());
            if end <= at {
                break;
            }
            ranges.push(start..end.min(size));
            at = end;
        }
        Ok(ranges)
    }
}

/// Writes zeros where no hole can be made.
fn write_zeros(storage: &FileStorage, range: Range<u64>) -> io::Result<()> {
    const PIECE: usize = 1 << 16;
    let zeros = [0; PIECE];
    let mut at = range.start;
    while at < range.end {
        let len = usize::try_from(range.end - at).map_or(PIECE, |left| left.min(PIECE));
        storage.write_at(&zeros[..len], at)?;
        at += len as u64;
    }
    Ok(())
}
