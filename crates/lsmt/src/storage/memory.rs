//! Storage in memory.

use std::io;
use std::ops::Range;

use parking_lot::RwLock;

use super::{ReadAt, Storage};
use crate::num::{size, wide};

/// Sectors with nothing but zeros are holes to the memory's [`Storage::data_ranges`], as blocks are
/// to a file system.
const HOLE: usize = 512;

/// Bytes that memory takes at most, as a file system has a largest file.
const BYTES_MAX: usize = 1 << 32;

/// Bytes in memory.
#[derive(Debug, Default)]
pub struct MemoryStorage {
    bytes: RwLock<Vec<u8>>,
}

impl MemoryStorage {
    /// Returns storage with these bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes: RwLock::new(bytes),
        }
    }

    /// Returns a copy of all bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }
}

impl ReadAt for MemoryStorage {
    fn size(&self) -> io::Result<u64> {
        Ok(wide(self.bytes.read().len()))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = self.bytes.read();
        let found = bytes
            .get(size(offset)..)
            .and_then(|rest| rest.get(..buffer.len()))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(found);
        Ok(())
    }
}

impl Storage for MemoryStorage {
    fn write_at(&self, new: &[u8], offset: u64) -> io::Result<()> {
        let mut bytes = self.bytes.write();
        let start = size(offset);
        let end = start
            .checked_add(new.len())
            .filter(|&end| end <= BYTES_MAX)
            .ok_or(io::ErrorKind::FileTooLarge)?;
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(new);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_size(&self, len: u64) -> io::Result<()> {
        if size(len) > BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.write().resize(size(len), 0);
        Ok(())
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        let mut bytes = self.bytes.write();
        let end = size(range.end).min(bytes.len());
        if let Some(hole) = bytes.get_mut(size(range.start)..end) {
            hole.fill(0);
        }
        Ok(())
    }

    fn data_ranges(&self) -> io::Result<Vec<Range<u64>>> {
        let bytes = self.bytes.read();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (at, block) in bytes.chunks(HOLE).enumerate() {
            if block.iter().all(|&byte| byte == 0) {
                continue;
            }
            let start = wide(at * HOLE);
            let end = start + wide(block.len());
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        Ok(ranges)
    }
}
