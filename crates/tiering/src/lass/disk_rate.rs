//! Estimates the write rate of a disk from the layers that were unpacked to it.

use std::time::Duration;

use crate::Rate;

/// Bytes that tell something.
const BYTES_LEAST: u64 = 1 << 20;
/// A flush that was waited for: a shorter one may have been nothing but a commit of the file system's
/// journal.
const FLUSH_LEAST: Duration = Duration::from_millis(50);

/// What a disk has written in some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Bytes.
    pub bytes: u64,
    /// Duration.
    pub time: Duration,
}

impl Written {
    fn rate(self) -> Option<Rate> {
        Rate::measured(self.bytes, self.time).filter(|_| self.bytes >= BYTES_LEAST)
    }
}

/// Returns the estimated rate of a disk after a layer was unpacked to it: `all` is the time from its
/// first file to the moment when all of it was on the disk, and `flush` the end of that time, in which
/// unpacking was over and the disk only wrote the remaining data.
///
/// Neither period has more bytes in it than the disk can write. If data remained, the disk was the
/// bottleneck, at the end at least, so the larger rate is its own; the mean of it and of the `known` rate
/// is returned. If none remained, the disk had kept up with unpacking: it is at least as fast as that,
/// which is a new bound only for a disk whose known rate is lower.
#[must_use]
pub fn learn_rate(known: Option<Rate>, all: Written, flush: Written) -> Option<Rate> {
    let flush = flush.rate().filter(|_| flush.time >= FLUSH_LEAST);
    let seen = all.rate().max(flush);
    let (Some(rate), Some(known)) = (seen, known) else {
        return known.or(seen.filter(|_| flush.is_some()));
    };
    if flush.is_none() {
        return Some(known.max(rate));
    }
    let (one, other) = (known.bytes_per_second(), rate.bytes_per_second());
    Rate::per_second(one.midpoint(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    fn rate(of: u64) -> Option<Rate> {
        Rate::per_second(of * MB)
    }

    fn written(megabytes: u64, millis: u64) -> Written {
        Written {
            bytes: megabytes * MB,
            time: Duration::from_millis(millis),
        }
    }

    #[test]
    fn a_disk_that_was_waited_for_tells_its_rate() {
        // Little may wait in memory, so all of the time was the disk's.
        let throttled = learn_rate(None, written(138, 3000), written(8, 200));
        assert_eq!(throttled, rate(46));
        // All of it waited in memory, so only the flush was.
        let flushed = learn_rate(None, written(138, 4000), written(120, 2000));
        assert_eq!(flushed, rate(60));
        assert_eq!(
            learn_rate(rate(20), written(138, 3000), written(8, 200)),
            rate(33)
        );
    }

    #[test]
    fn a_disk_that_kept_up_is_no_slower_than_what_came() {
        let (all, nothing) = (written(138, 3000), written(1, 10));
        assert_eq!(learn_rate(None, all, nothing), None);
        assert_eq!(learn_rate(rate(20), all, nothing), rate(46));
        assert_eq!(learn_rate(rate(80), all, nothing), rate(80));
    }

    #[test]
    fn little_tells_nothing() {
        for known in [None, rate(20)] {
            for flush in [written(0, 5000), written(1, 4), written(0, 0)] {
                assert_eq!(learn_rate(known, flush, flush), known);
            }
        }
        let burst = written(900, 40);
        assert_eq!(learn_rate(None, burst, burst), None);
        let huge = Written {
            bytes: u64::MAX,
            time: Duration::from_secs(1),
        };
        let most = learn_rate(None, huge, huge);
        assert_eq!(most, Rate::per_second(u64::MAX));
        assert_eq!(learn_rate(most, huge, huge), most);
    }
}
