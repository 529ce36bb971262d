//! Whether anybody is being served right now: background work yields to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Counts the requests that are being served, and lets background work wait for none.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    serving: AtomicUsize,
    /// Background threads that wait; whoever finishes a request looks here before it takes the
    /// lock, so that serving costs no lock while nobody waits.
    waiting: AtomicUsize,
    lock: Mutex<()>,
    idle: Condvar,
}

/// A request that is being served.
#[derive(Debug)]
pub(crate) struct Serving(Arc<Demand>);

impl Demand {
    pub(crate) fn enter(self: &Arc<Self>) -> Serving {
        self.serving.fetch_add(1, SeqCst);
        Serving(Arc::clone(self))
    }

    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.serving.load(SeqCst) == 0
    }

    /// Waits until no request is being served, but no longer than `patience`.
    pub(crate) fn wait_idle(&self, patience: Duration) {
        if self.serving.load(SeqCst) == 0 {
            return;
        }
        let deadline = Instant::now() + patience;
        let mut guard = self.lock.lock();
        self.waiting.fetch_add(1, SeqCst);
        while self.serving.load(SeqCst) > 0 {
            if self.idle.wait_until(&mut guard, deadline).timed_out() {
                break;
            }
        }
        self.waiting.fetch_sub(1, SeqCst);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // SeqCst: either this sees the waiter, or the waiter sees that nothing is served.
        if self.0.serving.fetch_sub(1, SeqCst) == 1 && self.0.waiting.load(SeqCst) > 0 {
            let _lock = self.0.lock.lock();
            self.0.idle.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn background_work_goes_on_when_the_last_request_is_served() {
        let demand = Arc::new(Demand::default());
        demand.wait_idle(Duration::MAX.min(Duration::from_secs(3600)));
        let first = demand.enter();
        let second = demand.enter();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| demand.wait_idle(Duration::from_secs(3600)));
            drop(first);
            drop(second);
            waiter.join().unwrap();
        });
        assert_eq!(demand.serving.load(SeqCst), 0);
    }

    #[test]
    fn background_work_is_not_starved() {
        let demand = Arc::new(Demand::default());
        let _busy = demand.enter();
        demand.wait_idle(Duration::from_millis(1));
        assert_eq!(demand.waiting.load(SeqCst), 0);
    }
}
