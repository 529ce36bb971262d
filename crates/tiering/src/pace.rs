//! The pace of background work: its rate, and yielding to other work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::Rate;

/// Bytes that are worked on between two questions to the pace.
pub const CHUNK: usize = 256 << 10;
/// What one chunk waits for demand at most: so background work ends, whatever the demand.
const YIELD_MAX: Duration = Duration::from_millis(50);

/// The work was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it was cancelled")]
pub struct Cancelled;

/// Controls when background work continues.
pub trait Pace: Send + Sync {
    /// Waits until `bytes` more may be worked on.
    ///
    /// # Errors
    /// If the work is to stop.
    fn turn(&self, bytes: u64) -> Result<(), Cancelled>;
}

/// Does not wait for anybody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unhurried;

impl Pace for Unhurried {
    fn turn(&self, _: u64) -> Result<(), Cancelled> {
        Ok(())
    }
}

/// A pace with a rate, that lets demand go first and can be cancelled.
#[derive(Debug)]
pub struct Throttle {
    rate: Option<Rate>,
    cancelled: AtomicBool,
    demand: Arc<Demand>,
    /// When all that was let through will have taken its time.
    clear_at: Mutex<Instant>,
    wake: Condvar,
}

/// The number of demand reads in progress.
#[derive(Debug, Default)]
pub struct Demand(AtomicUsize);

/// One demand read in progress.
#[derive(Debug)]
pub struct Demanded<'a>(&'a Demand);

impl Demand {
    /// Begins a read; it ends when the returned value is dropped.
    #[must_use]
    pub fn begin(&self) -> Demanded<'_> {
        self.0.fetch_add(1, SeqCst);
        Demanded(self)
    }

    /// Returns whether a read runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.0.load(SeqCst) > 0
    }
}

impl Drop for Demanded<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, SeqCst);
    }
}

impl Throttle {
    /// Returns a pace of at most `rate`, if there is one, that yields to `demand`.
    #[must_use]
    pub fn new(rate: Option<Rate>, demand: Arc<Demand>) -> Self {
        Self {
            rate,
            cancelled: AtomicBool::new(false),
            demand,
            clear_at: Mutex::new(Instant::now()),
            wake: Condvar::new(),
        }
    }

    /// Cancels the work at its next turn; waiting threads are woken.
    pub fn cancel(&self) {
        // Under the lock, so that nobody looks before it and sleeps after it.
        let _clear_at = self.clear_at.lock();
        self.cancelled.store(true, SeqCst);
        self.wake.notify_all();
    }

    /// Returns when `bytes` more may be worked on: after what was let through before.
    fn book(&self, bytes: u64) -> Instant {
        let mut clear_at = self.clear_at.lock();
        let now = Instant::now();
        let turn = (*clear_at).max(now);
        if let Some(rate) = self.rate {
            *clear_at = turn.checked_add(rate.time_for(bytes)).unwrap_or(turn);
        }
        turn
    }

    /// Sleeps until `until`, or until it is cancelled.
    fn sleep(&self, until: Instant) -> Result<(), Cancelled> {
        let mut clear_at = self.clear_at.lock();
        while !self.cancelled.load(SeqCst) && Instant::now() < until {
            self.wake.wait_until(&mut clear_at, until);
        }
        match self.cancelled.load(SeqCst) {
            true => Err(Cancelled),
            false => Ok(()),
        }
    }
}

impl Pace for Throttle {
    fn turn(&self, bytes: u64) -> Result<(), Cancelled> {
        self.sleep(self.book(bytes))?;
        let patience = Instant::now() + YIELD_MAX;
        while self.demand.is_running() && Instant::now() < patience {
            // Reads take tens of microseconds from memory and milliseconds from disks.
            self.sleep(Instant::now() + Duration::from_micros(500))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn throttle(bytes: u64) -> Throttle {
        Throttle::new(Rate::per_second(bytes), Arc::default())
    }

    #[test]
    fn a_chunk_waits_for_the_time_of_those_before_it() {
        let throttle = throttle(1_000_000);
        let begin = Instant::now();
        (0..5).for_each(|_| throttle.turn(10_000).unwrap());
        assert!(begin.elapsed() >= Duration::from_millis(40));
    }

    #[test]
    fn what_waits_is_woken_by_its_end() {
        let throttle = throttle(1);
        throttle.turn(3600).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| throttle.turn(1));
            throttle.cancel();
            assert_eq!(waiting.join().unwrap(), Err(Cancelled));
        });
        assert_eq!(throttle.turn(1), Err(Cancelled));
    }

    #[test]
    fn demand_goes_first_and_does_not_starve_the_rest() {
        let demand = Arc::new(Demand::default());
        let throttle = Throttle::new(None, Arc::clone(&demand));
        let read = demand.begin();
        let begin = Instant::now();
        throttle.turn(1).unwrap();
        assert!(begin.elapsed() >= YIELD_MAX, "it yields, and goes on");
        drop(read);
        assert!(!demand.is_running());
    }
}
