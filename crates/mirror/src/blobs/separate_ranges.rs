//! Ranges that are fetched apart from the download of a blob, each piece once for all clients that read it.
//!
//! A lazy client reads a few ranges of a blob whose download has not reached them yet, and the machines
//! of a host read the same ones. What was fetched for the first is in an unlinked file, which is freed
//! when the blob is complete or the process ends.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use nix::fcntl::OFlag;
use parking_lot::Mutex;
use ranges::{Blob, Feed, Fetcher, Layout, Place, Priority, Receiver, Server, Span};
use tokio::sync::watch;

/// Bytes of a piece: what lazy clients read at least, whose blocks have as much.
const PIECE: u32 = 4 << 10;
/// Bytes of ranges that are kept for a blob; they count in no budget. More are not kept.
const BYTES_MAX: u64 = 64 << 20;

/// Who fetches the ranges of a blob, and from where.
#[derive(Clone)]
pub(crate) struct RangeSource {
    pub(crate) fetcher: Arc<Fetcher>,
    pub(crate) place: Arc<dyn Place>,
}

/// The separately fetched ranges of a blob.
#[derive(Debug, Default)]
pub(super) struct SeparateRanges(Mutex<Option<Separate>>);

#[derive(Debug)]
struct Separate {
    blob: Blob,
    pieces: Arc<Pieces>,
}

/// The pieces that were fetched.
#[derive(Debug)]
struct Pieces {
    layout: Layout,
    /// Each byte has its offset in the blob.
    file: Arc<File>,
    /// Those that are wanted or were, and whether they are in the file.
    here: Mutex<HashMap<u32, bool>>,
    /// Tells those who wait that more is in the file.
    came: watch::Sender<()>,
}

/// A range that is being fetched for a client. Others who read the same pieces get them from the same requests, and
/// dropping this stops what nobody else reads.
#[derive(Debug)]
pub(crate) struct SeparateRange {
    pieces: Arc<Pieces>,
    feed: Feed,
    came: watch::Receiver<()>,
}

impl SeparateRanges {
    /// Fetches what is not here of a range of a blob of `size` bytes, from the source that the first caller gives;
    /// `None` if too many bytes are kept.
    pub(super) fn look(
        &self,
        dir: &Path,
        size: u64,
        wanted: &Range<u64>,
        source: impl FnOnce() -> io::Result<RangeSource>,
    ) -> io::Result<Option<SeparateRange>> {
        let mut separate = self.0.lock();
        let separate = match &mut *separate {
            Some(separate) => separate,
            none => none.insert(Separate::new(dir, size, source()?)?),
        };
        let pieces = Arc::clone(&separate.pieces);
        let spans = pieces.layout.pieces_of(wanted);
        if !pieces.takes(spans.clone()) {
            return Ok(None);
        }
        // First, so that nothing comes unseen.
        let came = pieces.came.subscribe();
        let span = Span {
            blob: separate.blob.number(),
            pieces: spans,
        };
        let feed = separate.blob.fetcher().feed(vec![span], Priority::Demand);
        Ok(Some(SeparateRange { pieces, feed, came }))
    }
}

impl Separate {
    fn new(dir: &Path, size: u64, source: RangeSource) -> io::Result<Self> {
        let piece_bytes = PIECE;
        let pieces = Arc::new(Pieces {
            layout: Layout { size, piece_bytes },
            file: Arc::new(nameless(dir)?),
            here: Mutex::default(),
            came: watch::Sender::new(()),
        });
        let receiver = Arc::clone(&pieces) as Arc<_>;
        let places = vec![source.place];
        Ok(Self {
            blob: source.fetcher.add(pieces.layout, places, receiver),
            pieces,
        })
    }
}

impl Pieces {
    /// Notes that pieces are wanted; returns whether there is room for them.
    fn takes(&self, pieces: Range<u32>) -> bool {
        let mut here = self.here.lock();
        let new = pieces.clone().filter(|piece| !here.contains_key(piece));
        let all = here.len() as u64 + new.count() as u64;
        let has_room = all <= BYTES_MAX / u64::from(PIECE);
        if has_room {
            for piece in pieces {
                here.entry(piece).or_default();
            }
        }
        has_room
    }

