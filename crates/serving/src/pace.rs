//! A flow that must not be quicker than so many bytes in a second.

use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::time::sleep;

/// What may go at once after a rest: long enough that timers do not slow the flow, short enough
/// that no queue on the way fills.
const BURST: Duration = Duration::from_millis(100);

/// A bucket that fills with so many bytes in a second. Who takes more than there is waits; those who
/// wait go one after the other.
#[derive(Debug)]
pub struct Pace {
    rate: NonZeroU64,
    /// When all that was taken will be paid for.
    paid: Mutex<Instant>,
}

impl Pace {
    /// Returns a pace of so many bytes in a second.
    #[must_use]
    pub fn new(rate: NonZeroU64) -> Self {
        let now = Instant::now();
        let paid = Mutex::new(now.checked_sub(BURST).unwrap_or(now));
        Self { rate, paid }
    }

    /// Takes so many bytes, and waits until they may go.
    pub async fn wait(&self, bytes: u64) {
        let wait = self.take(bytes, Instant::now());
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }

    /// Takes so many bytes; they may go after what is returned.
    pub fn take(&self, bytes: u64, now: Instant) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate.get());
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let mut paid = self.paid.lock();
        // What was not used for longer than a burst is lost.
        let from = now
            .checked_sub(BURST)
            .map_or(*paid, |rested| rested.max(*paid));
        *paid = from + cost;
        paid.saturating_duration_since(now)
    }

    /// Whether nothing would differ if it were new.
    fn is_rested(&self, now: Instant) -> bool {
        *self.paid.lock() + BURST <= now
    }
}

/// A pace for each of those who are served; who has rested long enough is forgotten.
#[derive(Debug)]
pub struct Paces<K> {
    rate: NonZeroU64,
    each: Mutex<HashMap<K, Arc<Pace>>>,
}

impl<K: Eq + Hash> Paces<K> {
    /// Returns paces of so many bytes in a second each.
    #[must_use]
    pub fn new(rate: NonZeroU64) -> Self {
        let each = Mutex::default();
        Self { rate, each }
    }

    /// Returns the pace of one of them.
    pub fn of(&self, who: K) -> Arc<Pace> {
        let now = Instant::now();
        let mut each = self.each.lock();
        each.retain(|_, pace| Arc::strong_count(pace) > 1 || !pace.is_rested(now));
        let pace = each
            .entry(who)
            .or_insert_with(|| Arc::new(Pace::new(self.rate)));
        Arc::clone(pace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(rate: u64) -> Pace {
        Pace::new(NonZeroU64::new(rate).unwrap())
    }

    #[test]
    fn what_goes_in_a_long_time_is_the_rate() {
        let pace = pace(1000);
        let start = Instant::now() + Duration::from_secs(1000);
        let mut now = start;
        let mut sent = 0;
        while now < start + Duration::from_secs(100) {
            now += pace.take(77, now);
            sent += 77;
        }
        // A hundred seconds, and the burst.
        assert!((100_000..=100_200).contains(&sent), "{sent}");
    }

    #[test]
    fn a_rest_pays_for_a_burst_and_not_more() {
        let pace = pace(1000);
        let now = Instant::now() + Duration::from_secs(1000);
        assert_eq!(pace.take(100, now), Duration::ZERO);
        assert_eq!(pace.take(50, now), Duration::from_millis(50));
        let later = now + Duration::from_secs(3600);
        assert_eq!(pace.take(100, later), Duration::ZERO);
        assert_eq!(pace.take(1000, later), Duration::from_secs(1));
        assert_eq!(pace.take(u64::MAX, later).as_secs() / 1_000_000_000, 18);
    }

    #[test]
    fn each_has_a_pace_of_its_own_as_long_as_it_matters() {
        let paces = Paces::new(NonZeroU64::new(1000).unwrap());
        let now = Instant::now();
        assert!(paces.of(1).take(10_000, now) > Duration::from_secs(5));
        assert!(paces.of(2).take(10, now).is_zero());
        // Nobody has it any more, and it still counts.
        assert!(paces.of(1).take(1, now) > Duration::from_secs(5));
        assert_eq!(paces.each.lock().len(), 2);
    }
}
