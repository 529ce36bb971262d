//! SIEVE (Zhang et al., NSDI 2024): a queue whose entries never move. A hand goes from the oldest to
//! the newest entry, clears the mark of those that were used since its last visit, and evicts the first
//! that was not.

use super::queue::Queue;
use super::{Item, Policy, Slot, entry};
use crate::Class;

/// Slots by their age, and a hand among them.
#[derive(Debug, Default)]
pub(super) struct Sieve {
    queue: Queue,
    used: Vec<bool>,
    /// Where to look next; at the oldest, if nowhere.
    hand: Option<Slot>,
}

impl Policy for Sieve {
    fn insert(&mut self, slot: Slot, _: Item) {
        self.queue.push(slot);
        *entry(&mut self.used, slot) = false;
    }

    fn hit(&mut self, slot: Slot, _: Class) {
        self.used[slot.index()] = true;
    }

    fn evict(&mut self) -> Option<Slot> {
        loop {
            let slot = self.hand.or(self.queue.oldest())?;
            if !std::mem::take(&mut self.used[slot.index()]) {
                self.remove(slot);
                return Some(slot);
            }
            self.hand = self.queue.newer(slot);
        }
    }

    fn remove(&mut self, slot: Slot) {
        if self.hand == Some(slot) {
            self.hand = self.queue.newer(slot);
        }
        self.queue.remove(slot);
    }
}
