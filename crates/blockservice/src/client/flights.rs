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

    /// Joins whoever fetches `key`, and returns what to wait on; `None` if nobody does: then the
    /// caller has to, and to [`land`](Self::land).
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
        assert!(flights.join(&1).is_none());
        let (mut one, mut two) = (flights.join(&1).unwrap(), flights.join(&1).unwrap());
        assert!(flights.join(&2).is_none());
        flights.land(&2, &"b");
        assert!(one.try_recv().is_err());
        flights.land(&1, &"a");
        assert_eq!((one.try_recv(), two.try_recv()), (Ok("a"), Ok("a")));
        assert!(
            flights.join(&1).is_none(),
            "what has landed is fetched anew"
        );
    }
}
