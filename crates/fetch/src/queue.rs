//! Pieces that wait to be requested, by priority and age.

use std::collections::BTreeMap;

use crate::want::{Key, Priority};

/// A position in a queue; smaller is earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position(i64);

/// One queue of each priority.
#[derive(Debug)]
pub(crate) struct Queues<K> {
    queues: [Queue<K>; 3],
    newest: i64,
    oldest: i64,
}

#[derive(Debug)]
struct Queue<K> {
    keys: BTreeMap<Position, (K, u32)>,
    bytes: u64,
}

impl<K: Key> Queues<K> {
    pub(crate) fn new() -> Self {
        let queue = || Queue {
            keys: BTreeMap::new(),
            bytes: 0,
        };
        Self {
            queues: [queue(), queue(), queue()],
            newest: 0,
            oldest: 0,
        }
    }

    /// Queues a piece behind all others of its priority.
    pub(crate) fn push_back(&mut self, priority: Priority, key: K, bytes: u32) -> Position {
        self.newest += 1;
        self.insert(priority, Position(self.newest), key, bytes)
    }

    /// Queues a piece that was already requested before, ahead of all others of its priority.
    pub(crate) fn push_front(&mut self, priority: Priority, key: K, bytes: u32) -> Position {
        self.oldest -= 1;
        self.insert(priority, Position(self.oldest), key, bytes)
    }

    fn insert(&mut self, priority: Priority, position: Position, key: K, bytes: u32) -> Position {
        let queue = &mut self.queues[priority as usize];
        queue.keys.insert(position, (key, bytes));
        queue.bytes += u64::from(bytes);
        position
    }

    pub(crate) fn remove(&mut self, priority: Priority, position: Position) {
        let queue = &mut self.queues[priority as usize];
        if let Some((_, bytes)) = queue.keys.remove(&position) {
            queue.bytes -= u64::from(bytes);
        }
    }

    /// Returns what waits at a priority, the earliest first.
    pub(crate) fn at(&self, priority: Priority) -> impl Iterator<Item = K> {
        self.queues[priority as usize]
            .keys
            .values()
            .map(|(key, _)| *key)
    }

    /// Returns the bytes that wait at a priority.
    pub(crate) fn bytes(&self, priority: Priority) -> u64 {
        self.queues[priority as usize].bytes
    }
}
