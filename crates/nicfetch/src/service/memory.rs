//! What everything that is on its way may take together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A budget of bytes.
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

    /// Takes bytes, and returns whether they were there.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let add = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= self.most);
        self.taken.fetch_update(Relaxed, Relaxed, add).is_ok()
    }

    /// Gives back what was taken.
    pub(crate) fn give(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Relaxed);
    }
}

/// Bytes that are taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    memory: Arc<Memory>,
    bytes: u64,
}

impl Held {
    /// Holds nothing yet.
    pub(crate) fn none_of(memory: &Arc<Memory>) -> Self {
        let memory = Arc::clone(memory);
        Self { memory, bytes: 0 }
    }

    /// Takes more, and returns whether that was there.
    pub(crate) fn grow(&mut self, bytes: u64) -> bool {
        let there = self.memory.take(bytes);
        if there {
            self.bytes += bytes;
        }
        there
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.give(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_given_back_and_never_more_than_there_is() {
        let memory = Arc::new(Memory::new(10));
        let mut held = Held::none_of(&memory);
        assert!(held.grow(4) && held.grow(6) && !held.grow(1));
        assert!(!memory.take(1) && !memory.take(u64::MAX));
        drop(held);
        assert!(memory.take(10));
    }
}
