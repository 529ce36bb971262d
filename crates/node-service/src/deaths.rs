//! The policy for mounts whose workers die: how long to wait, and when to stop trying.
//!
//! If a worker is killed from outside (by an upgrade, an administrator, the kernel short of memory),
//! its mounts are not suspected: the next worker starts at once. After a crash they are. A mount that
//! was served by crashing workers gets a worker of its own, so that no other mount fails with it; if
//! that worker crashes as well, again and again, the mount is given up.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Deaths older than this are forgotten.
const WINDOW: Duration = Duration::from_secs(60);
/// After so many crashes of shared workers a mount gets one of its own.
const SHARED: usize = 3;
/// After so many crashes of its own worker a mount is given up.
const ALONE: usize = 5;
/// So many deaths within [`SOON`], of whatever cause, start at once; more have to wait.
const AT_ONCE: usize = 5;
const SOON: Duration = Duration::from_secs(1);
/// For how long those wait: whatever kills them all, it gets no faster than that.
const WAIT: Duration = Duration::from_millis(200);
/// The wait after the second crash; it doubles with each further one, up to [`LONGEST`].
const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

/// Why a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It was killed, or the cause is unknown.
    Killed,
    /// It ended by itself.
    Crashed,
}

/// The next step for a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Another worker serves it, after a pause.
    Go(Duration),
    /// Another worker serves it and nothing else, after a pause.
    Isolate(Duration),
    /// The mount is not served any more.
    GiveUp,
}

/// The deaths of the workers of one mount.
#[derive(Debug, Default)]
pub(crate) struct Deaths {
    recent: VecDeque<(Instant, Cause)>,
    alone: bool,
}

impl Deaths {
    /// Returns the state of a mount after a restart of the node. Of the earlier deaths, only the flag
    /// for a worker of its own was recorded.
    #[must_use]
    pub(crate) fn after_a_restart(alone: bool) -> Self {
        Self {
            alone,
            ..Self::default()
        }
    }

    /// Returns whether the mount needs a worker of its own.
    #[must_use]
    pub(crate) const fn alone(&self) -> bool {
        self.alone
    }

    /// Records one more death, and returns the next step.
    pub(crate) fn note(&mut self, at: Instant, cause: Cause) -> Verdict {
        let old = |(when, _): &(Instant, Cause)| at.saturating_duration_since(*when) > WINDOW;
        while self.recent.front().is_some_and(old) {
            self.recent.pop_front();
        }
        self.recent.push_back((at, cause));
        let crashes = self.recent.iter().filter(|(_, c)| *c == Cause::Crashed);
        let crashes = crashes.count();
        let pause = self.pause(at, cause, crashes);
        match (cause, self.alone) {
            (Cause::Crashed, true) if crashes >= ALONE => Verdict::GiveUp,
            (Cause::Crashed, false) if crashes >= SHARED => {
                self.alone = true;
                // What shared workers did is not held against it.
                self.recent.clear();
                Verdict::Isolate(pause)
            }
            (_, true) => Verdict::Isolate(pause),
            (_, false) => Verdict::Go(pause),
        }
    }

    fn pause(&self, at: Instant, cause: Cause, crashes: usize) -> Duration {
        let soon = |(when, _): &&(Instant, Cause)| at.saturating_duration_since(*when) < SOON;
        let crowd = self.recent.iter().filter(soon).count() > AT_ONCE;
        let wait = if crowd { WAIT } else { Duration::ZERO };
        match (cause, u32::try_from(crashes)) {
            (Cause::Killed, _) | (_, Ok(0 | 1)) => wait,
            (_, Ok(crashes)) => wait.max(
                FIRST
                    .saturating_mul(1_u32.checked_shl(crashes - 2).unwrap_or(u32::MAX))
                    .min(LONGEST),
            ),
            (_, Err(_)) => LONGEST,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deaths at these milliseconds, and what is to be done after the last.
    fn after(deaths: &mut Deaths, start: Instant, cause: Cause, at: &[u64]) -> Verdict {
        let mut verdict = Verdict::GiveUp;
        for ms in at {
            verdict = deaths.note(start + Duration::from_millis(*ms), cause);
        }
        verdict
    }

    #[test]
    fn who_is_killed_starts_again_at_once_for_ever() {
        let (mut deaths, start) = (Deaths::default(), Instant::now());
        for round in 0..200 {
            let at = start + Duration::from_millis(round * 250);
            assert_eq!(deaths.note(at, Cause::Killed), Verdict::Go(Duration::ZERO));
        }
        // Only a crowd has to wait.
        let times: Vec<u64> = (0..10).map(|n| 100_000 + n).collect();
        let verdict = after(&mut deaths, start, Cause::Killed, &times);
        assert_eq!(verdict, Verdict::Go(WAIT));
    }

    #[test]
    fn who_crashes_is_isolated_and_then_given_up() {
        let (mut deaths, start) = (Deaths::default(), Instant::now());
        let mut crash = |at: &[u64]| after(&mut deaths, start, Cause::Crashed, at);
        assert_eq!(crash(&[0]), Verdict::Go(Duration::ZERO));
        assert_eq!(crash(&[2000]), Verdict::Go(FIRST));
        assert_eq!(crash(&[4000]), Verdict::Isolate(FIRST * 2));
        assert_eq!(crash(&[6000]), Verdict::Isolate(Duration::ZERO));
        assert_eq!(crash(&[8000, 10_000, 12_000]), Verdict::Isolate(FIRST * 4));
        assert_eq!(crash(&[14_000]), Verdict::GiveUp);
    }

    #[test]
    fn crashes_far_apart_are_forgotten() {
        let (mut deaths, start) = (Deaths::default(), Instant::now());
        for round in 0..20 {
            let at = start + Duration::from_secs(round * 61);
            assert_eq!(deaths.note(at, Cause::Crashed), Verdict::Go(Duration::ZERO));
        }
        assert!(!deaths.alone());
    }
}
