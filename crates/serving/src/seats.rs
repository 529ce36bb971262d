//! How many places each of those who are served has taken.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

/// A count for each of them; who has none is forgotten.
#[derive(Debug)]
pub struct Seats<K: Eq + Hash>(Mutex<HashMap<K, usize>>);

impl<K: Eq + Hash> Default for Seats<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub struct Seat<K: Eq + Hash> {
    seats: Arc<Seats<K>>,
    who: K,
}

impl<K: Eq + Hash + Clone> Seats<K> {
    /// Takes a place, unless they have as many as they may.
    pub fn take(self: &Arc<Self>, who: K, most: usize) -> Option<Seat<K>> {
        let mut taken = self.0.lock();
        if taken.get(&who).copied().unwrap_or(0) >= most {
            return None;
        }
        *taken.entry(who.clone()).or_default() += 1;
        let seats = Arc::clone(self);
        Some(Seat { seats, who })
    }
}

impl<K: Eq + Hash> Drop for Seat<K> {
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
        let seats = Arc::new(Seats::default());
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
