//! Alarms in the order of time; each thing has one at most.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Alarms of things that `T` names.
#[derive(Debug)]
pub(crate) struct Timers<T> {
    order: BTreeSet<(Duration, T)>,
    at: BTreeMap<T, Duration>,
}

impl<T: Copy + Ord> Timers<T> {
    pub(crate) const fn new() -> Self {
        Self {
            order: BTreeSet::new(),
            at: BTreeMap::new(),
        }
    }

    /// Sets the alarm of `what`, in place of the one that it has.
    pub(crate) fn set(&mut self, what: T, at: Duration) {
        self.clear(what);
        self.at.insert(what, at);
        self.order.insert((at, what));
    }

    pub(crate) fn clear(&mut self, what: T) {
        if let Some(at) = self.at.remove(&what) {
            self.order.remove(&(at, what));
        }
    }

    pub(crate) fn get(&self, what: T) -> Option<Duration> {
        self.at.get(&what).copied()
    }

    /// Takes the earliest alarm that is due.
    pub(crate) fn pop(&mut self, now: Duration) -> Option<T> {
        let &(at, what) = self.order.first()?;
        if at > now {
            return None;
        }
        self.clear(what);
        Some(what)
    }

    pub(crate) fn next(&self) -> Option<Duration> {
        self.order.first().map(|(at, _)| *at)
    }
}