    /// Returns up to which offset the bytes from `at` are in the file, and not beyond `end`.
    fn until(&self, at: u64, end: u64) -> u64 {
        let here = self.here.lock();
        let wanted = self.layout.pieces_of(&(at..end));
        let missing = wanted.clone().find(|piece| here.get(piece) != Some(&true));
        let known = missing.map_or(end, |piece| self.layout.bytes(&(piece..piece)).start);
        known.clamp(at, end)
    }
}

impl Receiver for Pieces {
    fn has(&self, piece: u32) -> bool {
        self.here.lock().get(&piece) == Some(&true)
    }

    fn publish(&self, piece: u32, bytes: &[u8], _from: Server) {
        let at = self.layout.bytes(&(piece..piece)).start;
        if let Err(error) = self.file.write_all_at(bytes, at) {
            return log::warn!("a range cannot be cached: {error}");
        }
        self.here.lock().insert(piece, true);
        self.came.send_replace(());
    }

    fn requested(&self) {}
}

impl SeparateRange {
    /// Returns its file, in which each byte has its offset in the blob.
    pub(crate) fn file(&self) -> &Arc<File> {
        &self.pieces.file
    }

    /// Returns up to which offset the bytes from `at` are in the file, and not beyond `end`.
    pub(crate) fn until(&self, at: u64, end: u64) -> u64 {
        self.pieces.until(at, end)
    }

    /// Waits until more may be here; returns whether more may come after that.
    pub(crate) async fn more(&mut self) -> bool {
        tokio::select! {
            changed = self.came.changed() => changed.is_ok(),
            () = self.feed.ended() => false,
        }
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
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use ranges::Reading;

    use super::*;

    /// Sends the low byte of each offset's piece.
    #[derive(Default)]
    struct Numbers {
        bytes: AtomicU64,
    }

    impl Place for Numbers {
        fn read<'a>(
            &'a self,
            range: Range<u64>,
            take: &'a mut (dyn FnMut(&[u8]) + Send),
        ) -> Reading<'a> {
            self.bytes.fetch_add(range.end - range.start, SeqCst);
            let number = |at| u8::try_from(at / u64::from(PIECE) % 256).unwrap();
            let body: Vec<_> = range.map(number).collect();
            Box::pin(async move {
                take(&body);
                Ok(())
            })
        }

        fn parallel(&self) -> usize {
            4
        }
    }

    const SIZE: u64 = 1 << 30;

    #[tokio::test]
    async fn each_byte_is_fetched_once_whatever_ranges_overlap() {
        let (dir, ranges) = (tempfile::tempdir().unwrap(), SeparateRanges::default());
        let (fetcher, place) = (Fetcher::start(1).unwrap(), Arc::<Numbers>::default());
        for wanted in [10_000..50_000, 20_000..30_000, 12_000..90_000] {
            let source = || {
                Ok(RangeSource {
                    fetcher: Arc::clone(&fetcher),
                    place: Arc::clone(&place) as Arc<_>,
                })
            };
            let look = ranges.look(dir.path(), SIZE, &wanted, source);
            let mut look = look.unwrap().unwrap();
            while look.until(wanted.start, wanted.end) < wanted.end {
                look.more().await;
            }
            let mut read = [0; 1];
            look.file()
                .read_exact_at(&mut read, wanted.end - 1)
                .unwrap();
            assert_eq!(u64::from(read[0]), (wanted.end - 1) / u64::from(PIECE));
        }
        let pieces = 90_000_u64.div_ceil(4096) - 10_000 / 4096;
        assert_eq!(place.bytes.load(SeqCst), pieces * 4096);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let (dir, ranges) = (tempfile::tempdir().unwrap(), SeparateRanges::default());
        let fetcher = Fetcher::start(1).unwrap();
        let look = |wanted: Range<u64>| {
            let source = || {
                Ok(RangeSource {
                    fetcher: Arc::clone(&fetcher),
                    place: Arc::<Numbers>::default(),
                })
            };
            let look = ranges.look(dir.path(), SIZE, &wanted, source);
            look.unwrap().is_some()
        };
        assert!(look(0..BYTES_MAX));
        assert!(!look(BYTES_MAX..BYTES_MAX + 1));
        assert!(look(5..9));
    }
}
