//! A source of the service: fetches its chunks and verifies them.

mod batch;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::connection::Connection;
use super::driver::Driver;
use super::single_flight::SingleFlight;
use super::{RegisteredSource, Shared};
use crate::wire::Priority;
use batch::Batch;
use chunks::ChunkId;
use chunks::index::{Index, ZEROS};

/// The bytes of a chunk, verified.
pub(super) type Chunk = Arc<Vec<u8>>;

/// Chunks that are kept after they were read: a reader of 4 KiB comes back for the next 4 KiB.
/// 32 of them are 4 MiB.
const RECENT: usize = 32;

/// Statistics of reads of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteCounts {
    /// Chunks that were received and verified.
    pub chunks: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Chunks that the service does not have.
    pub absent: u64,
    /// Chunks that were not received in time, or that the service was too busy for.
    pub late: u64,
    /// Chunks that were not requested: there was no connection.
    pub away: u64,
    /// Chunks with wrong content.
    pub lies: u64,
    /// Requests that were repeated on the second connection.
    pub hedged: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) chunks: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) absent: AtomicU64,
    pub(super) late: AtomicU64,
    pub(super) away: AtomicU64,
    pub(super) lies: AtomicU64,
    pub(super) hedged: AtomicU64,
}

/// A source of the service, read over both connections.
#[derive(Clone, Debug)]
pub struct Remote(Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) driver: Arc<Driver>,
    pub(super) shared: Arc<Shared>,
    pub(super) connections: [Arc<Connection>; 2],
    pub(super) source: Arc<RegisteredSource>,
    index: Arc<Index>,
    pub(super) single_flight: SingleFlight<u32, Option<Chunk>>,
    recent: parking_lot::Mutex<Vec<(u32, Chunk)>>,
    pub(super) counters: Counters,
}

impl Remote {
    pub(super) fn new(
        driver: &Arc<Driver>,
        shared: &Arc<Shared>,
        connections: &[Arc<Connection>; 2],
        source: Arc<RegisteredSource>,
        index: Arc<Index>,
    ) -> Self {
        Self(Arc::new(Inner {
            driver: Arc::clone(driver),
            shared: Arc::clone(shared),
            connections: connections.clone(),
            source,
            index,
            single_flight: SingleFlight::new(),
            recent: parking_lot::Mutex::default(),
            counters: Counters::default(),
        }))
    }

    /// Returns the index of the source.
    #[must_use]
    pub fn index(&self) -> &Arc<Index> {
        &self.0.index
    }

    /// Returns its statistics.
    #[must_use]
    pub fn counts(&self) -> RemoteCounts {
        let c = &self.0.counters;
        RemoteCounts {
            chunks: c.chunks.load(Relaxed),
            bytes: c.bytes.load(Relaxed),
            absent: c.absent.load(Relaxed),
            late: c.late.load(Relaxed),
            away: c.away.load(Relaxed),
            lies: c.lies.load(Relaxed),
            hedged: c.hedged.load(Relaxed),
        }
    }

