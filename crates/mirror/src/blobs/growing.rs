//! A blob on its way: one fills it, any number read along.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::digest::BlobDigest;
use super::key::BlobKey;
use super::looks::{Joined, Looks};

/// Why a blob did not become whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FillError {
    /// The upstream has no such blob.
    #[error("the upstream has no such blob")]
    NotFound,
    /// The upstream does not give it to whoever asked.
    #[error("the upstream does not give it (status {0})")]
    Denied(u16),
    /// The upstream does not answer, or not as it should.
    #[error("{0}")]
    Upstream(String),
    /// What came is not what was asked for.
    #[error("what came has the digest {0}")]
    Mismatch(BlobDigest),
    /// There is no room for it, whoever goes.
    #[error("there is no room for {0} bytes")]
    NoRoom(u64),
    /// The disk does not take it.
    #[error("writing it: {0}")]
    Disk(String),
    /// Whoever filled it is gone.
    #[error("the fill was given up")]
    GivenUp,
}

/// How a fill ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All bytes are there and verified.
    Whole,
    /// It stopped; what is there may be taken up later.
    Failed(Arc<FillError>),
}

/// How far a fill is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the whole, once the upstream has said it.
    pub size: Option<u64>,
    /// Bytes from the start that may be handed out.
    pub readable: u64,
    /// Set once, at the end.
    pub end: Option<End>,
}

/// A blob on its way.
#[derive(Debug)]
pub struct Growing {
    key: BlobKey,
    hold_back: u64,
    /// Another one if the fill had to begin anew; nobody has read of the one before.
    file: Mutex<Option<Arc<File>>>,
    progress: watch::Sender<Progress>,
    /// Where somebody looked before the fill was there.
    looks: Looks,
}

impl Growing {
    pub(super) fn new(key: BlobKey, hold_back: u64) -> Self {
        Self {
            key,
            hold_back,
            file: Mutex::default(),
            progress: watch::Sender::new(Progress::default()),
            looks: Looks::default(),
        }
    }

    /// Returns a blob that will not grow here: there is no room for it.
    pub(crate) fn without_room(key: &BlobKey, size: u64) -> Self {
        let growing = Self::new(key.clone(), 0);
        growing
            .progress
            .send_modify(|progress| progress.size = Some(size));
        growing.end(End::Failed(Arc::new(FillError::NoRoom(size))));
        growing
    }

    /// Returns which blob it is.
    #[must_use]
    pub const fn digest(&self) -> &BlobDigest {
        &self.key.digest
    }

    /// Returns which blob it is, and whose.
    #[must_use]
    pub const fn key(&self) -> &BlobKey {
        &self.key
    }

    /// Returns what tells how far it is.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Returns the file, once there is a size.
    #[must_use]
    pub fn file(&self) -> Option<Arc<File>> {
        self.file.lock().clone()
    }

    /// Returns who brings a range before the fill is there; `None` if no more ranges are kept.
    /// They are kept on the file system of `dir`.
    ///
    /// # Errors
    /// If there can be no file in `dir`.
    pub(crate) fn look(&self, dir: &Path, range: &Range<u64>) -> io::Result<Option<Joined>> {
        self.looks.join(dir, range)
    }

    /// Says how long the whole is, and where it grows.
    pub(super) fn open(&self, size: u64, file: Arc<File>) {
        *self.file.lock() = Some(file);
        self.progress
            .send_modify(|progress| progress.size = Some(size));
    }

    /// Says how much is in the file. The last `hold_back` bytes are kept back until all are
    /// verified: whoever got them would believe to have a good blob.
    pub(super) fn advance(&self, written: u64) {
        self.progress.send_if_modified(|progress| {
            let last = progress.size.unwrap_or(0).saturating_sub(self.hold_back);
            let readable = written.min(last);
            let more = readable > progress.readable;
            progress.readable = progress.readable.max(readable);
            more
        });
    }

    /// Returns whether anybody may have read of it.
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
