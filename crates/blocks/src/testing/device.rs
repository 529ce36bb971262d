//! Memory and faulty implementations of [`BlockDevice`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Fault, Faulty};
use crate::{
    BlockDevice, Content, DeviceAccess, DeviceError, DeviceErrorKind, DeviceExtent, DeviceInfo,
    Durability, Space,
};

/// A sparse device in memory that can lose data that was not flushed.
#[derive(Debug)]
pub struct MemDevice {
    info: DeviceInfo,
    state: Mutex<Blocks>,
}

/// The blocks that are no holes; `None` is a block of zeros that keeps its space.
type Stored = BTreeMap<u64, Option<Box<[u8]>>>;

#[derive(Debug, Default)]
struct Blocks {
    live: Stored,
    durable: Stored,
    unflushed: BTreeSet<u64>,
}

impl Blocks {
    fn put(&mut self, block: u64, content: Option<Option<Box<[u8]>>>, durability: Durability) {
        match content {
            Some(content) => self.live.insert(block, content),
            None => self.live.remove(&block),
        };
        self.unflushed.insert(block);
        if durability == Durability::Durable {
            self.keep(block);
        }
    }

    fn keep(&mut self, block: u64) {
        match self.live.get(&block) {
            Some(content) => self.durable.insert(block, content.clone()),
            None => self.durable.remove(&block),
        };
        self.unflushed.remove(&block);
    }
}

impl MemDevice {
    /// Returns an empty device that supports everything.
    #[must_use]
    pub fn new(size: u64, block_size: u32) -> Self {
        let info = DeviceInfo {
            size,
            block_size,
            access: DeviceAccess::ReadWrite,
            trim: true,
            write_zeroes: true,
            fua: true,
        };
        Self {
            info,
            state: Mutex::default(),
        }
    }

    /// Returns a read-only device with this content, whose blocks of zeros are holes; its size is
    /// rounded up to blocks.
    #[must_use]
    pub fn read_only(content: &[u8], block_size: u32) -> Self {
        let block = block_size as usize;
        let mut blocks = Blocks::default();
        for (index, chunk) in (0..).zip(content.chunks(block)) {
            if !crate::is_zero(chunk) {
                let mut stored = vec![0; block];
                stored[..chunk.len()].copy_from_slice(chunk);
                blocks.live.insert(index, Some(stored.into()));
            }
        }
        blocks.durable.clone_from(&blocks.live);
        let size = (content.len() as u64).next_multiple_of(u64::from(block_size));
        Self {
            info: DeviceInfo::read_only(size, block_size),
            state: Mutex::new(blocks),
        }
    }

    /// Discards all data that was not flushed, as a crash of the machine does.
    pub fn crash(&self) {
        let mut state = self.state();
        state.live = state.durable.clone();
        state.unflushed.clear();
    }

    /// Returns all of its content.
    #[must_use]
    pub fn content(&self) -> Vec<u8> {
        let state = self.state();
        let zeros = vec![0; self.info.block_size as usize];
        let blocks = self.blocks(&(0..self.info.size));
        let contents = blocks.flat_map(|block| match state.live.get(&block) {
            Some(Some(content)) => content,
            Some(None) | None => zeros.as_slice(),
        });
        contents.copied().collect()
    }

    fn state(&self) -> MutexGuard<'_, Blocks> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn blocks(&self, range: &Range<u64>) -> Range<u64> {
        let block = u64::from(self.info.block_size);
        range.start / block..range.end / block
    }
}

impl BlockDevice for MemDevice {
    fn info(&self) -> DeviceInfo {
        self.info
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let range = self
            .info
            .check("reading memory", offset, buf.len() as u64)?;
        let state = self.state();
        let chunks = buf.chunks_exact_mut(self.info.block_size as usize);
        for (block, chunk) in self.blocks(&range).zip(chunks) {
            match state.live.get(&block) {
                Some(Some(content)) => chunk.copy_from_slice(content),
                Some(None) | None => chunk.fill(0),
            }
        }
        Ok(())
    }

