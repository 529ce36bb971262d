//! How fast something is read, written or sent.

use std::num::NonZeroU64;
use std::time::Duration;

/// A rate in bytes per second, never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(NonZeroU64);

const NANOS_PER_SEC: u128 = 1_000_000_000;

impl Rate {
    /// Returns a rate in bytes per second, or `None` for 0.
    #[must_use]
    pub const fn per_second(bytes: u64) -> Option<Self> {
        match NonZeroU64::new(bytes) {
            Some(bytes) => Some(Self(bytes)),
            None => None,
        }
    }

    /// Returns the rate at which `bytes` took `time`; `None` if one of them is too small to measure.
    #[must_use]
    pub fn measured(bytes: u64, time: Duration) -> Option<Self> {
        let per_second = (u128::from(bytes) * NANOS_PER_SEC).checked_div(time.as_nanos())?;
        Self::per_second(u64::try_from(per_second).unwrap_or(u64::MAX))
    }

    /// Returns the bytes in each second.
    #[must_use]
    pub const fn bytes_per_second(self) -> u64 {
        self.0.get()
    }

    /// Returns the duration for `bytes`, rounded down to nanoseconds; `Duration::MAX` if it is
    /// longer.
    #[must_use]
    pub fn time_for(self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * NANOS_PER_SEC / u128::from(self.0.get());
        let secs = u64::try_from(nanos / NANOS_PER_SEC);
        let rest = u32::try_from(nanos % NANOS_PER_SEC);
        match (secs, rest) {
            (Ok(secs), Ok(rest)) => Duration::new(secs, rest),
            _ => Duration::MAX,
        }
    }

    /// Returns the bytes of some time, rounded down; the most there are if it is more.
    #[must_use]
    pub fn bytes_in(self, time: Duration) -> u64 {
        let rate = u128::from(self.0.get());
        let secs = u128::from(time.as_secs()) * rate;
        let rest = u128::from(time.subsec_nanos()) * rate / NANOS_PER_SEC;
        u64::try_from(secs + rest).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(bytes: u64) -> Rate {
        Rate::per_second(bytes).unwrap()
    }

    #[test]
    fn a_rate_tells_times_and_times_tell_a_rate() {
        assert_eq!(rate(1000).time_for(1500), Duration::from_millis(1500));
        assert_eq!(
            Rate::measured(1500, Duration::from_millis(1500)),
            Some(rate(1000))
        );
        assert_eq!(rate(u64::MAX).time_for(u64::MAX), Duration::from_secs(1));
        assert_eq!(rate(1000).bytes_in(Duration::from_millis(1500)), 1500);
        assert_eq!(rate(u64::MAX).bytes_in(Duration::MAX), u64::MAX);
        assert_eq!(rate(1).time_for(u64::MAX), Duration::from_secs(u64::MAX));
    }

    #[test]
    fn nothing_in_some_time_and_something_in_no_time_are_no_rates() {
        assert_eq!(Rate::per_second(0), None);
        assert_eq!(Rate::measured(0, Duration::from_secs(1)), None);
        assert_eq!(Rate::measured(1, Duration::ZERO), None);
        assert_eq!(
            Rate::measured(u64::MAX, Duration::from_nanos(1)),
            Some(rate(u64::MAX))
        );
    }
}
