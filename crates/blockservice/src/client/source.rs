//! A source without a copy on the local disk: names come from the index, content from the local chunk
//! store, the service or the origin. Each chunk is verified by its id, so none of these is trusted.
//!
//! A thread that [must not wait](prompt::now) gets data that is in the memory of this process or in the page
//! cache, and the number of bytes for which it would have to wait.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread::sleep;
use std::time::{Duration, Instant};

use blocks::prompt::{self, Patience};
use blocks::{BlockSource, FileKey, SourceError, SourceErrorKind};

use super::Chunk;
use super::Remote;
use super::flights::Keepable;
use super::keep::StoreThread;
use super::start::ServedPlan;
use crate::plan_order;
use crate::wire::Priority;
use chunks::index::{CHUNK_BYTES, ChunkLocation, ZEROS};
use chunks::{CHUNK_MAX, ChunkId, ChunkStore, Class};

/// Between two attempts to fetch a chunk that no source had.
pub(super) const AGAIN: Duration = Duration::from_millis(100);

/// The directory that the source was made of, used when the service is not reachable. It may be wrong,
/// or change: its data is verified.
pub trait Origin: Send + Sync {
    /// Reads `len` bytes at `offset` of the file at `path`, fewer at its end. Returns within a bounded
    /// time.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read(&self, path: &[u8], offset: u64, len: usize) -> io::Result<Vec<u8>>;
}

/// Where the chunks of a source came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceCounts {
    /// Chunks out of the local store.
    pub local: u64,
    /// Chunks from the service; those that were fetched ahead are not among them.
    pub service: u64,
    /// Chunks from the origin.
    pub origin: u64,
    /// Chunks of the origin that were something else.
    pub origin_wrong: u64,
    /// Reads that failed, because no source returned the data in time.
    pub failed: u64,
}

#[derive(Debug, Default)]
struct Counters {
    local: AtomicU64,
    service: AtomicU64,
    origin: AtomicU64,
    origin_wrong: AtomicU64,
    failed: AtomicU64,
}

/// The source of a mount without a local copy.
pub struct NicSource {
    remote: Remote,
    local: OnceLock<Arc<dyn ChunkStore>>,
    /// Puts what came into the local store.
    keeping: OnceLock<StoreThread>,
    origin: Option<Box<dyn Origin>>,
    deadline: Duration,
    counters: Counters,
}

