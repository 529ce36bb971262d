//! A blob that is being downloaded: one task writes, any number of clients read along.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::digest::BlobDigest;
use super::key::BlobKey;
use super::separate_ranges::{RangeSource, SeparateRange, SeparateRanges};

/// Why a download failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FillError {
    /// The registry does not have the blob.
    #[error("the upstream registry does not have the blob")]
    NotFound,
    /// The registry denies access.
    #[error("the upstream registry denies access (status {0})")]
    Denied(u16),
    /// The registry does not respond, or its response is invalid.
    #[error("{0}")]
    Upstream(String),
    /// The downloaded content has another digest.
    #[error("the downloaded content has the digest {0}")]
    Mismatch(BlobDigest),
    /// There is no room for it, even if others were evicted.
    #[error("the cache has no room for {0} bytes")]
    NoRoom(u64),
    /// It cannot be written to the disk.
    #[error("cannot write the blob to the cache: {0}")]
    Disk(String),
    /// Too many downloads wait already.
    #[error("too many downloads of blobs wait at the mirror: ask again later")]
    TooMany,
    /// The download was abandoned.
    #[error("the download of the blob was abandoned")]
    GivenUp,
}

/// The result of a download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The blob is complete and verified.
    Whole,
    /// It failed; a later download may resume it.
    Failed(Arc<FillError>),
}

/// The progress of a download.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The size of the blob, when it is known.
    pub size: Option<u64>,
    /// Bytes from the start that may be sent to clients.
    pub readable: u64,
    /// The result; set once, at the end.
    pub end: Option<End>,
}

/// A blob that is being downloaded.
#[derive(Debug)]
pub struct Growing {
    key: BlobKey,
    hold_back: u64,
    /// Replaced if the download had to start over; no client has read of the one before.
    file: Mutex<Option<Arc<File>>>,
    progress: watch::Sender<Progress>,
    /// Ranges that are fetched separately, ahead of the download.
    looks: SeparateRanges,
}

impl Growing {
    pub(super) fn new(key: BlobKey, hold_back: u64) -> Self {
        Self {
            key,
            hold_back,
            file: Mutex::default(),
            progress: watch::Sender::new(Progress::default()),
            looks: SeparateRanges::default(),
        }
    }

    /// Returns a blob that is not downloaded to the cache, which has no room for it.
    pub(crate) fn without_room(key: &BlobKey, size: u64) -> Self {
        let growing = Self::new(key.clone(), 0);
        growing
            .progress
            .send_modify(|progress| progress.size = Some(size));
        growing.end(End::Failed(Arc::new(FillError::NoRoom(size))));
        growing
    }

    /// Returns its digest.
    #[must_use]
    pub const fn digest(&self) -> &BlobDigest {
        &self.key.digest
    }

    /// Returns its key.
    #[must_use]
    pub const fn key(&self) -> &BlobKey {
        &self.key
    }

    /// Returns a receiver of its progress.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Returns its file, when the size is known.
    #[must_use]
    pub fn file(&self) -> Option<Arc<File>> {
        self.file.lock().clone()
    }

    /// Fetches a range separately, from `source` if nobody did of this blob before; `None` if too much is cached
    /// already. It is cached on the file system of `dir`.
    ///
    /// # Errors
    /// If no file can be created in `dir`, or there is no source.
    pub(crate) fn look(
        &self,
        dir: &Path,
        range: &Range<u64>,
        source: impl FnOnce() -> io::Result<RangeSource>,
    ) -> io::Result<Option<SeparateRange>> {
        let size = self.progress.borrow().size;
        match size {
            Some(size) => self.looks.look(dir, size, range, source),
            None => Ok(None),
        }
    }

    /// Announces the size of the blob, and its file.
    pub(super) fn open(&self, size: u64, file: Arc<File>) {
        *self.file.lock() = Some(file);
        self.progress
            .send_modify(|progress| progress.size = Some(size));
    }

    /// Announces how many bytes are in the file. The last `hold_back` bytes are held back until the
    /// blob is verified: a client that got them all would take it for valid.
    pub(super) fn advance(&self, written: u64) {
        self.progress.send_if_modified(|progress| {
            let last = progress.size.unwrap_or(0).saturating_sub(self.hold_back);
            let readable = written.min(last);
            let more = readable > progress.readable;
            progress.readable = progress.readable.max(readable);
            more
        });
    }

    /// Returns whether a client may have read of it.
    pub(super) fn is_released(&self) -> bool {
        self.progress.borrow().readable > 0
    }

    pub(super) fn end(&self, end: End) {
        self.progress.send_modify(|progress| {
            if progress.end.is_some() {
                return;
            }
            if end == End::Whole {
                progress.readable = progress.size.unwrap_or(progress.readable);
            }
            progress.end = Some(end);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::digest::Algorithm;
    use super::*;

    fn growing(size: u64, hold_back: u64) -> Growing {
        let growing = Growing::new(
            BlobKey::open(BlobDigest::of(Algorithm::Sha256, b"")),
            hold_back,
        );
        let file = Arc::new(tempfile::tempfile().unwrap());
        growing.open(size, file);
        growing
    }

    #[test]
    fn the_tail_is_held_back_until_it_is_verified() {
        let growing = growing(100, 10);
        let watch = growing.watch();
        growing.advance(50);
        assert_eq!(watch.borrow().readable, 50);
        growing.advance(100);
        assert_eq!(watch.borrow().readable, 90);
        growing.end(End::Whole);
        assert_eq!(watch.borrow().readable, 100);
        growing.end(End::Failed(Arc::new(FillError::GivenUp)));
        assert_eq!(watch.borrow().end, Some(End::Whole));
    }

    #[test]
    fn a_small_blob_is_not_handed_out_before_it_is_verified() {
        let growing = growing(9, 10);
        growing.advance(9);
        assert!(!growing.is_released());
        growing.end(End::Failed(Arc::new(FillError::NotFound)));
        assert!(!growing.is_released());
    }
}
