//! A source that the service has: its chunks, fetched and verified.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout, timeout_at};

use super::flights::Flights;
use super::lane::{Lane, Reply};
use super::{Registered, Shared};
use crate::ChunkId;
use crate::index::{Index, ZEROS};
use crate::wire::Priority;

/// The bytes of a chunk, verified.
pub(super) type Chunk = Arc<Vec<u8>>;

/// Chunks that are kept after they were read: a reader of 4 KiB comes back for the next 4 KiB.
/// 32 of them are 4 MiB.
const RECENT: usize = 32;

/// What became of the reads of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteCounts {
    /// Chunks that came, and were what they should be.
    pub chunks: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Chunks that the service had not.
    pub absent: u64,
    /// Chunks that were given up, by us or by a service that has too much to do.
    pub late: u64,
    /// Chunks that could not be asked for: there was no service.
    pub away: u64,
    /// Chunks that were something else than what was asked for.
    pub lies: u64,
    /// Reads that were asked again on the second connection.
    pub hedged: u64,
}

#[derive(Debug, Default)]
struct Counters {
    chunks: AtomicU64,
    bytes: AtomicU64,
    absent: AtomicU64,
    late: AtomicU64,
    away: AtomicU64,
    lies: AtomicU64,
    hedged: AtomicU64,
}

/// A source of the service, read over both connections.
#[derive(Clone, Debug)]
pub struct Remote(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    runtime: Handle,
    shared: Arc<Shared>,
    lanes: [Arc<Lane>; 2],
    source: Arc<Registered>,
    index: Arc<Index>,
    flights: Flights<u32, Option<Chunk>>,
    recent: parking_lot::Mutex<Vec<(u32, Chunk)>>,
    counters: Counters,
}

/// What one question came to.
enum Outcome {
    Chunk(Chunk),
    Absent,
    /// The service has too much to do.
    NotNow,
    /// Something else came.
    Lie,
    /// There was nobody to ask.
    Away,
}

impl Remote {
    pub(super) fn new(
        runtime: Handle,
        shared: &Arc<Shared>,
        lanes: &[Arc<Lane>; 2],
        source: Arc<Registered>,
        index: Arc<Index>,
    ) -> Self {
        Self(Arc::new(Inner {
            runtime,
            shared: Arc::clone(shared),
            lanes: lanes.clone(),
            source,
            index,
            flights: Flights::new(),
            recent: parking_lot::Mutex::default(),
            counters: Counters::default(),
        }))
    }

    /// Returns the index of the source.
    #[must_use]
    pub fn index(&self) -> &Arc<Index> {
        &self.0.index
    }

    /// Returns what became of the reads.
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

    /// Returns whether a read would be asked of the service now.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.0.is_there()
    }

    /// Returns the window of the service in bytes: what may be asked for at a time.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.0.shared.window.load(Relaxed)
    }

    /// Fetches chunks by their numbers, all at a time, and returns the bytes of each, verified, or
    /// `None` where the service had it not within `patience`.
    #[must_use]
    pub fn fetch(
        &self,
        chunks: Range<u32>,
        priority: Priority,
        patience: Duration,
    ) -> Vec<Option<Arc<Vec<u8>>>> {
        let deadline = Instant::now() + patience;
        let waits: Vec<_> = chunks
            .map(|number| self.start(number, priority, deadline))
            .collect();
        // A little longer than the fetch itself takes to give up: it lands with nothing then.
        let end = deadline + Duration::from_secs(1);
        let all = async {
            let mut found = Vec::with_capacity(waits.len());
            for wait in waits {
                found.push(match wait {
                    Wait::Done(chunk) => chunk,
                    Wait::For(flight) => timeout_at(end, flight)
                        .await
                        .ok()
                        .and_then(Result::ok)
                        .flatten(),
                });
            }
            found
        };
        self.0.runtime.block_on(all)
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

    fn start(&self, number: u32, priority: Priority, deadline: Instant) -> Wait {
        if let Some(chunk) = self.0.recent(number) {
            return Wait::Done(Some(chunk));
        }
        let (flight, first) = self.0.flights.join(&number);
        if first {
            let inner = Arc::clone(&self.0);
            self.0.runtime.spawn(async move {
                // It may have landed between the look and the join.
                let found = match inner.recent(number) {
                    Some(chunk) => Some(chunk),
                    None => inner.fetch(number, priority, deadline).await,
                };
                if let Some(chunk) = &found
                    && priority != Priority::Prefetch
                {
                    inner.remember(number, chunk);
                }
                inner.flights.land(&number, &found);
            });
        }
        Wait::For(flight)
    }
}

