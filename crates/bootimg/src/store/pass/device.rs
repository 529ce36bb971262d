//! How much may be read between two places of a disk before a seek is quicker.

use std::time::{Duration, Instant};

/// Nothing is learned from more.
const SAMPLES: usize = 9;
/// More than this between two places is never read: it would fill the memory.
const GAP_BYTES_MAX: u64 = 1 << 20;

/// A disk, as far as it was measured.
#[derive(Debug, Default)]
pub(super) struct Device {
    /// The durations of small reads with a seek.
    seeks: Vec<Duration>,
    /// What a large read brought, and took.
    bytes: u64,
    time: Duration,
}

impl Device {
    /// Measures a small read elsewhere on the disk. Returns whether more of them are useful.
    pub(super) fn seek(&mut self, read: impl FnOnce()) -> bool {
        let started = Instant::now();
        read();
        self.seeks.push(started.elapsed());
        self.seeks.len() < SAMPLES
    }

    /// Records the duration of a large read.
    pub(super) fn read(&mut self, bytes: u64, time: Duration) {
        self.bytes += bytes;
        self.time += time;
    }

    /// Returns how many bytes the disk reads in the time of a seek.
    pub(super) fn gap_bytes(&self) -> u64 {
        let mut seeks = self.seeks.clone();
        seeks.sort_unstable();
        let Some(seek) = seeks.get(seeks.len() / 2) else {
            return 0;
        };
        let read = self.time.as_nanos().max(1);
        let gap = seek.as_nanos().saturating_mul(u128::from(self.bytes)) / read;
        u64::try_from(gap).unwrap_or(u64::MAX).min(GAP_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(seek_us: u64, bytes: u64, read_us: u64) -> Device {
        Device {
            seeks: [1, seek_us, 1_000_000].map(Duration::from_micros).to_vec(),
            bytes,
            time: Duration::from_micros(read_us),
        }
    }

    #[test]
    fn a_gap_is_what_is_read_in_the_time_of_a_seek() {
        // A hard disk: 8 ms, and 100 MB a second. An SSD: 0.1 ms, and 500 MB a second. Memory.
        assert_eq!(device(8_000, 1_000_000, 10_000).gap_bytes(), 800_000);
        assert_eq!(device(100, 1_000_000, 2_000).gap_bytes(), 50_000);
        assert!(device(1, 1_000_000, 200).gap_bytes() < 8_192);
    }

    #[test]
    fn nothing_measured_is_no_gap_and_a_disk_that_stands_still_no_endless_one() {
        assert_eq!(Device::default().gap_bytes(), 0);
        assert_eq!(device(1_000_000, 1_000_000, 1).gap_bytes(), GAP_BYTES_MAX);
    }
}
