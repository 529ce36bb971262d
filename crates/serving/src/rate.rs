//! Limits of the bytes per second that are sent or fetched: a token bucket.

use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::time::sleep;

/// The burst after an idle time: long enough that timers do not slow the flow, short enough that no
/// queue on the way fills.
const BURST: Duration = Duration::from_millis(100);

/// A token bucket of bytes. Takers wait while it is empty, and are served in order.
#[derive(Debug)]
pub struct RateLimiter {
    rate: NonZeroU64,
    /// When the bucket will have covered all bytes that were taken.
    paid: Mutex<Instant>,
}

impl RateLimiter {
    /// Returns a limiter of `rate` bytes per second.
    #[must_use]
    pub fn new(rate: NonZeroU64) -> Self {
        let now = Instant::now();
        let paid = Mutex::new(now.checked_sub(BURST).unwrap_or(now));
        Self { rate, paid }
    }

    /// Takes `bytes`, and waits until they may be sent.
    pub async fn wait(&self, bytes: u64) {
        let wait = self.take(bytes, Instant::now());
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }

    /// Takes `bytes`, and returns how long to wait before they are sent.
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

    /// Whether the bucket is full, as that of a new limiter is.
    fn is_rested(&self, now: Instant) -> bool {
        *self.paid.lock() + BURST <= now
    }
}

/// A rate limiter for each peer. Those that are full and unused are dropped.
#[derive(Debug)]
pub struct RateLimiters<K> {
    rate: NonZeroU64,
    each: Mutex<HashMap<K, Arc<RateLimiter>>>,
}

impl<K: Eq + Hash> RateLimiters<K> {
    /// Returns limiters of `rate` bytes per second for each peer.
    #[must_use]
    pub fn new(rate: NonZeroU64) -> Self {
        let each = Mutex::default();
        Self { rate, each }
    }

    /// Returns the limiter of a peer.
    pub fn of(&self, who: K) -> Arc<RateLimiter> {
        let now = Instant::now();
        let mut each = self.each.lock();
        each.retain(|_, pace| Arc::strong_count(pace) > 1 || !pace.is_rested(now));
        let pace = each
            .entry(who)
            .or_insert_with(|| Arc::new(RateLimiter::new(self.rate)));
        Arc::clone(pace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(rate: u64) -> RateLimiter {
        RateLimiter::new(NonZeroU64::new(rate).unwrap())
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
        let paces = RateLimiters::new(NonZeroU64::new(1000).unwrap());
        let now = Instant::now();
        assert!(paces.of(1).take(10_000, now) > Duration::from_secs(5));
        assert!(paces.of(2).take(10, now).is_zero());
        // Nobody has it any more, and it still counts.
        assert!(paces.of(1).take(1, now) > Duration::from_secs(5));
        assert_eq!(paces.each.lock().len(), 2);
    }
}
