//! A chunk store in memory, for tests, which can lose chunks and hold forged ones.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{ChunkId, ChunkStore, Class, PutError, PutOutcome, StoreStats, Stored};

/// Chunks in memory: a store that keeps what fits, and evicts nothing.
#[derive(Debug)]
pub struct MemStore {
    state: Mutex<MemState>,
    budget_bytes: u64,
}

#[derive(Debug, Default)]
struct MemState {
    chunks: HashMap<ChunkId, Stored>,
    pins: HashMap<ChunkId, u64>,
    stats: StoreStats,
}

impl MemState {
    fn stored_bytes(&self) -> u64 {
        let chunks = self.chunks.values();
        chunks.map(|chunk| chunk.bytes.len() as u64).sum()
    }
}

impl MemStore {
    /// Returns a store with room for so many bytes as stored.
    #[must_use]
    pub fn new(budget_bytes: u64) -> Self {
        Self {
            state: Mutex::default(),
            budget_bytes,
        }
    }

    /// Puts any bytes under any id, as a faulty disk would.
    pub fn forge(&self, id: ChunkId, stored: Stored) {
        self.state().chunks.insert(id, stored);
    }

    /// Forgets a chunk, as an eviction would.
    pub fn lose(&self, id: &ChunkId) {
        self.state().chunks.remove(id);
    }

    fn state(&self) -> MutexGuard<'_, MemState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemStore {
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

impl ChunkStore for MemStore {
    fn get(&self, id: &ChunkId, _: Class) -> Option<Stored> {
        let mut state = self.state();
        let found = state.chunks.get(id).cloned();
        match found {
            Some(_) => state.stats.hits += 1,
            None => state.stats.misses += 1,
        }
        found
    }

    fn contains(&self, id: &ChunkId) -> bool {
        self.state().chunks.contains_key(id)
    }

    fn put(&self, id: &ChunkId, raw: &[u8], _: Class) -> Result<PutOutcome, PutError> {
        let stored = Stored::pack(raw)?;
        let found = ChunkId::of(raw);
        if found != *id {
            return Err(PutError::WrongId { id: *id, found });
        }
        let mut state = self.state();
        if state.chunks.contains_key(id) {
            return Ok(PutOutcome::Present);
        }
        if state.stored_bytes() + stored.bytes.len() as u64 > self.budget_bytes {
            state.stats.refused += 1;
            return Err(PutError::Full);
        }
        state.chunks.insert(*id, stored);
        Ok(PutOutcome::Stored)
    }

    fn pin(&self, ids: &[ChunkId]) {
        let mut state = self.state();
        for id in ids {
            *state.pins.entry(*id).or_default() += 1;
        }
    }

    fn unpin(&self, ids: &[ChunkId]) {
        let mut state = self.state();
        for id in ids {
            if let Some(pins) = state.pins.get_mut(id) {
                *pins -= 1;
            }
        }
        state.pins.retain(|_, pins| *pins > 0);
    }

    fn stats(&self) -> StoreStats {
        let state = self.state();
        let pinned = state.pins.keys();
        StoreStats {
            chunks: state.chunks.len() as u64,
            stored_bytes: state.stored_bytes(),
            raw_bytes: state.chunks.values().map(|c| u64::from(c.raw_len)).sum(),
            budget_bytes: self.budget_bytes,
            pinned: pinned.filter(|id| state.chunks.contains_key(id)).count() as u64,
            ..state.stats
        }
    }
}

/// Works like the wrapped store for a number of gets and puts, then misses and refuses all.
#[derive(Debug)]
pub struct FaultyStore<S> {
    inner: S,
    calls_left: AtomicU64,
}

impl<S> FaultyStore<S> {
    /// Returns `inner` as a store that fails after `calls` gets and puts.
    pub const fn new(inner: S, calls: u64) -> Self {
        Self {
            inner,
            calls_left: AtomicU64::new(calls),
        }
    }

    fn works(&self) -> bool {
        let left = self
            .calls_left
            .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        left.is_ok()
    }
}

impl<S: ChunkStore> ChunkStore for FaultyStore<S> {
    fn get(&self, id: &ChunkId, class: Class) -> Option<Stored> {
        self.works().then(|| self.inner.get(id, class)).flatten()
    }

    fn contains(&self, id: &ChunkId) -> bool {
        self.inner.contains(id)
    }

    fn put(&self, id: &ChunkId, raw: &[u8], class: Class) -> Result<PutOutcome, PutError> {
        if self.works() {
            return self.inner.put(id, raw, class);
        }
        Err(PutError::Full)
    }

    fn pin(&self, ids: &[ChunkId]) {
        self.inner.pin(ids);
    }

    fn unpin(&self, ids: &[ChunkId]) {
        self.inner.unpin(ids);
    }

    fn stats(&self) -> StoreStats {
        self.inner.stats()
    }
}
