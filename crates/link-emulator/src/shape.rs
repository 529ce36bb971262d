//! How long and how wide a line is.

use std::time::Duration;

/// How long bytes wait for their turn on the line at most before the sender is made to wait: what a
/// router with a short queue holds. Demand is behind this much of whatever else is on the line.
const QUEUE: Duration = Duration::from_millis(20);

/// Bytes of one connection that are on their way in one direction.
const WINDOW_MIN: u64 = 256 << 10;
const WINDOW_MAX: u64 = 64 << 20;

/// How long and how wide a line is, the same in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// How long a byte is on its way: half of a round trip.
    pub delay: Duration,
    /// Bytes a second, 0 for no limit.
    pub bytes_per_second: u64,
}

impl Shape {
    /// Returns a line with this round trip and so many millions of bits a second (0 for no limit).
    #[must_use]
    pub fn new(round_trip: Duration, mbit_per_second: u64) -> Self {
        Self {
            delay: round_trip / 2,
            bytes_per_second: mbit_per_second.saturating_mul(1_000_000 / 8),
        }
    }

    /// Returns the duration of so many bytes on the line.
    #[must_use]
    pub fn time_of(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000;
        nanos
            .checked_div(self.bytes_per_second.into())
            .map_or(Duration::ZERO, |nanos| {
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            })
    }

    /// Returns how long bytes may be queued.
    pub(crate) const fn queue(&self) -> Duration {
        QUEUE
    }

    /// Returns how many bytes of a connection may be on their way: what the line holds, and its queue.
    pub(crate) fn window(&self) -> u64 {
        if self.bytes_per_second == 0 {
            return WINDOW_MAX;
        }
        let held = (self.delay + QUEUE).as_nanos() * u128::from(self.bytes_per_second);
        let held = u64::try_from(held / 1_000_000_000).unwrap_or(u64::MAX);
        held.clamp(WINDOW_MIN, WINDOW_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_gives_times() {
        let shape = Shape::new(Duration::from_millis(20), 8);
        assert_eq!(shape.delay, Duration::from_millis(10));
        assert_eq!(shape.bytes_per_second, 1_000_000);
        assert_eq!(shape.time_of(1_000), Duration::from_millis(1));
        let no_limit = Shape::new(Duration::ZERO, 0);
        assert_eq!(no_limit.time_of(u64::MAX), Duration::ZERO);
    }

    #[test]
    fn the_window_holds_what_the_line_does_and_is_bounded() {
        let wide = Shape::new(Duration::from_millis(20), 1_000);
        assert_eq!(wide.window(), 125_000_000 / 1000 * 30);
        assert_eq!(Shape::new(Duration::ZERO, 1).window(), WINDOW_MIN);
        let endless = Shape::new(Duration::from_secs(100), 100_000);
        assert_eq!(endless.window(), WINDOW_MAX);
        assert_eq!(Shape::default().window(), WINDOW_MAX);
    }
}
