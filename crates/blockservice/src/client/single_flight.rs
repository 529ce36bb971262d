//! Singleflight: concurrent reads of one chunk become one request.

use std::collections::HashMap;
use std::hash::Hash;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The keys that are being fetched, and the waiters for each.
#[derive(Debug)]
pub(super) struct SingleFlight<K, V> {
    waiting: Mutex<HashMap<K, Vec<oneshot::Sender<V>>>>,
}

impl<K: Eq + Hash + Clone, V: Clone> SingleFlight<K, V> {
    pub(super) fn new() -> Self {
        Self {
            waiting: Mutex::default(),
        }
    }

    /// Joins the flight of `key`, and returns the receiver of its result; `None` if there is no
    /// flight: then the caller leads it, and calls [`complete`](Self::complete).
    pub(super) fn join(&self, key: &K) -> Option<oneshot::Receiver<V>> {
        let mut waiting = self.waiting.lock();
        let Some(others) = waiting.get_mut(key) else {
            waiting.insert(key.clone(), Vec::new());
            return None;
        };
        let (sender, receiver) = oneshot::channel();
        others.push(sender);
        Some(receiver)
    }

    /// Sends the result of a flight to its waiters.
    pub(super) fn complete(&self, key: &K, what: &V) {
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
        let single_flight = SingleFlight::new();
        assert!(single_flight.join(&1).is_none());
        let (mut one, mut two) = (
            single_flight.join(&1).unwrap(),
            single_flight.join(&1).unwrap(),
        );
        assert!(single_flight.join(&2).is_none());
        single_flight.complete(&2, &"b");
        assert!(one.try_recv().is_err());
        single_flight.complete(&1, &"a");
        assert_eq!((one.try_recv(), two.try_recv()), (Ok("a"), Ok("a")));
        assert!(
            single_flight.join(&1).is_none(),
            "what has completed is fetched anew"
        );
    }
}
