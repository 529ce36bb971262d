//! The task that downloads a blob: the leader of a singleflight.

use std::sync::Arc;
use std::time::SystemTime;

use hyper::body::Bytes;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::growing::{End, FillError, Growing};
use super::part::{Finish, Part};
use super::{BlobCache, Stored, seconds};

/// The right and the duty to download a blob. Dropping it abandons the download, and its readers
/// get an error.
#[derive(Debug)]
pub struct Lead {
    cache: Arc<BlobCache>,
    growing: Arc<Growing>,
    /// Bytes that are kept for a later download if this one ends now.
    kept: u64,
    end: Option<End>,
}

/// The result of verifying a downloaded blob.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The blob is whole.
    Good,
    /// Its digest is wrong, and no client has read of it: try again.
    TryAgain,
}

impl Lead {
    /// `kept` are the bytes of an earlier download.
    pub(super) fn new(cache: Arc<BlobCache>, growing: Arc<Growing>, kept: u64) -> Self {
        Self {
            cache,
            growing,
            kept,
            end: None,
        }
    }

    /// Returns the growing blob that readers read.
    #[must_use]
    pub fn growing(&self) -> Arc<Growing> {
        Arc::clone(&self.growing)
    }

    /// Opens the incomplete blob. Reads and hashes all of it.
    pub(crate) async fn open(&mut self) -> Result<Part, FillError> {
        let dir = self.cache.parts_dir(self.growing.key().realm);
        let digest = self.growing.digest().clone();
        let part = on_disk(move || Part::open(&dir, &digest)).await?;
        self.kept = part.len();
        Ok(part)
    }

    /// Reserves room for a blob of this size, and lets readers start.
    pub(crate) async fn begin(
        &mut self,
        mut part: Part,
        size: u64,
        etag: Option<String>,
    ) -> Result<Part, FillError> {
        let (cache, growing) = (Arc::clone(&self.cache), Arc::clone(&self.growing));
        let begun = spawn_blocking(move || {
            if !cache.reserve(growing.key(), size) {
                part.remove();
                return Err(FillError::NoRoom(size));
            }
            part.begin(size, etag).map_err(disk)?;
            growing.open(size, part.file());
            growing.advance(part.len());
            Ok(part)
        });
        let begun = begun.await.unwrap_or(Err(FillError::GivenUp));
        if let Err(FillError::NoRoom(_)) = begun {
            self.kept = 0;
        }
        begun
    }

    /// Writes the pieces of a channel in the background, until its sender is dropped.
    pub(crate) fn write(
        &self,
        mut part: Part,
        mut chunks: mpsc::Receiver<Bytes>,
    ) -> tokio::task::JoinHandle<(Part, Result<(), FillError>)> {
        let growing = Arc::clone(&self.growing);
        spawn_blocking(move || {
            while let Some(chunk) = chunks.blocking_recv() {
                if let Err(error) = part.append(&chunk) {
                    return (part, Err(disk(error)));
                }
                growing.advance(part.len());
            }
            (part, Ok(()))
        })
    }

    /// Records how many bytes would be kept.
    pub(crate) fn keep(&mut self, part: &Part) {
        self.kept = part.len();
    }

    /// Verifies a blob that has all of its bytes.
    pub(crate) async fn finish(&mut self, mut part: Part) -> Result<Verdict, FillError> {
        let to = self.cache.whole_path(self.growing.key());
        let size = part.len();
        let finished = on_disk(move || part.finish(&to)).await?;
        self.kept = 0;
        match finished {
            Finish::Whole => {
                let used = seconds(SystemTime::now());
                let stored = Stored::new(size, used, used);
                let mut state = self.cache.state.lock();
                state.keep(self.growing.key(), stored);
                state.growing.remove(self.growing.key());
                drop(state);
                self.end = Some(End::Whole);
                Ok(Verdict::Good)
            }
            Finish::Mismatch(found) if self.growing.is_released() => {
                log::error!("{}: the upstream sent {found}", self.growing.digest());
                Err(FillError::Mismatch(found))
            }
            Finish::Mismatch(found) => {
                log::warn!("{}: the upstream sent {found}", self.growing.digest());
                Ok(Verdict::TryAgain)
            }
        }
    }

    /// Ends the download of an incomplete blob; its bytes are kept for the next one.
    pub(crate) fn fail(mut self, error: FillError) {
        self.end = Some(End::Failed(Arc::new(error)));
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        let key = self.growing.key();
        let mut state = self.cache.state.lock();
        if self.end != Some(End::Whole) {
            state.growing.remove(key);
            if self.kept > 0 {
                state.parts.insert(key.clone(), self.kept);
            }
        }
        drop(state);
        // After the index, so that whoever is woken by the end finds the next state of it.
        let given_up = || End::Failed(Arc::new(FillError::GivenUp));
        self.growing.end(self.end.take().unwrap_or_else(given_up));
    }
}

async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, FillError> {
    let done = spawn_blocking(work).await;
    done.map_err(|_| FillError::GivenUp)?.map_err(disk)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn disk(error: std::io::Error) -> FillError {
    FillError::Disk(error.to_string())
}
