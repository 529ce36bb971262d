//! The requests that wait for the source: read from the kernel, and not answered.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// How many there are.
#[derive(Debug, Default)]
pub(crate) struct InHand {
    count: Mutex<u64>,
    none: Condvar,
}

/// One of them, until this is dropped.
#[derive(Debug)]
pub(crate) struct Held(Arc<InHand>);

impl InHand {
    /// Counts one more.
    pub(crate) fn hold(self: &Arc<Self>) -> Held {
        *self.count.lock() += 1;
        Held(Arc::clone(self))
    }

    pub(crate) fn count(&self) -> u64 {
        *self.count.lock()
    }

    /// Waits until there are none, and returns whether that was before the deadline.
    pub(crate) fn wait_for_none(&self, deadline: Instant) -> bool {
        let mut count = self.count.lock();
        while *count > 0 {
            if self.none.wait_until(&mut count, deadline).timed_out() {
                return *count == 0;
            }
        }
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn none_is_left_when_the_last_is_answered() {
        let in_hand = Arc::new(InHand::default());
        let held = [in_hand.hold(), in_hand.hold()];
        assert_eq!(in_hand.count(), 2);
        assert!(!in_hand.wait_for_none(Instant::now()));
        let waits = Arc::clone(&in_hand);
        let late = Instant::now() + Duration::from_secs(60);
        let waiting = std::thread::spawn(move || waits.wait_for_none(late));
        drop(held);
        assert!(waiting.join().unwrap());
        assert_eq!(in_hand.count(), 0);
    }
}
