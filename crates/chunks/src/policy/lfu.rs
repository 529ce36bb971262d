//! Least frequently used, with dynamic aging (Arlitt et al., 2000): the count of a new entry starts
//! from the count of the entry that was evicted last, so that entries that were popular long ago are
//! evicted, too.

use std::collections::BTreeSet;

use super::{Item, Policy, Slot, entry};
use crate::Class;

/// How much a slot is worth, and when it came to be worth that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    worth: u64,
    since: u64,
}

/// Slots by how often they were used.
#[derive(Debug, Default)]
pub(super) struct Lfu {
    order: BTreeSet<(Rank, Slot)>,
    /// Rank and number of uses, by slot.
    slots: Vec<(Rank, u64)>,
    /// The priority of the latest evicted entry.
    age: u64,
    clock: u64,
}

impl Lfu {
    fn place(&mut self, slot: Slot, uses: u64) {
        self.clock += 1;
        let rank = Rank {
            worth: self.age + uses,
            since: self.clock,
        };
        *entry(&mut self.slots, slot) = (rank, uses);
        self.order.insert((rank, slot));
    }
}

impl Policy for Lfu {
    fn insert(&mut self, slot: Slot, item: Item) {
        self.place(slot, u64::from(item.class == Class::Demand));
    }

    fn hit(&mut self, slot: Slot, _: Class) {
        let (rank, uses) = self.slots[slot.index()];
        self.order.remove(&(rank, slot));
        self.place(slot, uses + 1);
    }

    fn evict(&mut self) -> Option<Slot> {
        let (rank, slot) = self.order.pop_first()?;
        self.age = rank.worth;
        Some(slot)
    }

    fn remove(&mut self, slot: Slot) {
        let (rank, _) = self.slots[slot.index()];
        self.order.remove(&(rank, slot));
    }
}
