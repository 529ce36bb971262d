//! Limits of how many connections each peer has open.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

/// The number of open connections of each peer.
#[derive(Debug)]
pub struct ConnectionCounts<K: Eq + Hash>(Mutex<HashMap<K, usize>>);

impl<K: Eq + Hash> Default for ConnectionCounts<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// Counts one connection until it is dropped.
#[derive(Debug)]
pub struct ConnectionPermit<K: Eq + Hash> {
    seats: Arc<ConnectionCounts<K>>,
    who: K,
}

impl<K: Eq + Hash + Clone> ConnectionCounts<K> {
    /// Counts one more connection of `who`; `None` if it has `most` already.
    pub fn take(self: &Arc<Self>, who: K, most: usize) -> Option<ConnectionPermit<K>> {
        let mut taken = self.0.lock();
        if taken.get(&who).copied().unwrap_or(0) >= most {
            return None;
        }
        *taken.entry(who.clone()).or_default() += 1;
        let seats = Arc::clone(self);
        Some(ConnectionPermit { seats, who })
    }
}

impl<K: Eq + Hash> Drop for ConnectionPermit<K> {
    fn drop(&mut self) {
        let mut taken = self.seats.0.lock();
        if let Some(count) = taken.get_mut(&self.who) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_as_many_as_it_may_and_is_forgotten_afterwards() {
        let seats = Arc::new(ConnectionCounts::default());
        let two = [seats.take("a", 2), seats.take("a", 2)];
        assert!(two.iter().all(Option::is_some));
        assert!(seats.take("a", 2).is_none());
        assert!(seats.take("b", 2).is_some());
        drop(two);
        assert!(seats.take("a", 1).is_some());
        assert!(seats.take("c", 0).is_none());
        assert!(seats.0.lock().is_empty());
    }
}
