//! Reading whole copies of files that the kernel does not pass through to them: programs, and all
//! files where it knows no passthrough.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use blocks::{BlockRange, BlockSource, FileKey, SourceError, WholeCopies};

use super::whole::SourceCopies;

/// A source whose files are read from their copies, as long as these can be read.
pub struct CopiedSource {
    copies: Arc<SourceCopies>,
    source: Arc<dyn BlockSource>,
}

impl std::fmt::Debug for CopiedSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopiedSource").finish_non_exhaustive()
    }
}

impl CopiedSource {
    /// Reads files of `source` from `copies` where these are.
    pub fn new(copies: Arc<SourceCopies>, source: Arc<dyn BlockSource>) -> Self {
        Self { copies, source }
    }

    /// Reads from a copy, or returns `None` if there is none. It is opened for each read: so nobody
    /// who wants to take it away waits for a mount that may never read again.
    fn read_copy(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> io::Result<Option<usize>> {
        let Some(copy) = self.copies.open_copy(file)? else {
            return Ok(None);
        };
        let len = file.version.size.saturating_sub(offset);
        let len = usize::try_from(len).map_or(buf.len(), |len| len.min(buf.len()));
        File::from(copy).read_exact_at(&mut buf[..len], offset)?;
        Ok(Some(len))
    }

    fn read_usable_copy(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Option<usize> {
        let read = self.read_copy(file, offset, buf);
        read.unwrap_or_else(|error| {
            let number = file.file.0;
            log::warn!("cannot read the copy of file {number}, reading its source: {error}");
            None
        })
    }
}

impl BlockSource for CopiedSource {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        match self.read_usable_copy(file, offset, buf) {
            Some(len) => Ok(len),
            None => self.source.read_at(file, offset, buf),
        }
    }

    fn read_once(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        match self.read_usable_copy(file, offset, buf) {
            Some(len) => Ok(len),
            None => self.source.read_once(file, offset, buf),
        }
    }

    fn advise(&self, file: &FileKey, ranges: &[BlockRange]) {
        self.source.advise(file, ranges);
    }
}
