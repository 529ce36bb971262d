//! Changing content.

use std::ops::Range;

use blocks::{FileId, FileWriter};

use super::{FileSystem, FsError, Request};

impl FileSystem {
    /// Writes all of `data` to a file from `offset` on.
    ///
    /// # Errors
    /// If nothing can be changed, the range is not within the file, or the source fails.
    pub fn write(&self, file: FileId, offset: u64, data: &[u8]) -> Result<(), FsError> {
        self.serve(Request::Write, || {
            let end = offset.checked_add(data.len() as u64);
            let writer = self.writer_within(file, end)?;
            Ok(writer.write_at(file, offset, data)?)
        })
    }

    /// Makes all of a range of a file read as zeros, and frees its space if that is possible.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn clear(&self, file: FileId, range: Range<u64>) -> Result<(), FsError> {
        self.serve(Request::Write, || {
            let writer = self.writer_within(file, Some(range.end))?;
            Ok(writer.clear(file, range)?)
        })
    }

    /// Makes the changes of a file durable. Where nothing can be changed there is nothing to do.
    ///
    /// # Errors
    /// If the source fails.
    pub fn flush(&self, file: FileId) -> Result<(), FsError> {
        self.serve(Request::Other, || match &self.writer {
            Some(writer) => Ok(writer.flush(file)?),
            None => Ok(()),
        })
    }

    /// Returns what writes to a file as far as `end`.
    fn writer_within(&self, file: FileId, end: Option<u64>) -> Result<&dyn FileWriter, FsError> {
        let writer = self.writer.as_deref().ok_or(FsError::ReadOnly)?;
        let size = self.current_attr(file)?.size;
        match end.is_some_and(|end| end <= size) {
            true => Ok(writer),
            false => Err(FsError::TooLarge),
        }
    }
}