impl std::fmt::Debug for NicSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NicSource")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl NicSource {
    /// Returns the source. A read takes its chunks from `local`, where received chunks are stored; then
    /// from the service; then from `origin`; and retries, until it fails after `deadline`.
    #[must_use]
    pub fn new(
        remote: Remote,
        local: Option<Arc<dyn ChunkStore>>,
        origin: Option<Box<dyn Origin>>,
        deadline: Duration,
    ) -> Self {
        let source = Self {
            remote,
            local: OnceLock::new(),
            keeping: OnceLock::new(),
            origin,
            deadline,
            counters: Counters::default(),
        };
        if let Some(local) = local {
            source.keep_in(local);
        }
        source
    }

    /// Stores received chunks in `local` from now on, and reads from there. Without effect if there is a
    /// local store already.
    pub fn keep_in(&self, local: Arc<dyn ChunkStore>) {
        if self.local.set(Arc::clone(&local)).is_err() {
            return;
        }
        self.remote.spare(Arc::clone(&local));
        let keeping = self.keeping.get_or_init(|| StoreThread::start(local));
        self.remote.keep_with(keeping.queue());
    }

    /// Returns the remote source.
    #[must_use]
    pub const fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Has a service send unasked what is lacking of a plan here: one request brings it, and one more the rest of it
    /// after a connection was lost. Without a service that can, or when nothing is lacking, nothing is requested.
    pub fn expect(&self, plan: &ServedPlan) {
        let order = plan_order(self.remote.index(), &plan.plan);
        self.remote
            .expect(plan.id, &order, |number| self.has(number));
    }

    /// Has what nearly each program is loaded with fetched from a far service, where no plan says what is read.
    pub fn expect_programs(&self) {
        self.remote.expect_programs();
    }

    /// Returns the store that keeps what came, if there is one.
    pub(super) fn local(&self) -> Option<&dyn ChunkStore> {
        self.local.get().map(|local| &**local)
    }

    /// Returns where chunks came from.
    #[must_use]
    pub fn counts(&self) -> SourceCounts {
        let c = &self.counters;
        SourceCounts {
            local: c.local.load(Relaxed),
            service: c.service.load(Relaxed),
            origin: c.origin.load(Relaxed),
            origin_wrong: c.origin_wrong.load(Relaxed),
            failed: c.failed.load(Relaxed),
        }
    }

    /// Returns a chunk out of memory or of the local store.
    fn near(&self, number: u32, id: &ChunkId, priority: Priority) -> Option<Chunk> {
        let kept = match priority {
            Priority::Demand => self.remote.recent(number),
            Priority::Readahead | Priority::Prefetch => self.remote.peek(number),
        };
        if kept.is_some() {
            return kept;
        }
        if *id == ZEROS {
            let len = self.remote.index().place(number)?.len;
            return Some(Arc::new(vec![0; len as usize]));
        }
        let local = self.local.get()?;
        let stored = match prompt::patience() {
            Patience::None => local.get_now(id, Class::Demand)?,
            Patience::Bounded | Patience::Endless => local.get(id, Class::Demand)?,
        };
        // What was damaged is fetched anew.
        let chunk = Arc::new(stored.open(id).ok()?);
        self.remote.remember(number, &chunk);
        self.counters.local.fetch_add(1, Relaxed);
        Some(chunk)
    }

    /// Returns a chunk from the origin, if it is still what it was.
    fn origins(&self, number: u32, id: &ChunkId) -> Option<Chunk> {
        let origin = self.origin.as_ref()?;
        let index = self.remote.index();
        let ChunkLocation { file, offset, len } = index.place(number)?;
        let path = index.tree().path(file)?;
        let raw = match origin.read(&path, offset, len as usize) {
            Ok(raw) => raw,
            Err(error) => {
                log::debug!(
                    "the origin has not {}: {error}",
                    String::from_utf8_lossy(&path)
                );
                return None;
            }
        };
        if raw.len() > CHUNK_MAX || ChunkId::of(&raw) != *id {
            self.counters.origin_wrong.fetch_add(1, Relaxed);
            return None;
        }
        self.counters.origin.fetch_add(1, Relaxed);
        let chunk = Arc::new(raw);
        self.remote.remember(number, &chunk);
        if let Some(keeping) = self.keeping.get() {
            keeping.keep(Keepable::Raw(*id, Arc::clone(&chunk), Class::Demand));
        }
        Some(chunk)
    }

    /// Returns whether a chunk is on this machine.
    pub(super) fn has(&self, number: u32) -> bool {
        let id = self.remote.index().chunk(number);
        let local = self.local.get();
        self.remote.has(number)
            || id.is_some_and(|id| id == ZEROS || local.is_some_and(|local| local.contains(&id)))
    }

    /// Returns chunks out of memory, of the local store or of the service, if it has them now. Who goes through a plan
    /// gets them from the origin while the service is silent or not believed: programs would have to.
    pub(super) fn at_hand(&self, numbers: &[u32], priority: Priority) -> Vec<Option<Chunk>> {
        let id = |number: u32| self.remote.index().chunk(number);
        let near = |number: &u32| self.near(*number, &id(*number)?, priority);
        let mut found: Vec<_> = numbers.iter().map(near).collect();
        if prompt::patience() != Patience::None {
            match (&self.origin, priority) {
                (Some(_), Priority::Readahead) => self.follow(&mut found, numbers),
                (Some(_), Priority::Demand) => {
                    let patience = self.remote.patience_beside();
                    self.fetch_lacking(&mut found, numbers, priority, patience);
                }
                // Ends early when the service is away or silent.
                _ => {
                    let patience = self.remote.patience().transfer;
                    self.fetch_lacking(&mut found, numbers, priority, patience);
                }
            }
        }
        found
    }

    /// Has chunks of a plan come, and reads from the origin what does not because the service is away, silent or not
    /// believed. As long as something comes, it is waited for: the origin is slower.
    fn follow(&self, found: &mut [Option<Chunk>], numbers: &[u32]) {
        let end = Instant::now() + self.remote.patience().transfer;
        loop {
            let (began, patience) = (Instant::now(), self.remote.patience_beside());
            self.fetch_lacking(found, numbers, Priority::Readahead, patience);
            if found.iter().all(Option::is_some) {
                return;
            }
            // What ended before its time does not come: the service does not have it, or is not there.
            if began.elapsed() < patience || patience.is_zero() || Instant::now() >= end {
                break;
            }
        }
        for (number, place) in numbers.iter().zip(found) {
            if place.is_none() {
                let id = self.remote.index().chunk(*number);
                *place = id.and_then(|id| self.origins(*number, &id));
            }
        }
    }

    /// Asks the service for what was not found.
    fn fetch_lacking(
        &self,
        found: &mut [Option<Chunk>],
        numbers: &[u32],
        priority: Priority,
        patience: Duration,
    ) {
        let lacking = found
            .iter()
            .zip(numbers)
            .filter(|(found, _)| found.is_none());
        let lacking: Vec<_> = lacking.map(|(_, number)| *number).collect();
        if lacking.is_empty() || patience.is_zero() {
            return;
        }
        let began = Instant::now();
        let fetched = self.remote.fetch_these(&lacking, priority, patience);
        if fetched.iter().all(Option::is_none) {
            self.remote.waited_in_vain(began);
        }
        let places = found.iter_mut().filter(|found| found.is_none());
        for (place, chunk) in places.zip(fetched) {
            let came = u64::from(chunk.is_some());
            self.counters.service.fetch_add(came, Relaxed);
            *place = chunk;
        }
    }

    /// Returns the chunks, from wherever they can be had, or why they cannot.
    fn chunks(&self, numbers: std::ops::Range<u32>) -> Result<Vec<Chunk>, SourceErrorKind> {
        let end = Instant::now() + self.deadline;
        let index = self.remote.index();
        let ids = &index.chunks()[numbers.start as usize..numbers.end as usize];
        let numbers: Vec<_> = numbers.collect();
        self.remote.touched(&numbers);
        let near = |(number, id): (&u32, &ChunkId)| self.near(*number, id, Priority::Demand);
        let mut have: Vec<Option<Chunk>> = numbers.iter().zip(ids).map(near).collect();
        let mut asked_origin = false;
        loop {
            if have.iter().all(Option::is_some) {
                return Ok(have.into_iter().flatten().collect());
            }
            if prompt::patience() == Patience::None {
                return Err(SourceErrorKind::WouldWait);
            }
            // The service is waited for as long as it does something, unless there is somebody else to ask.
            let left = end.saturating_duration_since(Instant::now());
            let patience = match self.origin {
                Some(_) if !asked_origin => self.remote.patience_beside(),
                _ => left.max(self.remote.patience().give_up),
            };
            self.fetch_lacking(&mut have, &numbers, Priority::Demand, patience);
            for ((number, id), place) in numbers.iter().zip(ids).zip(&mut have) {
                if place.is_none() {
                    *place = self.origins(*number, id);
                }
            }
            asked_origin = true;
            if have.iter().all(Option::is_some) {
                continue;
            }
            if Instant::now() >= end {
                self.counters.failed.fetch_add(1, Relaxed);
                return Err(SourceErrorKind::TimedOut);
            }
            sleep(AGAIN);
        }
    }
}

impl Drop for NicSource {
    fn drop(&mut self) {
        // The thread that keeps chunks ends with the last way to it.
        self.remote.keep_with(None);
    }
}

impl BlockSource for NicSource {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let index = self.remote.index();
        let doing = "reading from the block service";
        let Some(now) = index.tree().key(file.file) else {
            return Err(SourceError::new(SourceErrorKind::NotFound, doing).about(file.file));
        };
        if now != *file {
            let now = now.version;
            return Err(SourceError::new(SourceErrorKind::Stale { now }, doing).about(file.file));
        }
        let numbers = index.covering(file.file, offset, buf.len() as u64);
        if numbers.is_empty() {
            return Ok(0);
        }
        let chunks = self.chunks(numbers);
        let chunks = chunks.map_err(|why| SourceError::new(why, doing).about(file.file))?;
        let mut skip = usize::try_from(offset % CHUNK_BYTES).unwrap_or(0);
        let mut done = 0;
        for chunk in chunks {
            let len = chunk.len().saturating_sub(skip).min(buf.len() - done);
            buf[done..done + len].copy_from_slice(&chunk[skip..skip + len]);
            done += len;
            skip = 0;
        }
        Ok(done)
    }
}