    fn write_at(
        &self,
        offset: u64,
        data: &[u8],
        durability: Durability,
    ) -> Result<(), DeviceError> {
        let doing = "writing memory";
        self.info.check_writable(doing)?;
        let range = self.info.check(doing, offset, data.len() as u64)?;
        let mut state = self.state();
        let chunks = data.chunks_exact(self.info.block_size as usize);
        for (block, chunk) in self.blocks(&range).zip(chunks) {
            state.put(block, Some(Some(chunk.into())), durability);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let mut state = self.state();
        for block in std::mem::take(&mut state.unflushed) {
            state.keep(block);
        }
        Ok(())
    }

    fn trim(&self, range: Range<u64>, durability: Durability) -> Result<(), DeviceError> {
        self.write_zeroes(range, Space::Release, durability)
    }

    fn write_zeroes(
        &self,
        range: Range<u64>,
        space: Space,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        let doing = "zeroing memory";
        self.info.check_writable(doing)?;
        self.info.check_range(doing, &range)?;
        let mut state = self.state();
        for block in self.blocks(&range) {
            let content = match space {
                Space::Release => None,
                Space::Keep => Some(None),
            };
            state.put(block, content, durability);
        }
        Ok(())
    }

    fn extents(&self, range: Range<u64>, limit: usize) -> Result<Vec<DeviceExtent>, DeviceError> {
        self.info.check_range("telling extents of memory", &range)?;
        let state = self.state();
        let mut extents: Vec<DeviceExtent> = Vec::new();
        for block in self.blocks(&range) {
            let content = match state.live.get(&block) {
                Some(Some(_)) => Content::Data,
                Some(None) => Content::Zero,
                None => Content::Hole,
            };
            let len = u64::from(self.info.block_size);
            let full = extents.len() == limit.max(1);
            match extents.last_mut() {
                Some(last) if last.content == content => last.len += len,
                _ if full => break,
                _ => extents.push(DeviceExtent { len, content }),
            }
        }
        Ok(extents)
    }
}

impl<D: BlockDevice> Faulty<D> {
    fn device_error(&self, doing: &'static str) -> DeviceError {
        let kind = match self.fault {
            Fault::Fail => DeviceErrorKind::Io,
            Fault::Busy => DeviceErrorKind::TimedOut,
        };
        DeviceError::new(kind, doing)
    }
}

impl<D: BlockDevice> BlockDevice for Faulty<D> {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn grow(&self, size: u64) -> Result<(), DeviceError> {
        if self.works() {
            return self.inner.grow(size);
        }
        Err(self.device_error("growing on purpose in vain"))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        if self.works() {
            return self.inner.read_at(offset, buf);
        }
        buf.fill(0xEE);
        Err(self.device_error("reading on purpose in vain").at(offset))
    }

    fn write_at(
        &self,
        offset: u64,
        data: &[u8],
        durability: Durability,
    ) -> Result<(), DeviceError> {
        if self.works() {
            return self.inner.write_at(offset, data, durability);
        }
        Err(self.device_error("writing on purpose in vain").at(offset))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.works() {
            return self.inner.flush();
        }
        Err(self.device_error("flushing on purpose in vain"))
    }

    fn trim(&self, range: Range<u64>, durability: Durability) -> Result<(), DeviceError> {
        if self.works() {
            return self.inner.trim(range, durability);
        }
        Err(self.device_error("trimming on purpose in vain"))
    }

    fn write_zeroes(
        &self,
        range: Range<u64>,
        space: Space,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        if self.works() {
            return self.inner.write_zeroes(range, space, durability);
        }
        Err(self.device_error("zeroing on purpose in vain"))
    }

    fn extents(&self, range: Range<u64>, limit: usize) -> Result<Vec<DeviceExtent>, DeviceError> {
        if self.works() {
            return self.inner.extents(range, limit);
        }
        Err(self.device_error("telling extents on purpose in vain"))
    }
}
