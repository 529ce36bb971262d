//! The budget of memory for requests and uploads in progress.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A budget of bytes in memory.
#[derive(Debug)]
pub(crate) struct Memory {
    most: u64,
    taken: AtomicU64,
}

impl Memory {
    pub(crate) const fn new(most: u64) -> Self {
        let taken = AtomicU64::new(0);
        Self { most, taken }
    }

    /// Takes bytes of the budget, and returns whether there were enough.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let add = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= self.most);
        self.taken.fetch_update(Relaxed, Relaxed, add).is_ok()
    }

    /// Returns bytes to the budget.
    pub(crate) fn give(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_never_more_than_there_is() {
        let memory = Memory::new(10);
        assert!(memory.take(4) && memory.take(6) && !memory.take(1));
        assert!(!memory.take(u64::MAX));
        memory.give(10);
        assert!(memory.take(10));
    }
}
