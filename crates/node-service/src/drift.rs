//! The decision when a boot has drifted so far from its recording that it is recorded again.
//!
//! A boot is over when no request came for a while. It has drifted if it read much from the source,
//! measured by the size of its boot image. Blocks that a boot image holds and the boot did not need
//! are shown in the status; they are no reason to record: the merged image would keep them.

use std::time::{Duration, Instant};

/// Without a request for so long, a boot is over.
const QUIET: Duration = Duration::from_secs(10);
/// Bytes from the source, in thousandths of the boot image's, from which on a boot has drifted.
const DRIFT_PERMILLE: u64 = 200;
/// Less than this from the source is not worth a new boot image.
const LEAST_BYTES: u64 = 64 << 10;
/// A mount is learned from no more often than this.
const PAUSE: Duration = Duration::from_secs(60);
/// A mount that was learned from so often reads something else each time: it is no boot.
const MOST_LESSONS: u32 = 16;

/// The counters of a mount, as its worker reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    /// Requests of all kinds.
    pub requests: u64,
    /// Bytes read from the source.
    pub fallthrough_bytes: u64,
    /// Bytes of the boot image in use; 0 without one.
    pub boot_bytes: u64,
    /// The worker: its successor counts from zero, and has not recorded earlier requests.
    pub worker: Option<u32>,
}

/// The history of one mount's boots.
#[derive(Debug)]
pub(crate) struct Boots {
    last: Served,
    /// The counters when the boot image was loaded.
    before: Served,
    quiet_since: Instant,
    lesson_at: Option<Instant>,
    lessons: u32,
}

impl Boots {
    /// Returns the initial state for a mount.
    pub(crate) const fn new(served: Served, now: Instant) -> Self {
        Self {
            last: served,
            before: Served {
                requests: 0,
                fallthrough_bytes: 0,
                ..served
            },
            quiet_since: now,
            lesson_at: None,
            lessons: 0,
        }
    }

    /// Updates the counters of a mount, and returns whether it is time to record.
    pub(crate) fn look(&mut self, served: Served, now: Instant) -> bool {
        if served.worker != self.last.worker {
            let before = Served::default();
            self.before = Served {
                worker: served.worker,
                ..before
            };
        }
        if served.requests != self.last.requests || served.worker != self.last.worker {
            self.quiet_since = now;
        }
        self.last = served;
        self.is_over(now) && self.has_drifted() && self.may_learn(now)
    }

    /// Notes that a recording was made or tried.
    pub(crate) fn learned(&mut self, now: Instant) {
        self.before = self.last;
        self.lesson_at = Some(now);
        self.lessons += 1;
    }

    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.quiet_since) >= QUIET
    }

    fn has_drifted(&self) -> bool {
        let before = self.before.fallthrough_bytes;
        let fell = self.last.fallthrough_bytes.saturating_sub(before);
        let enough = self.last.boot_bytes.saturating_mul(DRIFT_PERMILLE) / 1000;
        fell >= enough.max(LEAST_BYTES)
    }

    fn may_learn(&self, now: Instant) -> bool {
        let rested = self
            .lesson_at
            .is_none_or(|at| now.duration_since(at) >= PAUSE);
        rested && self.lessons < MOST_LESSONS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn served(requests: u64, fallthrough_bytes: u64) -> Served {
        Served {
            requests,
            fallthrough_bytes,
            boot_bytes: 10 * MIB,
            worker: Some(7),
        }
    }

    fn after(start: Instant, secs: u64) -> Instant {
        start + Duration::from_secs(secs)
    }

    #[test]
    fn a_boot_that_drifted_is_learned_from_when_it_is_over() {
        let start = Instant::now();
        let mut boots = Boots::new(served(0, 0), start);
        assert!(!boots.look(served(100, 3 * MIB), after(start, 5)), "runs");
        assert!(!boots.look(served(100, 3 * MIB), after(start, 14)));
        assert!(boots.look(served(100, 3 * MIB), after(start, 15)));
        boots.learned(after(start, 15));
        assert!(!boots.look(served(100, 3 * MIB), after(start, 500)));
        assert!(!boots.look(served(110, 4 * MIB), after(start, 501)));
        assert!(!boots.look(served(110, 4 * MIB), after(start, 600)));
        assert!(!boots.look(served(120, 5 * MIB), after(start, 601)));
        assert!(boots.look(served(120, 5 * MIB), after(start, 611)));
    }

    #[test]
    fn a_boot_like_its_recording_teaches_nothing() {
        let start = Instant::now();
        let mut boots = Boots::new(served(0, 0), start);
        assert!(!boots.look(served(100, MIB), after(start, 1)));
        assert!(!boots.look(served(100, MIB), after(start, 100)));
        let tiny = Served {
            boot_bytes: 0,
            ..served(200, LEAST_BYTES - 1)
        };
        assert!(!boots.look(tiny, after(start, 101)));
        assert!(!boots.look(tiny, after(start, 200)));
    }

    #[test]
    fn what_a_dead_worker_heard_is_not_counted() {
        let start = Instant::now();
        let mut boots = Boots::new(served(0, 0), start);
        assert!(!boots.look(served(100, 9 * MIB), after(start, 1)));
        let next = Served {
            worker: Some(8),
            ..served(3, MIB)
        };
        assert!(!boots.look(next, after(start, 12)));
        assert!(!boots.look(next, after(start, 100)));
    }

    #[test]
    fn lessons_are_rare_and_few() {
        let start = Instant::now();
        let mut boots = Boots::new(served(0, 0), start);
        let mut lessons = 0;
        for second in 0..10_000 {
            // Something new every twenty seconds.
            let round = second / 20;
            if boots.look(served(round, round * 5 * MIB), after(start, second)) {
                boots.learned(after(start, second));
                lessons += 1;
            }
        }
        assert_eq!(lessons, MOST_LESSONS);
        assert!(boots.lesson_at.is_some_and(|at| at < after(start, 2000)));
    }
}
