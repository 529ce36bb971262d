//! A file in memory that is written to.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{BlockSource, FileId, FileKey, FileWriter, SourceError, SourceErrorKind};

/// One file of a fixed size in memory, which can be told to fail.
#[derive(Debug)]
pub struct MemFile {
    file: FileId,
    content: Mutex<Vec<u8>>,
    flushes: AtomicU64,
    fails: AtomicBool,
}

impl MemFile {
    /// Returns a file with this number and content.
    #[must_use]
    pub fn new(file: FileId, content: Vec<u8>) -> Self {
        Self {
            file,
            content: Mutex::new(content),
            flushes: AtomicU64::new(0),
            fails: AtomicBool::new(false),
        }
    }

    /// Has all changes and flushes fail from now on.
    pub fn fail(&self) {
        self.fails.store(true, Relaxed);
    }

    /// Returns what is in the file.
    #[must_use]
    pub fn content(&self) -> Vec<u8> {
        self.lock().clone()
    }

    /// Returns how often it was flushed.
    #[must_use]
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, file: FileId) -> Result<(), SourceError> {
        let doing = "writing to memory";
        match self.fails.load(Relaxed) {
            true => Err(SourceError::new(SourceErrorKind::Io, doing)),
            false if file != self.file => Err(SourceError::new(SourceErrorKind::NotFound, doing)),
            false => Ok(()),
        }
    }

    /// Changes a range.
    fn change(
        &self,
        file: FileId,
        range: Range<u64>,
        act: impl FnOnce(&mut [u8]),
    ) -> Result<(), SourceError> {
        self.check(file)?;
        let at = |place: u64| usize::try_from(place).unwrap_or(usize::MAX);
        let mut content = self.lock();
        let changed = content.get_mut(at(range.start)..at(range.end));
        let beyond = || SourceError::new(SourceErrorKind::Io, "writing beyond the end");
        act(changed.ok_or_else(beyond)?);
        Ok(())
    }
}

impl BlockSource for MemFile {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        if file.file != self.file {
            let kind = SourceErrorKind::NotFound;
            return Err(SourceError::new(kind, "reading from memory").about(file.file));
        }
        let content = self.lock();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = content.get(start..).unwrap_or_default();
        let len = buf.len().min(rest.len());
        buf[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }
}

impl FileWriter for MemFile {
    fn write_at(&self, file: FileId, offset: u64, data: &[u8]) -> Result<(), SourceError> {
        let range = offset..offset.saturating_add(data.len() as u64);
        self.change(file, range, |changed| changed.copy_from_slice(data))
    }

    fn clear(&self, file: FileId, range: Range<u64>) -> Result<(), SourceError> {
        self.change(file, range, |changed| changed.fill(0))
    }

    fn flush(&self, file: FileId) -> Result<(), SourceError> {
        self.check(file)?;
        self.flushes.fetch_add(1, Relaxed);
        Ok(())
    }
}
