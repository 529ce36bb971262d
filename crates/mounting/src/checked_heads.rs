//! Disk images whose beginnings are those that were checked.
//!
//! The header of a qcow2 image names other files, and QEMU opens them with the rights of who started it. It was looked at when the
//! source was opened; whoever may write to the image, or to its directory, may change it before QEMU reads it, and there are ways
//! to do so that move no time of the file. So each byte of a beginning is compared with what was checked, in the buffer that the
//! reader gets.

use std::io;
use std::sync::Arc;

use blocks::{BlockRange, BlockSource, FileKey, Namespace, SourceError};
use localfs::{Prompt, SourceRoot};

/// A source of disk images, which does not return a byte of a beginning that is another than the checked one.
pub(crate) struct CheckedHeads<S> {
    source: S,
    root: Arc<SourceRoot>,
    names: Arc<dyn Namespace>,
}

impl<S> CheckedHeads<S> {
    /// Returns `source`, compared with what was found when `root` was opened. `names` has the names of its files.
    pub(crate) fn new(source: S, root: Arc<SourceRoot>, names: Arc<dyn Namespace>) -> Self {
        Self {
            source,
            root,
            names,
        }
    }

    /// Fails if what was read of a file from `offset` on is not what was checked.
    fn compare(&self, file: &FileKey, offset: u64, read: &[u8]) -> Result<(), SourceError> {
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        if at >= SourceRoot::HEAD || read.is_empty() {
            return Ok(());
        }
        let name = self.names.path(file.file);
        let Some(head) = name.and_then(|name| self.root.checked_head(&name)) else {
            return Ok(());
        };
        let end = at.saturating_add(read.len()).min(SourceRoot::HEAD);
        // A file that was shorter than that has grown since.
        if head.get(at..end) == Some(&read[..end - at]) {
            return Ok(());
        }
        let cause = io::Error::new(
            io::ErrorKind::InvalidData,
            "the image changed after its header was checked",
        );
        log::warn!("{}: {cause}", self.root.path().display());
        Err(SourceError::from_io("reading", cause).about(file.file))
    }

    fn compared(
        &self,
        file: &FileKey,
        offset: u64,
        buf: &[u8],
        read: Result<usize, SourceError>,
    ) -> Result<usize, SourceError> {
        let read = read?;
        self.compare(file, offset, &buf[..read])?;
        Ok(read)
    }
}

impl<S: BlockSource> BlockSource for CheckedHeads<S> {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let read = self.source.read_at(file, offset, buf);
        self.compared(file, offset, buf, read)
    }

    fn read_once(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let read = self.source.read_once(file, offset, buf);
        self.compared(file, offset, buf, read)
    }

    fn advise(&self, file: &FileKey, ranges: &[BlockRange]) {
        self.source.advise(file, ranges);
    }
}

impl<S: Prompt> Prompt for CheckedHeads<S> {
    fn read_now(
        &self,
        file: &FileKey,
        offset: u64,
        buf: &mut [u8],
    ) -> Option<Result<usize, SourceError>> {
        let read = self.source.read_now(file, offset, buf)?;
        Some(self.compared(file, offset, buf, read))
    }

    fn read_once_now(
        &self,
        file: &FileKey,
        offset: u64,
        buf: &mut [u8],
    ) -> Option<Result<usize, SourceError>> {
        let read = self.source.read_once_now(file, offset, buf)?;
        Some(self.compared(file, offset, buf, read))
    }
}

impl<S: std::fmt::Debug> std::fmt::Debug for CheckedHeads<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckedHeads")
            .field("source", &self.source)
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}
