//! Which pieces of which ticket did not end yet.

use std::collections::{BTreeMap, BTreeSet};

use crate::want::{Key, Priority, Ticket};

/// One ticket with an unfinished piece.
#[derive(Debug)]
pub(crate) struct Waiting<K> {
    pub(crate) priority: Priority,
    pub(crate) keys: BTreeSet<K>,
}

/// All tickets with an unfinished piece.
#[derive(Debug)]
pub(crate) struct Tickets<K> {
    tickets: BTreeMap<Ticket, Waiting<K>>,
    waiting: usize,
    newest: u64,
}

impl<K: Key> Tickets<K> {
    pub(crate) const fn new() -> Self {
        Self {
            tickets: BTreeMap::new(),
            waiting: 0,
            newest: 0,
        }
    }

    pub(crate) fn name(&mut self) -> Ticket {
        self.newest += 1;
        Ticket(self.newest)
    }

    pub(crate) fn open(&mut self, ticket: Ticket, priority: Priority, keys: BTreeSet<K>) {
        if !keys.is_empty() {
            self.waiting += keys.len();
            self.tickets.insert(ticket, Waiting { priority, keys });
        }
    }

    /// Ends one piece of a ticket; returns whether the ticket is through.
    pub(crate) fn end_one(&mut self, ticket: Ticket, key: &K) -> bool {
        let Some(waiting) = self.tickets.get_mut(&ticket) else {
            return false;
        };
        if waiting.keys.remove(key) {
            self.waiting -= 1;
        }
        let through = waiting.keys.is_empty();
        if through {
            self.tickets.remove(&ticket);
        }
        through
    }

    /// Closes a ticket; returns the pieces that did not end.
    pub(crate) fn close(&mut self, ticket: Ticket) -> BTreeSet<K> {
        let Some(waiting) = self.tickets.remove(&ticket) else {
            return BTreeSet::new();
        };
        self.waiting -= waiting.keys.len();
        waiting.keys
    }

    pub(crate) fn priority(&self, ticket: Ticket) -> Option<Priority> {
        self.tickets.get(&ticket).map(|waiting| waiting.priority)
    }

    pub(crate) fn len(&self) -> usize {
        self.tickets.len()
    }

    /// How many pieces did not end, those of each ticket counted.
    pub(crate) const fn waiting(&self) -> usize {
        self.waiting
    }
}