enum Wait {
    Done(Option<Chunk>),
    For(tokio::sync::oneshot::Receiver<Option<Chunk>>),
}

impl Inner {
    fn is_there(&self) -> bool {
        !self.shared.silent.load(Relaxed) && self.lanes.iter().any(|lane| lane.is_up())
    }

    fn recent(&self, number: u32) -> Option<Chunk> {
        let mut recent = self.recent.lock();
        let at = recent.iter().position(|(n, _)| *n == number)?;
        let found = recent.remove(at);
        let chunk = Arc::clone(&found.1);
        recent.push(found);
        Some(chunk)
    }

    fn remember(&self, number: u32, chunk: &Chunk) {
        let mut recent = self.recent.lock();
        if recent.iter().any(|(n, _)| *n == number) {
            return;
        }
        if recent.len() == RECENT {
            recent.remove(0);
        }
        recent.push((number, Arc::clone(chunk)));
    }

    /// Fetches a chunk, or gives it up at the deadline.
    async fn fetch(&self, number: u32, priority: Priority, deadline: Instant) -> Option<Chunk> {
        let counters = &self.counters;
        let id = self.index.chunk(number)?;
        if id == ZEROS {
            let len = self.index.place(number)?.len as usize;
            return Some(Arc::new(vec![0; len]));
        }
        if !self.is_there() {
            counters.away.fetch_add(1, Relaxed);
            return None;
        }
        let asked = Instant::now();
        let outcome = timeout_at(deadline, self.both(number, id, priority)).await;
        if asked.elapsed() > self.shared.config.patience.hedge {
            // The question that lost the race, or both.
            self.lanes.iter().for_each(|lane| lane.sweep());
        }
        let Ok(outcome) = outcome else {
            counters.late.fetch_add(1, Relaxed);
            if priority == Priority::Demand && !self.shared.silent.swap(true, Relaxed) {
                log::warn!("the block service does not answer: it is not waited for");
            }
            return None;
        };
        match outcome {
            Outcome::Chunk(chunk) => {
                counters.chunks.fetch_add(1, Relaxed);
                counters.bytes.fetch_add(chunk.len() as u64, Relaxed);
                return Some(chunk);
            }
            Outcome::Absent => counters.absent.fetch_add(1, Relaxed),
            Outcome::NotNow => counters.late.fetch_add(1, Relaxed),
            Outcome::Away => counters.away.fetch_add(1, Relaxed),
            Outcome::Lie => {
                let name = String::from_utf8_lossy(&self.source.name);
                log::warn!("the block service lied about a chunk of {name}: it is read elsewhere");
                counters.lies.fetch_add(1, Relaxed)
            }
        };
        None
    }

    /// Asks on one connection, and on the other one, too, if that takes long.
    async fn both(&self, number: u32, id: ChunkId, priority: Priority) -> Outcome {
        let [first, second] = match priority {
            Priority::Demand => [&self.lanes[0], &self.lanes[1]],
            Priority::Readahead | Priority::Prefetch => [&self.lanes[1], &self.lanes[0]],
        };
        let one = self.one(first, number, id, priority);
        tokio::pin!(one);
        if priority != Priority::Demand {
            return match one.await {
                Outcome::Away => self.one(second, number, id, priority).await,
                outcome => outcome,
            };
        }
        if let Ok(outcome) = timeout(self.shared.config.patience.hedge, &mut one).await {
            // A connection that is not there says so at once, and a lost one is no answer.
            return match outcome {
                Outcome::Away => self.one(second, number, id, priority).await,
                outcome => outcome,
            };
        }
        self.counters.hedged.fetch_add(1, Relaxed);
        let other = self.one(second, number, id, priority);
        tokio::pin!(other);
        let (outcome, first_is_left) = tokio::select! {
            outcome = &mut one => (outcome, false),
            outcome = &mut other => (outcome, true),
        };
        match (outcome, first_is_left) {
            (Outcome::Away, true) => one.await,
            (Outcome::Away, false) => other.await,
            (outcome, _) => outcome,
        }
    }

    async fn one(&self, lane: &Lane, number: u32, id: ChunkId, priority: Priority) -> Outcome {
        match lane.read(&self.source, number, priority).await {
            None => Outcome::Away,
            Some(Reply::No) => Outcome::Absent,
            Some(Reply::NotNow) => Outcome::NotNow,
            // Whatever is wrong with it, it is not the chunk.
            Some(Reply::Here(stored)) => match stored.open(&id) {
                Ok(raw) => Outcome::Chunk(Arc::new(raw)),
                Err(_) => Outcome::Lie,
            },
        }
    }
}
