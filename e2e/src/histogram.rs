//! How long things took.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Buckets for each doubling: a value is told to an eighth.
const STEPS: u32 = 8;

/// Durations by size, in microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Histogram {
    counts: Vec<u64>,
    max_us: u64,
}

impl Histogram {
    /// Notes a duration.
    pub fn note(&mut self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.max_us = self.max_us.max(us);
        let bucket = bucket(us);
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
    }

    /// Adds what another has noted.
    pub fn add(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.max_us = self.max_us.max(other.max_us);
    }

    /// Returns how many were noted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the longest, exactly.
    #[must_use]
    pub const fn max(&self) -> Duration {
        Duration::from_micros(self.max_us)
    }

    /// Returns a duration that `permille` of a thousand do not exceed, an eighth too long at most.
    #[must_use]
    pub fn quantile(&self, permille: u64) -> Duration {
        let wanted = (self.count() * permille).div_ceil(1000);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && *count > 0 {
                return Duration::from_micros(upper(bucket).min(self.max_us));
            }
        }
        self.max()
    }
}

/// Small values have a bucket each; from there on each doubling has [`STEPS`].
fn bucket(us: u64) -> usize {
    let steps = u64::from(STEPS);
    if us < steps {
        return usize::try_from(us).unwrap_or(0);
    }
    let doubling = us.ilog2() - STEPS.ilog2();
    let within = (us >> doubling) - steps;
    usize::try_from(u64::from(doubling) * steps + steps + within).unwrap_or(usize::MAX)
}

/// The greatest value of a bucket.
fn upper(bucket: usize) -> u64 {
    let (bucket, steps) = (bucket as u64, u64::from(STEPS));
    if bucket < steps {
        return bucket;
    }
    let (doubling, within) = ((bucket - steps) / steps, (bucket - steps) % steps);
    ((steps + within + 1) << doubling) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_the_bucket_that_says_so() {
        for us in (0..4096).chain([100_000, 999_999, 60_000_000]) {
            let bucket = bucket(us);
            assert!(us <= upper(bucket), "{us}");
            assert!(bucket == 0 || us > upper(bucket - 1), "{us}");
            assert!(upper(bucket) <= us + us / 8, "{us}");
        }
    }

    #[test]
    fn quantiles_are_those_of_what_was_noted() {
        let mut few = Histogram::default();
        for ms in 1..=100 {
            few.note(Duration::from_millis(ms));
        }
        let mut all = Histogram::default();
        all.note(Duration::from_secs(2));
        all.add(&few);
        assert_eq!((all.count(), all.max()), (101, Duration::from_secs(2)));
        let median = all.quantile(500).as_millis();
        assert!((51..58).contains(&median), "{median}");
        assert_eq!(all.quantile(1000), Duration::from_secs(2));
        assert_eq!(Histogram::default().quantile(990), Duration::ZERO);
    }
}
