//! Least recently used. A scan defeats it: entries that are read once evict those that are read daily.

use super::queue::Queue;
use super::{Item, Policy, Slot};
use crate::Class;

/// Slots by their last use.
#[derive(Debug, Default)]
pub(super) struct Lru(Queue);

impl Policy for Lru {
    fn insert(&mut self, slot: Slot, _: Item) {
        self.0.push(slot);
    }

    fn hit(&mut self, slot: Slot, _: Class) {
        self.0.remove(slot);
        self.0.push(slot);
    }

    fn evict(&mut self) -> Option<Slot> {
        self.0.pop()
    }

    fn remove(&mut self, slot: Slot) {
        self.0.remove(slot);
    }
}
