//! A bound on the memory of requests in flight.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Bytes that may be taken, and are given back.
#[derive(Debug)]
pub(crate) struct Budget {
    total: u64,
    free: Mutex<u64>,
    freed: Condvar,
}

impl Budget {
    pub(crate) const fn new(total: u64) -> Self {
        Self {
            total,
            free: Mutex::new(total),
            freed: Condvar::new(),
        }
    }

    /// Takes bytes, waiting for them up to `patience`; `None` if they did not become free, or are more
    /// than the budget.
    pub(crate) fn take(&self, bytes: u64, patience: Duration) -> Option<Permit<'_>> {
        if bytes > self.total {
            return None;
        }
        let deadline = Instant::now() + patience;
        let mut free = self.free.lock();
        while *free < bytes {
            if self.freed.wait_until(&mut free, deadline).timed_out() && *free < bytes {
                return None;
            }
        }
        *free -= bytes;
        Some(Permit {
            budget: self,
            bytes,
        })
    }
}

/// Bytes of a budget, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.budget.free.lock() += self.bytes;
        self.budget.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_total_is_out_at_a_time() {
        let budget = Budget::new(10);
        let soon = Duration::from_millis(1);
        let first = budget.take(6, soon).unwrap();
        assert!(budget.take(5, soon).is_none());
        let second = budget.take(4, soon).unwrap();
        assert!(budget.take(11, Duration::from_secs(3600)).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| budget.take(9, Duration::from_secs(60)).is_some());
            drop(first);
            drop(second);
            assert!(waiting.join().unwrap());
        });
        assert!(budget.take(10, soon).is_some(), "all came back");
    }
}
