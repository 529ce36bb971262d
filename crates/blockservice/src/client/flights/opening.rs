//! Chunks that are in memory: opened by the thread that reads them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use fetch::Priority;

use super::kept::Found;
use super::{Chunk, Flights, Keepable};

impl Flights {
    /// Returns a chunk that is in memory, for a reader.
    pub(in crate::client) fn recent(&self, number: u32) -> Option<Chunk> {
        let found = self.state.lock().kept.get(number)?;
        self.open(number, &found, Priority::Demand)
    }

    /// Returns a chunk that is in memory, for the replay of a plan, which comes to it once.
    pub(in crate::client) fn peek(&self, number: u32) -> Option<Chunk> {
        let found = self.state.lock().kept.peek(number)?;
        self.open(number, &found, Priority::Plan)
    }

    /// Returns whether a chunk is in memory.
    pub(in crate::client) fn has(&self, number: u32) -> bool {
        self.state.lock().kept.peek(number).is_some()
    }

    /// Returns the content of a chunk, verified; `None`, which is logged, if it is wrong. Then it is
    /// removed from memory, and is requested again, or read from another source. What a program reads is kept longer than
    /// what the replay of a plan puts into the page cache.
    pub(super) fn open(&self, number: u32, found: &Found, reader: Priority) -> Option<Chunk> {
        let arrived = match found {
            Found::Opened(chunk) => return Some(Arc::clone(chunk)),
            Found::Packed(arrived) => arrived,
        };
        let _one_at_a_time = arrived.opening.lock();
        let opened = self.state.lock().kept.peek(number);
        if let Some(Found::Opened(chunk)) = opened {
            return Some(chunk);
        }
        let Ok(chunk) = arrived.content() else {
            self.lied(number, arrived);
            return None;
        };
        let mut state = self.state.lock();
        let opened = Arc::clone(&chunk);
        // Who fills a store keeps it there.
        match reader {
            _ if state.kept.peek(number).is_none() => {}
            Priority::Demand => state.kept.add_read(number, Found::Opened(opened)),
            Priority::Plan | Priority::Fill => state.kept.add_replayed(number, opened),
        }
        if arrived.is_first_time() {
            self.was_right();
            self.counters.chunks.fetch_add(1, Relaxed);
            self.counters.bytes.fetch_add(chunk.len() as u64, Relaxed);
            if let Some(keeper) = &state.keeper {
                // A disk that does not keep up keeps less.
                let _kept = keeper.try_send(Keepable::Arrived(Arc::clone(arrived)));
            }
        }
        Some(chunk)
    }

    /// Keeps a chunk in memory that was read from elsewhere. No stream need bring it.
    pub(in crate::client) fn remember(&self, number: u32, chunk: &Chunk) {
        let now = self.now();
        let mut state = self.state.lock();
        state
            .kept
            .add_read(number, Found::Opened(Arc::clone(chunk)));
        if !state.streams.is_empty() {
            state.engine.unneeded(now, &[number]);
            self.act(&mut state, now, None);
        }
    }
}
