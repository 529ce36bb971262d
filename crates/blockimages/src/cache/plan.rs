//! What a start is known to read, fetched before all else: of all layers of an image together, in the order
//! in which it is read, and with several requests in flight, since most are short.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::fill::Patience;
use super::{BlobCache, CachedBlob};

/// Requests in flight: what keeps a line of 25 Mbit/s and 20 ms busy with ranges of 4 KiB, and one of
/// 1 Gbit/s with ranges of 200 KiB.
const WORKERS: usize = 16;
/// Of these, the ones that go on while a reader waits for something else: what they request delays it.
const WORKERS_BESIDE_READERS: usize = 4;
/// Bytes of one request.
const PIECE_BYTES: u64 = 256 << 10;
/// How many pieces back one is looked for that a range continues: a start reads a few files in turn.
const PIECES_BACK: usize = 32;
/// How long a worker waits for readers before it looks again.
const DEMAND_TICK: Duration = Duration::from_millis(2);

/// A plan that is being fetched; dropping this stops it.
#[derive(Debug)]
pub struct PlanFetcher {
    task: Arc<Task>,
    workers: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Task {
    pieces: Vec<Piece>,
    next: AtomicUsize,
    stop: AtomicBool,
    /// Something could not be fetched.
    left_out: AtomicBool,
}

/// Chunks of a blob that are requested together.
#[derive(Clone, Debug)]
struct Piece {
    blob: Arc<CachedBlob>,
    chunks: Range<u32>,
}

impl PlanFetcher {
    /// Starts fetching ranges of blobs of one cache.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(plan: &[(Arc<CachedBlob>, Range<u64>)]) -> io::Result<Self> {
        let pieces = pieces(plan);
        let workers = pieces.len().min(WORKERS);
        // It goes with the last worker.
        let planned = pieces.first();
        let planned = planned.map(|piece| Arc::new(Planned::new(piece.blob.cache())));
        let task = Arc::new(Task {
            pieces,
            next: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            left_out: AtomicBool::new(false),
        });
        let mut fetcher = Self {
            task,
            workers: Vec::new(),
        };
        for number in 0..workers {
            let task = Arc::clone(&fetcher.task);
            let builder = thread::Builder::new().name("blob-plan".to_owned());
            let planned = planned.clone();
            let worker = builder.spawn(move || {
                task.work(number);
                drop(planned);
            })?;
            fetcher.workers.push(worker);
        }
        Ok(fetcher)
    }

    /// Returns whether nothing more comes.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.workers.iter().all(JoinHandle::is_finished)
    }

    /// Returns whether all came that has.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self.task.left_out.load(Ordering::Acquire)
    }
}

impl Drop for PlanFetcher {
    fn drop(&mut self) {
        self.task.stop.store(true, Ordering::Release);
        for worker in self.workers.drain(..) {
            if worker.join().is_err() {
                log::error!("a thread that fetches a plan panicked");
            }
        }
    }
}

impl Task {
    fn work(&self, number: usize) {
        while let Some(piece) = self.pieces.get(self.next.fetch_add(1, Ordering::AcqRel)) {
            let mut patience = Patience::default();
            let mut at = piece.chunks.start;
            while at < piece.chunks.end {
                if self.stop.load(Ordering::Acquire) {
                    return;
                }
                if number >= WORKERS_BESIDE_READERS && piece.blob.is_waited_for() {
                    thread::sleep(DEMAND_TICK);
                    continue;
                }
                let Some(seat) = piece.blob.take(at) else {
                    at += 1;
                    continue;
                };
                let deadline = Instant::now() + piece.blob.config().request_deadline;
                let Err(error) = piece.blob.fetch(seat, piece.chunks.end, deadline) else {
                    at += 1;
                    continue;
                };
                log::debug!("fetching a plan: {error}");
                if !patience.wait(&self.stop) {
                    self.left_out.store(true, Ordering::Release);
                    log::warn!("a part of a plan is not prefetched: {error}");
                    break;
                }
            }
        }
    }
}

/// Cuts a plan into requests: each chunk once, with those that follow it on the blob.
fn pieces(plan: &[(Arc<CachedBlob>, Range<u64>)]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut seen: HashMap<*const CachedBlob, HashSet<u32>> = HashMap::new();
    for (blob, range) in plan {
        let seen = seen.entry(Arc::as_ptr(blob)).or_default();
        let most = PIECE_BYTES / u64::from(blob.config().chunk_bytes);
        for chunk in blob.chunks_of(range) {
            if !seen.insert(chunk) {
                continue;
            }
            let back = pieces.len().saturating_sub(PIECES_BACK);
            let continued = pieces[back..].iter_mut().rev().find(|piece| {
                piece.chunks.end == chunk
                    && Arc::ptr_eq(&piece.blob, blob)
                    && u64::from(chunk - piece.chunks.start) < most
            });
            match continued {
                Some(piece) => piece.chunks.end += 1,
                None => pieces.push(Piece {
                    blob: Arc::clone(blob),
                    chunks: chunk..chunk + 1,
                }),
            }
        }
    }
    pieces
}

/// A plan that is being fetched: everything else in the background waits for it.
#[derive(Debug)]
struct Planned(Arc<BlobCache>);

impl Planned {
    fn new(cache: &Arc<BlobCache>) -> Self {
        cache.plans.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(cache))
    }
}

impl Drop for Planned {
    fn drop(&mut self) {
        self.0.plans.fetch_sub(1, Ordering::AcqRel);
    }
}
