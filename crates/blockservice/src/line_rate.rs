//! The rate at which a connection takes or brings data, by how long writes or reads take.

use std::time::Duration;

/// So many bytes are a measurement: less fits in buffers, and says nothing.
const SAMPLE: u64 = 512 << 10;

/// The recent rate.
#[derive(Debug, Default)]
pub(crate) struct LineRate {
    bytes: u64,
    time: Duration,
}

impl LineRate {
    /// Records so many bytes and how long they took, and returns the rate in bytes per second, once it is known.
    pub(crate) fn add(&mut self, bytes: u64, took: Duration) -> Option<u64> {
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
        let mut line = LineRate::default();
        assert_eq!(line.add(64 << 10, 21 * MS), None);
        let mut last = None;
        for _ in 0..100 {
            last = line.add(64 << 10, 21 * MS);
        }
        let rate = last.expect("6 MiB are a measurement");
        assert!((3_000_000..3_300_000).contains(&rate), "{rate}");
        for _ in 0..100 {
            last = line.add(64 << 10, Duration::ZERO);
        }
        assert!(last.expect("it was measured") > 1 << 30);
    }
}
