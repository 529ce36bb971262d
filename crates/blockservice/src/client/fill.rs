//! Fills the local chunk store with chunks that were not read yet.
//!
//! They are requested some at a time, and the next ones before the last ones have come: the engine makes few long requests
//! of them, behind all that somebody waits for.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Duration;

use super::NicSource;
use super::flights::Filling;
use super::source::AGAIN;
use crate::wire::{Priority, WANTS_MAX};
use chunks::index::{CHUNK_BYTES, ZEROS};
use chunks::{ChunkStore, Class};

/// Batches that are under way, at most.
const BATCHES: usize = 2;

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

/// Chunks that were requested together.
struct Batch<'a> {
    numbers: Vec<u32>,
    filling: Filling<'a>,
    /// What had failed when they were requested.
    before: Failures,
}

/// Chunks about which a service said nothing, and wrong ones.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Failures {
    unanswered: u64,
    lies: u64,
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
        let mut batches = VecDeque::new();
        let mut pause = AGAIN;
        while !stop.load(Relaxed) {
            self.skip_present(local, &mut todo, &mut filled);
            // What a plan names comes first, in its order. Only for what is lacking: a store that has all of it needs no
            // service.
            let may_ask = self.remote().is_there()
                && !self.remote().is_streamed()
                && (!self.remote().is_left_alone() || !self.remote().is_refused());
            if may_ask && batches.len() < BATCHES && !todo.is_empty() {
                batches.push_back(self.begin(self.next_batch(local, &mut todo, &mut filled)));
                continue;
            }
            let Some(batch) = batches.pop_front() else {
                if todo.is_empty() {
                    break;
                }
                sleep(AGAIN);
                continue;
            };
            while !stop.load(Relaxed) && !batch.filling.wait(AGAIN) {}
            let unanswered = self.end(local, batch, &mut filled);
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

    /// Takes what is here from the front of `todo`.
    fn skip_present(
        &self,
        local: &dyn ChunkStore,
        todo: &mut VecDeque<Range<u32>>,
        filled: &mut Filled,
    ) {
        while let Some(range) = todo.front_mut() {
            match range.clone().find(|number| self.lacks(local, *number)) {
                Some(lacking) => {
                    filled.present += u64::from(lacking - range.start);
                    range.start = lacking;
                    return;
                }
                None => {
                    filled.present += range.len() as u64;
                    todo.pop_front();
                }
            }
        }
    }

    /// Takes the chunks to ask for at once from the front of `todo`: all are lacking, and those of all batches take half
    /// of the window, which leaves the rest to reads.
    fn next_batch(
        &self,
        local: &dyn ChunkStore,
        todo: &mut VecDeque<Range<u32>>,
        filled: &mut Filled,
    ) -> Vec<u32> {
        let share = self.remote().window() / 2 / BATCHES as u64 / CHUNK_BYTES;
        let share = usize::try_from(share).unwrap_or(WANTS_MAX);
        let mut numbers = Vec::new();
        while numbers.len() < share.clamp(1, WANTS_MAX)
            && let Some(range) = todo.front_mut()
        {
            numbers.extend(range.next());
            self.skip_present(local, todo, filled);
        }
        numbers
    }

    fn begin(&self, numbers: Vec<u32>) -> Batch<'_> {
        Batch {
            before: self.failures(),
            filling: self.remote().fill(&numbers),
            numbers,
        }
    }

    fn failures(&self) -> Failures {
        let counts = self.remote().counts();
        Failures {
            unanswered: counts.late + counts.away,
            lies: counts.lies,
        }
    }

    /// Stores what came of a batch, and returns the chunks about which the service said nothing.
    fn end(
        &self,
        local: &dyn ChunkStore,
        batch: Batch<'_>,
        filled: &mut Filled,
    ) -> Vec<Range<u32>> {
        let remote = self.remote();
        let mut found = batch.filling.take(&batch.numbers);
        let failures = self.failures();
        // Reads by others count, too: then a chunk that is not there is asked for once more.
        let was_silent = failures.unanswered != batch.before.unanswered || !remote.is_there();
        if failures.lies != batch.before.lies && !was_silent {
            // What one service sent wrong, another one is asked for.
            let patience = remote.patience().transfer;
            found = remote.fetch_these(&batch.numbers, Priority::Prefetch, patience);
        }
        let mut again: Vec<Range<u32>> = Vec::new();
        for (number, chunk) in batch.numbers.into_iter().zip(found) {
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
