//! Ranges of a blob on its way that were fetched apart from it: once for all who look there.
//!
//! A lazy client reads a few ranges of a blob whose fill has not come that far, and the machines of
//! a host read the same ones. What was fetched for the first is in a file without a name, which
//! goes when the blob is whole or the process ends.

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

/// The ranges of a blob that were fetched apart.
#[derive(Debug, Default)]
pub(super) struct Looks(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    file: Option<Arc<File>>,
    looks: Vec<Arc<Look>>,
    bytes: u64,
}

/// A range that was fetched apart, or is on its way.
#[derive(Debug)]
pub(crate) struct Look {
    range: Range<u64>,
    file: Arc<File>,
    came: watch::Sender<Came>,
}

/// How far a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Came {
    /// The bytes before this place of the blob, from the start of the range on, are in the file.
    pub(crate) to: u64,
    /// No more will come.
    pub(crate) ended: bool,
}

/// Who brings the bytes of a range.
#[derive(Debug)]
pub(crate) enum Joined {
    /// Somebody else.
    Follow(Arc<Look>),
    /// Whoever gets this.
    Fetch(Arc<Look>),
}

impl Looks {
    /// Returns the range that has or will have all of `wanted`; `None` if no more is kept.
    pub(super) fn join(&self, dir: &Path, wanted: &Range<u64>) -> io::Result<Option<Joined>> {
        let mut state = self.0.lock();
        let has = |look: &&Arc<Look>| {
            look.range.start <= wanted.start && wanted.end <= look.range.end && !look.has_failed()
        };
        if let Some(look) = state.looks.iter().find(has) {
            return Ok(Some(Joined::Follow(Arc::clone(look))));
        }
        state.looks.retain(|look| !look.has_failed());
        let bytes = wanted.end.saturating_sub(wanted.start);
        if state.looks.len() >= RANGES_MAX || state.bytes.saturating_add(bytes) > BYTES_MAX {
            return Ok(None);
        }
        let file = match &state.file {
            Some(file) => Arc::clone(file),
            None => Arc::clone(state.file.insert(Arc::new(nameless(dir)?))),
        };
        // A range that failed is not given back: it may have taken its room on the disk.
        state.bytes += bytes;
        let came = Came {
            to: wanted.start,
            ended: false,
        };
        let look = Arc::new(Look {
            range: wanted.clone(),
            file,
            came: watch::Sender::new(came),
        });
        state.looks.push(Arc::clone(&look));
        Ok(Some(Joined::Fetch(look)))
    }
}

impl Look {
    /// Returns which part of the blob it is.
    pub(crate) const fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Returns where its bytes are, each at its place in the blob.
    pub(crate) const fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Returns what tells how far it is.
    pub(crate) fn watch(&self) -> watch::Receiver<Came> {
        self.came.subscribe()
    }

    /// Keeps what comes, until it ends: with all of it, or with a failure.
    pub(crate) async fn keep(self: Arc<Self>, mut pieces: mpsc::Receiver<io::Result<Bytes>>) {
        let end = EndedAtLast(self);
        while let Some(Ok(piece)) = pieces.recv().await {
            let (file, at) = (Arc::clone(&end.0.file), end.0.came.borrow().to);
            let length = piece.len() as u64;
            let write = spawn_blocking(move || file.write_all_at(&piece, at));
            match write.await {
                Ok(Ok(())) => end.0.came.send_modify(|came| came.to = at + length),
                Ok(Err(error)) => return log::warn!("a range is not kept: {error}"),
                Err(_) => return,
            }
        }
    }

    fn has_failed(&self) -> bool {
        let came = *self.came.borrow();
        came.ended && came.to < self.range.end
    }
}

/// Tells those who follow that no more comes, whatever the reason.
struct EndedAtLast(Arc<Look>);

impl Drop for EndedAtLast {
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

    fn fetch(looks: &Looks, dir: &Path, range: Range<u64>) -> Arc<Look> {
        match looks.join(dir, &range).unwrap() {
            Some(Joined::Fetch(look)) => look,
            other => panic!("{other:?}"),
        }
    }

    fn follows(looks: &Looks, dir: &Path, range: Range<u64>) -> bool {
        matches!(looks.join(dir, &range).unwrap(), Some(Joined::Follow(_)))
    }

    async fn bring(look: Arc<Look>, bytes: &'static [u8]) {
        let (pipe, pieces) = mpsc::channel(1);
        let keeping = tokio::spawn(look.keep(pieces));
        pipe.send(Ok(Bytes::from_static(bytes))).await.unwrap();
        drop(pipe);
        keeping.await.unwrap();
    }

    #[tokio::test]
    async fn a_range_is_fetched_once_and_again_if_that_failed() {
        let (dir, looks) = (tempfile::tempdir().unwrap(), Looks::default());
        let look = fetch(&looks, dir.path(), 10..15);
        assert!(follows(&looks, dir.path(), 11..15));
        bring(Arc::clone(&look), b"hel").await;
        assert_eq!(look.watch().borrow().to, 13);
        let again = fetch(&looks, dir.path(), 10..15);
        bring(Arc::clone(&again), b"hello").await;
        assert!(follows(&looks, dir.path(), 10..15));
        let mut read = [0; 5];
        again.file().read_exact_at(&mut read, 10).unwrap();
        assert_eq!(&read, b"hello");
        // What reaches beyond it is another one.
        let _wider = fetch(&looks, dir.path(), 10..16);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let (dir, looks) = (tempfile::tempdir().unwrap(), Looks::default());
        let _all = fetch(&looks, dir.path(), 0..BYTES_MAX);
        let more = BYTES_MAX..BYTES_MAX + 1;
        assert!(looks.join(dir.path(), &more).unwrap().is_none());
        assert!(follows(&looks, dir.path(), 5..9));
        let looks = Looks::default();
        for at in 0..RANGES_MAX as u64 {
            let _one = fetch(&looks, dir.path(), at..at + 1);
        }
        let most = RANGES_MAX as u64;
        assert!(looks.join(dir.path(), &(most..most + 1)).unwrap().is_none());
    }
}
