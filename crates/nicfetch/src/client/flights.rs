//! Reads of one chunk by several threads become one request.

use std::collections::HashMap;
use std::hash::Hash;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// What is being fetched, and who else waits for it.
#[derive(Debug)]
pub(super) struct Flights<K, V> {
    waiting: Mutex<HashMap<K, Vec<oneshot::Sender<V>>>>,
}

impl<K: Eq + Hash + Clone, V: Clone> Flights<K, V> {
    pub(super) fn new() -> Self {
        Self {
            waiting: Mutex::default(),
        }
    }

    /// Joins whoever fetches `key`; returns what to wait on, and whether nobody fetches it yet:
    /// then the caller has to, and to [`land`](Self::land).
    pub(super) fn join(&self, key: &K) -> (oneshot::Receiver<V>, bool) {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        let others = waiting.entry(key.clone()).or_default();
        others.push(sender);
        (receiver, others.len() == 1)
    }

    /// Hands what was fetched to all who wait for it.
    pub(super) fn land(&self, key: &K, what: &V) {
        let waiting = self.waiting.lock().remove(key);
        for one in waiting.into_iter().flatten() {
            // Some may have given up.
            let _told = one.send(what.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_fetches_for_all() {
        let flights = Flights::new();
        let (mut one, first) = flights.join(&1);
        let (mut two, second) = flights.join(&1);
        let (mut other, third) = flights.join(&2);
        assert_eq!((first, second, third), (true, false, true));
        flights.land(&1, &"a");
        assert_eq!((one.try_recv(), two.try_recv()), (Ok("a"), Ok("a")));
        assert!(other.try_recv().is_err());
        assert!(flights.join(&1).1, "what has landed is fetched anew");
    }
}
