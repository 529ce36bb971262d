//! Ranges that are fetched apart from the download of a blob, once for all clients that read them.
//!
//! A lazy client reads a few ranges of a blob whose download has not reached them yet, and the machines
//! of a host read the same ones. What was fetched for the first is in an unlinked file, which is freed
//! when the blob is complete or the process ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use hyper::body::Bytes;
use nix::fcntl::OFlag;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;

/// Bytes of ranges that are kept for a blob; they count in no budget. More are not kept.
const BYTES_MAX: u64 = 64 << 20;
/// Ranges that are kept for a blob.
const RANGES_MAX: usize = 1024;

/// The separately fetched ranges of a blob.
#[derive(Debug, Default)]
pub(super) struct SeparateRanges(Mutex<RangesState>);

#[derive(Debug, Default)]
struct RangesState {
    file: Option<Arc<File>>,
    ranges: Vec<Arc<SeparateRange>>,
    bytes: u64,
}

/// A separately fetched range, complete or not.
#[derive(Debug)]
pub(crate) struct SeparateRange {
    range: Range<u64>,
    file: Arc<File>,
    came: watch::Sender<RangeProgress>,
}

/// The progress of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangeProgress {
    /// The offset in the blob up to which the range is in the file.
    pub(crate) to: u64,
    /// The fetch has ended.
    pub(crate) ended: bool,
}

/// Whether the caller fetches a range.
#[derive(Debug)]
pub(crate) enum Joined {
    /// Another task does.
    Follow(Arc<SeparateRange>),
    /// The caller does.
    Fetch(Arc<SeparateRange>),
}

impl SeparateRanges {
    /// Returns a range that covers `wanted`, complete or not; `None` if too many are cached.
    pub(super) fn join(&self, dir: &Path, wanted: &Range<u64>) -> io::Result<Option<Joined>> {
        let mut state = self.0.lock();
        let has = |separate: &&Arc<SeparateRange>| {
            separate.range.start <= wanted.start
                && wanted.end <= separate.range.end
                && !separate.has_failed()
        };
        if let Some(separate) = state.ranges.iter().find(has) {
            return Ok(Some(Joined::Follow(Arc::clone(separate))));
        }
        state.ranges.retain(|separate| !separate.has_failed());
        let bytes = wanted.end.saturating_sub(wanted.start);
        if state.ranges.len() >= RANGES_MAX || state.bytes.saturating_add(bytes) > BYTES_MAX {
            return Ok(None);
        }
        let file = match &state.file {
            Some(file) => Arc::clone(file),
            None => Arc::clone(state.file.insert(Arc::new(nameless(dir)?))),
        };
        // A range that failed is not given back: it may have taken its room on the disk.
        state.bytes += bytes;
        let came = RangeProgress {
            to: wanted.start,
            ended: false,
        };
        let separate = Arc::new(SeparateRange {
            range: wanted.clone(),
            file,
            came: watch::Sender::new(came),
        });
        state.ranges.push(Arc::clone(&separate));
        Ok(Some(Joined::Fetch(separate)))
    }
}

impl SeparateRange {
    /// Returns the range of the blob.
    pub(crate) const fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Returns its file, in which each byte has its offset in the blob.
    pub(crate) const fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Returns a receiver of its progress.
    pub(crate) fn watch(&self) -> watch::Receiver<RangeProgress> {
        self.came.subscribe()
    }

    /// Writes the pieces of a channel, until the range is complete or the fetch fails.
    pub(crate) async fn keep(self: Arc<Self>, mut pieces: mpsc::Receiver<io::Result<Bytes>>) {
        let end = EndOnDrop(self);
        while let Some(Ok(piece)) = pieces.recv().await {
            let (file, at) = (Arc::clone(&end.0.file), end.0.came.borrow().to);
            let length = piece.len() as u64;
            let write = spawn_blocking(move || file.write_all_at(&piece, at));
            match write.await {
                Ok(Ok(())) => end.0.came.send_modify(|came| came.to = at + length),
                Ok(Err(error)) => return log::warn!("a range cannot be cached: {error}"),
                Err(_) => return,
            }
        }
    }

    fn has_failed(&self) -> bool {
        let came = *self.came.borrow();
        came.ended && came.to < self.range.end
    }
}

/// Announces the end of the fetch to the clients that wait.
struct EndOnDrop(Arc<SeparateRange>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.came.send_modify(|came| came.ended = true);
    }
}

fn nameless(dir: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(OFlag::O_TMPFILE.bits())
        .open(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fetch(ranges: &SeparateRanges, dir: &Path, range: Range<u64>) -> Arc<SeparateRange> {
        match ranges.join(dir, &range).unwrap() {
            Some(Joined::Fetch(separate)) => separate,
            other => panic!("{other:?}"),
        }
    }

    fn follows(ranges: &SeparateRanges, dir: &Path, range: Range<u64>) -> bool {
        matches!(ranges.join(dir, &range).unwrap(), Some(Joined::Follow(_)))
    }

    async fn bring(separate: Arc<SeparateRange>, bytes: &'static [u8]) {
        let (pipe, pieces) = mpsc::channel(1);
        let keeping = tokio::spawn(separate.keep(pieces));
        pipe.send(Ok(Bytes::from_static(bytes))).await.unwrap();
        drop(pipe);
        keeping.await.unwrap();
    }

    #[tokio::test]
    async fn a_range_is_fetched_once_and_again_if_that_failed() {
        let (dir, ranges) = (tempfile::tempdir().unwrap(), SeparateRanges::default());
        let separate = fetch(&ranges, dir.path(), 10..15);
        assert!(follows(&ranges, dir.path(), 11..15));
        bring(Arc::clone(&separate), b"hel").await;
        assert_eq!(separate.watch().borrow().to, 13);
        let again = fetch(&ranges, dir.path(), 10..15);
        bring(Arc::clone(&again), b"hello").await;
        assert!(follows(&ranges, dir.path(), 10..15));
        let mut read = [0; 5];
        again.file().read_exact_at(&mut read, 10).unwrap();
        assert_eq!(&read, b"hello");
        // What reaches beyond it is another one.
        let _wider = fetch(&ranges, dir.path(), 10..16);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let (dir, ranges) = (tempfile::tempdir().unwrap(), SeparateRanges::default());
        let _all = fetch(&ranges, dir.path(), 0..BYTES_MAX);
        let more = BYTES_MAX..BYTES_MAX + 1;
        assert!(ranges.join(dir.path(), &more).unwrap().is_none());
        assert!(follows(&ranges, dir.path(), 5..9));
        let ranges = SeparateRanges::default();
        for at in 0..RANGES_MAX as u64 {
            let _one = fetch(&ranges, dir.path(), at..at + 1);
        }
        let most = RANGES_MAX as u64;
        assert!(
            ranges
                .join(dir.path(), &(most..most + 1))
                .unwrap()
                .is_none()
        );
    }
}
