//! A queue of slots, from which any slot can be removed.

use super::{Slot, entry};

/// The neighbours of a slot in its queue.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    newer: Option<Slot>,
    older: Option<Slot>,
}

/// Slots in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Queue {
    nodes: Vec<Node>,
    newest: Option<Slot>,
    oldest: Option<Slot>,
}

impl Queue {
    /// Lets a slot that is not in the queue in.
    pub(super) fn push(&mut self, slot: Slot) {
        let older = self.newest.replace(slot);
        *entry(&mut self.nodes, slot) = Node { newer: None, older };
        match older {
            Some(older) => self.nodes[older.index()].newer = Some(slot),
            None => self.oldest = Some(slot),
        }
    }

    /// Removes a slot that is in the queue.
    pub(super) fn remove(&mut self, slot: Slot) {
        let Node { newer, older } = self.nodes[slot.index()];
        match newer {
            Some(newer) => self.nodes[newer.index()].older = older,
            None => self.newest = older,
        }
        match older {
            Some(older) => self.nodes[older.index()].newer = newer,
            None => self.oldest = newer,
        }
    }

    /// Removes and returns the oldest slot.
    pub(super) fn pop(&mut self) -> Option<Slot> {
        let slot = self.oldest?;
        self.remove(slot);
        Some(slot)
    }

    /// Returns the slot that came first.
    pub(super) const fn oldest(&self) -> Option<Slot> {
        self.oldest
    }

    /// Returns the slot that came after one that is in the queue.
    pub(super) fn newer(&self, slot: Slot) -> Option<Slot> {
        self.nodes[slot.index()].newer
    }
}
