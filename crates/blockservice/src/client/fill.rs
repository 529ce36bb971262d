//! Fills the local chunk store with chunks that were not read yet.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Duration;

use super::NicSource;
use super::source::AGAIN;
use crate::wire::Priority;
use chunks::index::{CHUNK_BYTES, ZEROS};
use chunks::{ChunkStore, Class};

/// Chunks that are fetched ahead at a time, at most: a batch of 2 MiB.
const BATCH: u32 = 16;

/// The result of filling the local store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    /// Chunks that were in the store already.
    pub present: u64,
    /// Chunks that were fetched.
    pub fetched: u64,
    /// Chunks that the service does not have, or that did not fit into the store.
    pub missing: u64,
}

impl NicSource {
    /// Fetches what the local store lacks, with lower priority than any read, until it is complete or
    /// `stop` is set. Waits while the service is not reachable; chunks that a silent or busy service did not
    /// send are requested again after all others.
    #[must_use]
    pub fn fill(&self, stop: &AtomicBool) -> Filled {
        let mut filled = Filled::default();
        let Some(local) = self.local() else {
            return filled;
        };
        let len = u32::try_from(self.remote().index().chunks().len()).unwrap_or(u32::MAX);
        let mut todo = VecDeque::new();
        todo.push_back(0..len);
        let mut pause = AGAIN;
        while let Some(mut range) = todo.pop_front() {
            if stop.load(Relaxed) {
                break;
            }
            while !range.is_empty() && !self.lacks(local, range.start) {
                filled.present += 1;
                range.start += 1;
            }
            if range.is_empty() {
                continue;
            }
            // Only for what is lacking: a store that has all of it needs no service. What a plan names comes
            // first, in its order.
            if !self.remote().is_there() || self.remote().is_streamed() {
                todo.push_front(range);
                sleep(AGAIN);
                continue;
            }
            let batch = self.batch(local, &range);
            if batch.end < range.end {
                todo.push_front(batch.end..range.end);
            }
            let unanswered = self.fetch_batch(local, batch, &mut filled);
            if unanswered.is_empty() {
                pause = AGAIN;
            } else {
                todo.extend(unanswered);
                rest(pause, stop);
                pause = (pause * 2).min(self.remote().patience().again.1);
            }
        }
        filled
    }

    fn lacks(&self, local: &dyn ChunkStore, number: u32) -> bool {
        let id = self.remote().index().chunk(number);
        id.is_some_and(|id| id != ZEROS && !local.contains(&id))
    }

    /// Returns the chunks at the start of `range` to ask for at once: all are lacking, and they take
    /// a part of the window that leaves the most of it to reads.
    fn batch(&self, local: &dyn ChunkStore, range: &Range<u32>) -> Range<u32> {
        let share = self.remote().window() / 4 / CHUNK_BYTES;
        let share = u32::try_from(share).unwrap_or(BATCH).clamp(1, BATCH);
        let most = range.start.saturating_add(share).min(range.end);
        let end = (range.start..most).find(|number| !self.lacks(local, *number));
        range.start..end.unwrap_or(most)
    }

    /// Fetches chunks, and returns those about which the service said nothing.
    fn fetch_batch(
        &self,
        local: &dyn ChunkStore,
        batch: Range<u32>,
        filled: &mut Filled,
    ) -> Vec<Range<u32>> {
        let remote = self.remote();
        let unanswered = || remote.counts().late + remote.counts().away;
        let before = unanswered();
        let patience = remote.patience().transfer;
        let found = remote.fetch(batch.clone(), Priority::Prefetch, patience);
        // Reads by others count, too: then a chunk that is not there is asked for once more.
        let was_silent = unanswered() != before || !remote.is_there();
        let mut again: Vec<Range<u32>> = Vec::new();
        for (number, chunk) in batch.zip(found) {
            let Some(id) = remote.index().chunk(number) else {
                continue;
            };
            match chunk.map(|chunk| local.put(&id, &chunk, Class::Prefetch)) {
                Some(Ok(_)) => filled.fetched += 1,
                Some(Err(error)) => {
                    log::debug!("a chunk was not kept: {error}");
                    filled.missing += 1;
                }
                None if was_silent => match again.last_mut() {
                    Some(range) if range.end == number => range.end += 1,
                    _ => again.push(number..number + 1),
                },
                None => filled.missing += 1,
            }
        }
        again
    }
}

/// Waits, but not when it is to stop.
fn rest(pause: Duration, stop: &AtomicBool) {
    let mut left = pause;
    while !left.is_zero() && !stop.load(Relaxed) {
        let step = left.min(AGAIN);
        sleep(step);
        left -= step;
    }
}
