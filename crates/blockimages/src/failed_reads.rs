//! Reads of a device that have failed just now: who reads the same again at once has what was left of their time.
//!
//! A kernel requests a page alone when its readahead has failed, and a file system that is mounted on such a page does the
//! same once more. For whoever waits for all of them it is one read, and it is to have one deadline.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How soon after a failure a read of the same counts as its repetition.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Failures that are kept.
const KEPT: usize = 64;

#[derive(Clone, Debug)]
struct Failed {
    range: Range<u64>,
    began: Instant,
    at: Instant,
}

/// The failures of the last second.
#[derive(Debug, Default)]
pub(crate) struct FailedReads {
    failed: Mutex<Vec<Failed>>,
    /// Whether there may be any: a read that nothing has failed before takes no lock.
    any: AtomicBool,
}

impl FailedReads {
    /// Returns when the read of a range that is to begin now began.
    pub(crate) fn began(&self, range: &Range<u64>) -> Instant {
        self.began_at(range, Instant::now())
    }

    fn began_at(&self, range: &Range<u64>, now: Instant) -> Instant {
        if !self.any.load(Ordering::Acquire) {
            return now;
        }
        let mut failed = self.failed.lock();
        failed.retain(|failed| now.saturating_duration_since(failed.at) < AT_ONCE);
        self.any.store(!failed.is_empty(), Ordering::Release);
        let same = failed
            .iter()
            .filter(|failed| failed.range.start < range.end && range.start < failed.range.end);
        same.map(|failed| failed.began).min().unwrap_or(now)
    }

    /// Notes that the read of a range failed that began then.
    pub(crate) fn note(&self, range: Range<u64>, began: Instant) {
        self.note_at(range, began, Instant::now());
    }

    fn note_at(&self, range: Range<u64>, began: Instant, at: Instant) {
        let mut failed = self.failed.lock();
        self.any.store(true, Ordering::Release);
        // A repetition does not prolong what it repeats: somebody who tries again and again is to have a new deadline.
        let known = failed
            .iter_mut()
            .find(|failed| failed.range.start <= range.start && range.end <= failed.range.end);
        match known {
            Some(known) if known.began == began => {
                // It had waited, for what was left of its time.
                if at.saturating_duration_since(known.at) >= AT_ONCE {
                    known.at = at;
                }
            }
            _ => {
                if failed.len() >= KEPT {
                    failed.remove(0);
                }
                failed.push(Failed { range, began, at });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_the_same_again_at_once_has_the_rest_of_the_time() {
        let failed = FailedReads::default();
        let began = Instant::now();
        let after = |ms: u64| began + Duration::from_millis(ms);
        failed.note_at(0..128, began, after(10_000));
        // A part of it, at once.
        assert_eq!(failed.began_at(&(64..68), after(10_001)), began);
        assert_eq!(failed.began_at(&(128..132), after(10_001)), after(10_001));
        // That waits, too, and fails, and is repeated.
        failed.note_at(64..68, began, after(15_000));
        assert_eq!(failed.began_at(&(64..68), after(15_900)), began);
        // Tried again and again, each time at once: not for ever.
        failed.note_at(64..68, began, after(15_901));
        assert_eq!(failed.began_at(&(64..68), after(16_100)), after(16_100));
        assert!(failed.failed.lock().is_empty());
        for number in 0..200 {
            failed.note_at(number..number + 1, began, after(20_000));
        }
        assert_eq!(failed.failed.lock().len(), KEPT);
    }
}
