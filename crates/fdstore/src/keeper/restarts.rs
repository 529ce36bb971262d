//! When a program that died is started again.

use std::time::Duration;

/// Who lived so long is well: its death counts as the first.
const HEALTHY: Duration = Duration::from_secs(10);

/// The wait after the second death in a row; it doubles from there.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// The longest wait. A keeper never gives up: mounts may depend on it.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Counts deaths.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    in_a_row: u32,
}

impl Restarts {
    /// Notes a death, and returns how long to wait before the next start.
    pub(super) fn died_after(&mut self, lived: Duration) -> Duration {
        if lived >= HEALTHY {
            self.in_a_row = 0;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        match self.in_a_row.checked_sub(2) {
            None => Duration::ZERO,
            // 2^7 of the first wait exceed the longest.
            Some(doublings) => (FIRST_WAIT * (1 << doublings.min(7))).min(LONGEST_WAIT),
        }
    }

    /// Forgets all deaths.
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
            .map(|_| restarts.died_after(Duration::from_secs(1)).as_millis())
            .collect();
        let expected = [0, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000];
        assert_eq!(waits, expected);
        for _ in 0..1000 {
            restarts.died_after(Duration::ZERO);
        }
        assert_eq!(restarts.died_after(Duration::ZERO), LONGEST_WAIT);
    }

    #[test]
    fn a_long_life_makes_good() {
        let mut restarts = Restarts::default();
        for _ in 0..5 {
            restarts.died_after(Duration::ZERO);
        }
        assert_eq!(restarts.died_after(HEALTHY), Duration::ZERO);
        assert_eq!(restarts.died_after(Duration::ZERO), FIRST_WAIT);
        restarts.forget();
        assert_eq!(restarts.died_after(Duration::ZERO), Duration::ZERO);
    }
}
