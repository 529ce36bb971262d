//! The delay before a dead program is restarted.

use std::time::Duration;

/// Who lived so long is well: its death counts as the first.
const HEALTHY: Duration = Duration::from_secs(10);

/// The wait after the second death in a row; it doubles from there.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// The longest wait. A keeper never gives up: mounts may depend on it.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The longest wait for a program that others end: it is well, and somebody may wait for it. Whatever
/// kills it again and again gets no faster than that.
const LONGEST_IF_KILLED: Duration = Duration::from_millis(200);

/// Why a program ended that was not to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// It ended by itself.
    Failed,
    /// It was killed, or the cause is unknown.
    Killed,
}

/// Counts deaths.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    in_a_row: u32,
}

impl Restarts {
    /// Records a death, and returns how long to wait before the next start.
    pub(super) fn died_after(&mut self, lived: Duration, cause: Cause) -> Duration {
        if lived >= HEALTHY {
            self.in_a_row = 0;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        let longest = match cause {
            Cause::Failed => LONGEST_WAIT,
            Cause::Killed => LONGEST_IF_KILLED,
        };
        match self.in_a_row.checked_sub(2) {
            None => Duration::ZERO,
            // 2^7 of the first wait exceed the longest.
            Some(doublings) => (FIRST_WAIT * (1 << doublings.min(7))).min(longest),
        }
    }

    /// Resets the count.
    pub(super) fn forget(&mut self) {
        self.in_a_row = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_restart_is_at_once_and_later_ones_wait_longer_and_longer() {
        let mut restarts = Restarts::default();
        let waits: Vec<_> = (0..10)
            .map(|_| restarts.died_after(Duration::from_secs(1), Cause::Failed))
            .map(|wait| wait.as_millis())
            .collect();
        let expected = [0, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000];
        assert_eq!(waits, expected);
        for _ in 0..1000 {
            restarts.died_after(Duration::ZERO, Cause::Failed);
        }
        let mut died = |cause| restarts.died_after(Duration::ZERO, cause);
        assert_eq!(died(Cause::Failed), LONGEST_WAIT);
        // However often it was killed, it is missed.
        assert_eq!(died(Cause::Killed), LONGEST_IF_KILLED);
    }

    #[test]
    fn a_long_life_makes_good() {
        let mut restarts = Restarts::default();
        let died =
            |restarts: &mut Restarts, lived: Duration| restarts.died_after(lived, Cause::Failed);
        for _ in 0..5 {
            died(&mut restarts, Duration::ZERO);
        }
        assert_eq!(died(&mut restarts, HEALTHY), Duration::ZERO);
        assert_eq!(died(&mut restarts, Duration::ZERO), FIRST_WAIT);
        restarts.forget();
        assert_eq!(died(&mut restarts, Duration::ZERO), Duration::ZERO);
    }
}
