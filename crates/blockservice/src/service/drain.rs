//! The rate at which a client accepts data, measured by the duration of writes.

use std::time::Duration;

/// So many bytes are a measurement: less fits in buffers, and says nothing.
const SAMPLE: u64 = 512 << 10;

/// The recent rate.
#[derive(Debug, Default)]
pub(super) struct DrainRate {
    bytes: u64,
    time: Duration,
}

impl DrainRate {
    /// Records a write, and returns the rate in bytes per second, once it is known.
    pub(super) fn wrote(&mut self, bytes: u64, took: Duration) -> Option<u64> {
        self.bytes += bytes;
        self.time += took;
        if self.bytes >= 2 * SAMPLE {
            // What was long ago counts less and less.
            self.bytes /= 2;
            self.time /= 2;
        }
        let nanos = self.time.as_nanos().max(1);
        let rate = u128::from(self.bytes) * 1_000_000_000 / nanos;
        (self.bytes >= SAMPLE).then(|| u64::try_from(rate).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_rate_follows_the_line() {
        let mut drain = DrainRate::default();
        assert_eq!(drain.wrote(64 << 10, 21 * MS), None);
        let mut last = None;
        for _ in 0..100 {
            last = drain.wrote(64 << 10, 21 * MS);
        }
        let rate = last.expect("6 MiB are a measurement");
        assert!((3_000_000..3_300_000).contains(&rate), "{rate}");
        for _ in 0..100 {
            last = drain.wrote(64 << 10, Duration::ZERO);
        }
        assert!(last.expect("it was measured") > 1 << 30);
    }
}