    /// Returns whether a read would be requested from the service now.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.0.is_there()
    }

    /// Returns the window of the service: the bytes that may be requested at a time.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.0.shared.window.load(Relaxed)
    }

    /// Fetches chunks that follow each other, as [`fetch_these`](Self::fetch_these) does.
    #[must_use]
    pub fn fetch(
        &self,
        chunks: Range<u32>,
        priority: Priority,
        patience: Duration,
    ) -> Vec<Option<Arc<Vec<u8>>>> {
        let chunks: Vec<_> = chunks.collect();
        self.fetch_these(&chunks, priority, patience)
    }

    /// Fetches chunks by their numbers, all at a time, and returns the bytes of each, verified, or
    /// `None` where the service had it not within `patience`.
    #[must_use]
    pub fn fetch_these(
        &self,
        chunks: &[u32],
        priority: Priority,
        patience: Duration,
    ) -> Vec<Option<Arc<Vec<u8>>>> {
        let deadline = Instant::now() + patience;
        let mut found: Vec<Option<Chunk>> = vec![None; chunks.len()];
        let mut ours = Batch::new(&self.0, priority);
        let mut asked = Vec::new();
        let mut theirs = Vec::new();
        for (at, number) in chunks.iter().enumerate() {
            match self.0.begin(*number) {
                Lookup::Have(chunk) => found[at] = chunk,
                Lookup::Lead(id) => {
                    ours.add(*number, id);
                    asked.push(at);
                }
                Lookup::Join(flight) => theirs.push((at, flight)),
            }
        }
        for (place, chunk) in ours.fetch(deadline) {
            found[asked[place]] = Some(chunk);
        }
        if !theirs.is_empty() {
            // A little longer than whoever fetches it takes to give up: it lands with nothing then.
            let end = deadline + Duration::from_secs(1);
            let completed = async {
                for (at, flight) in theirs {
                    let completed = timeout_at(end.into(), flight).await;
                    found[at] = completed.ok().and_then(Result::ok).flatten();
                }
            };
            let _or_gone = self.0.driver.block_on(completed);
        }
        found
    }

    /// Returns a chunk that was read not long ago.
    pub(super) fn recent(&self, number: u32) -> Option<Chunk> {
        self.0.recent(number)
    }

    /// Keeps a chunk that was read from elsewhere for a while.
    pub(super) fn remember(&self, number: u32, chunk: &Chunk) {
        self.0.remember(number, chunk);
    }

    /// Returns how long a demand read is waited for.
    pub(super) fn patience(&self) -> &super::Patience {
        &self.0.shared.config.patience
    }
}

/// Whether a chunk has to be fetched.
enum Lookup {
    /// No: it is known, or known to be absent.
    Have(Option<Chunk>),
    /// Yes: the caller leads its flight, and completes it.
    Lead(ChunkId),
    /// No: another thread fetches it.
    Join(oneshot::Receiver<Option<Chunk>>),
}

impl Inner {
    pub(super) fn is_there(&self) -> bool {
        !self.shared.silent.load(Relaxed)
            && self.connections.iter().any(|connection| connection.is_up())
    }

    fn recent(&self, number: u32) -> Option<Chunk> {
        let mut recent = self.recent.lock();
        let at = recent.iter().position(|(n, _)| *n == number)?;
        let found = recent.remove(at);
        let chunk = Arc::clone(&found.1);
        recent.push(found);
        Some(chunk)
    }

    pub(super) fn remember(&self, number: u32, chunk: &Chunk) {
        let mut recent = self.recent.lock();
        if recent.iter().any(|(n, _)| *n == number) {
            return;
        }
        if recent.len() == RECENT {
            recent.remove(0);
        }
        recent.push((number, Arc::clone(chunk)));
    }

    fn begin(&self, number: u32) -> Lookup {
        let Some(id) = self.index.chunk(number) else {
            return Lookup::Have(None);
        };
        if id == ZEROS {
            let place = self.index.place(number);
            return Lookup::Have(place.map(|place| Arc::new(vec![0; place.len as usize])));
        }
        if let Some(chunk) = self.recent(number) {
            return Lookup::Have(Some(chunk));
        }
        if let Some(flight) = self.single_flight.join(&number) {
            return Lookup::Join(flight);
        }
        // It may have landed between the look and the join.
        let recent = self.recent(number);
        if recent.is_some() {
            self.single_flight.complete(&number, &recent);
            return Lookup::Have(recent);
        }
        Lookup::Lead(id)
    }

    /// Counts a chunk with wrong content.
    pub(super) fn lied(&self) {
        let name = String::from_utf8_lossy(&self.source.name);
        log::warn!(
            "the block service sent wrong content for a chunk of {name}: it is read from another source"
        );
        self.counters.lies.fetch_add(1, Relaxed);
    }
}
