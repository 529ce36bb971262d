//! How many requests of one peer are under way at a time.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};

/// A bound that grows when the server turns out to take more.
#[derive(Debug)]
pub(crate) struct Lane {
    turns: Semaphore,
    size: AtomicUsize,
}

impl Lane {
    pub(crate) fn new() -> Self {
        Self {
            turns: Semaphore::new(0),
            size: AtomicUsize::new(0),
        }
    }

    /// Returns how many turns there are, as far as is known.
    pub(crate) fn size(&self) -> usize {
        self.size.load(Ordering::Acquire)
    }

    /// Waits for a turn; `parallel` is how many there are, as far as is known now. `None` is never returned as long
    /// as the lane is open.
    pub(crate) async fn turn(&self, parallel: usize) -> Option<SemaphorePermit<'_>> {
        let before = self.size.fetch_max(parallel, Ordering::AcqRel);
        if parallel > before {
            self.turns.add_permits(parallel - before);
        }
        self.turns.acquire().await.ok()
    }
}
