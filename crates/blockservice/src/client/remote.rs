//! A source of the service: its chunks, verified.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use blocks::ContentId;

use super::Chunk;
use super::flights::{Ahead, Filling, Flights, Keepable};
use crate::wire::Priority;
use chunks::ChunkStore;
use chunks::index::Index;

/// Statistics of reads of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteCounts {
    /// Chunks that were received and verified, each once.
    pub chunks: u64,
    /// Bytes of these, decompressed.
    pub bytes: u64,
    /// Wanted chunks that the service does not have.
    pub absent: u64,
    /// Wanted chunks that were not received in time, or that the service was too busy for.
    pub late: u64,
    /// Wanted chunks that were not requested: there was no connection.
    pub away: u64,
    /// Chunks with wrong content.
    pub lies: u64,
    /// Chunks that were requested on the other connection, too.
    pub hedged: u64,
    /// Chunks that were requested once more because a reader waited for them, and they were far behind in a long request.
    pub overtaken: u64,
    /// Wanted chunks that were on their way already.
    pub joined: u64,
    /// Chunks that were requested again after a failure.
    pub retried: u64,
    /// READs that were sent.
    pub requests: u64,
    /// Streams of a plan's chunks that were begun.
    pub streams: u64,
    /// Bytes of chunks as they came.
    pub wire_bytes: u64,
    /// Bytes of chunks that came twice, as they came.
    pub duplicate_bytes: u64,
}

/// What came from one of the services of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCounts {
    /// Where it listens.
    pub address: String,
    /// Whether reads are asked of it now.
    pub asked: bool,
    /// READs that were sent to it.
    pub requests: u64,
    /// Chunks that came from it, right or wrong.
    pub chunks: u64,
    /// Bytes of these, as they came.
    pub wire_bytes: u64,
    /// Chunks of these with wrong content.
    pub lies: u64,
    /// How often it fell silent, so that others were asked.
    pub stalls: u64,
}

/// A source of the service, read over all connections.
#[derive(Clone, Debug)]
pub struct Remote(Arc<Flights>);

impl Remote {
    pub(super) const fn new(flights: Arc<Flights>) -> Self {
        Self(flights)
    }

    /// Returns the index of the source.
    #[must_use]
    pub fn index(&self) -> &Arc<Index> {
        self.0.index()
    }

    /// Returns its statistics.
    #[must_use]
    pub fn counts(&self) -> RemoteCounts {
        let (c, engine) = (&self.0.counters, self.0.engine_counts());
        RemoteCounts {
            chunks: c.chunks.load(Relaxed),
            bytes: c.bytes.load(Relaxed),
            absent: c.absent.load(Relaxed),
            late: c.late.load(Relaxed),
            away: c.away.load(Relaxed),
            lies: c.lies.load(Relaxed),
            hedged: engine.hedges,
            overtaken: engine.overtakes,
            joined: engine.joins,
            retried: engine.retries,
            requests: engine.requests,
            streams: c.streams.load(Relaxed),
            wire_bytes: engine.received_bytes,
            duplicate_bytes: engine.duplicate_bytes,
        }
    }

    /// Returns what came from each service.
    #[must_use]
    pub fn services(&self) -> Vec<ServiceCounts> {
        self.0.services()
    }

    /// Has a service send what is lacking of a plan unasked, at once and whenever a stream of it breaks off.
    pub(super) fn expect(&self, plan: ContentId, order: &[u32], has: impl Fn(u32) -> bool) {
        self.0.expect(plan, order, has);
    }

    /// Fetches what the first program will be loaded with.
    pub(super) fn expect_programs(&self) {
        self.0.expect_programs();
    }

    /// Returns whether a read would be requested from the service now.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.0.is_there()
    }

    /// Returns whether it sent so many wrong chunks recently that readers with another source should avoid it.
    pub(super) fn is_refused(&self) -> bool {
        self.0.is_refused()
    }

    /// Returns whether nothing should be requested for which nobody waits, because of wrong chunks.
    pub(super) fn is_left_alone(&self) -> bool {
        self.0.is_left_alone()
    }

    /// Returns how long a read that another source can serve waits for the service.
    pub(super) fn patience_beside(&self) -> Duration {
        self.0.patience_beside()
    }

    /// Notes that a reader has waited for the service since then without success.
    pub(super) fn waited_in_vain(&self, since: Instant) {
        self.0.waited_in_vain(since);
    }

    /// Returns whether the chunks of a plan are on their way.
    pub(super) fn is_streamed(&self) -> bool {
        self.0.is_streamed()
    }

    /// Returns the window of the service: the bytes that may be requested at a time.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.0.shared().window.load(Relaxed)
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
    /// `None` where the service did not send it within `patience`. Returns early if the service is not
    /// reachable, or is silent.
    #[must_use]
    pub fn fetch_these(
        &self,
        chunks: &[u32],
        priority: Priority,
        patience: Duration,
    ) -> Vec<Option<Arc<Vec<u8>>>> {
        let priority = match priority {
            Priority::Demand => fetch::Priority::Demand,
            Priority::Readahead => fetch::Priority::Plan,
            Priority::Prefetch => fetch::Priority::Fill,
        };
        self.0.fetch(chunks, priority, Instant::now() + patience)
    }

    /// Fetches chunks before they are read, until the returned value is dropped.
    pub(super) fn ahead(&self, chunks: &[u32]) -> Ahead {
        self.0.ahead(chunks)
    }

    /// Requests chunks that the local store lacks, behind all else.
    pub(super) fn fill(&self, chunks: &[u32]) -> Filling<'_> {
        self.0.fill(chunks)
    }

    /// Notes that chunks are read, and fetches those that will probably be read next.
    pub(super) fn touched(&self, chunks: &[u32]) {
        self.0.touched(chunks);
    }

    /// Returns whether a chunk is in memory.
    pub(super) fn has(&self, number: u32) -> bool {
        self.0.has(number)
    }

    /// Returns a chunk that is in memory, for a reader.
    pub(super) fn recent(&self, number: u32) -> Option<Chunk> {
        self.0.recent(number)
    }

    /// Returns a chunk that is in memory, for the replay of a plan.
    pub(super) fn peek(&self, number: u32) -> Option<Chunk> {
        self.0.peek(number)
    }

    /// Keeps a chunk that was read from elsewhere for a while.
    pub(super) fn remember(&self, number: u32, chunk: &Chunk) {
        self.0.remember(number, chunk);
    }

    /// Requests nothing ahead from now on that `local` has.
    pub(super) fn spare(&self, local: Arc<dyn ChunkStore>) {
        self.0.spare(local);
    }

    /// Stores received chunks.
    pub(super) fn keep_with(&self, keeper: Option<SyncSender<Keepable>>) {
        self.0.keep_with(keeper);
    }

    /// Returns how patient the client is.
    pub(super) fn patience(&self) -> &super::Patience {
        &self.0.shared().config.patience
    }
}
