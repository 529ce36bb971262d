//! How much something was used lately.

use std::time::Duration;

/// Use that counts for less the longer ago it was: half after each half-life.
///
/// Times are since any one moment, the same for all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Heat {
    value: f64,
    at: Duration,
}

/// Time after which a use counts for half. A node's day: what a container started yesterday at
/// this time needs is still there, and what nobody started for a week is not.
pub const HALF_LIFE: Duration = Duration::from_hours(24);

impl Heat {
    /// Returns the decayed heat at `now`.
    #[must_use]
    pub fn at(&self, now: Duration) -> f64 {
        let age = now.saturating_sub(self.at).as_secs_f64() / HALF_LIFE.as_secs_f64();
        self.value * (-age).exp2()
    }

    /// Adds a use at `now`: `weight` is 1 for a start of a container that needs all of it.
    /// Weights that are no numbers, or below 0, are no use.
    pub fn add(&mut self, now: Duration, weight: f64) {
        let weight = if weight.is_finite() {
            weight.max(0.0)
        } else {
            0.0
        };
        *self = Self {
            value: self.at(now) + weight,
            at: now.max(self.at),
        };
    }

    /// Returns the heat of `uses` uses at `now`.
    #[must_use]
    pub fn of(uses: f64, now: Duration) -> Self {
        let mut heat = Self::default();
        heat.add(now, uses);
        heat
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_halves_with_each_half_life_and_uses_add_up() {
        let mut heat = Heat::of(8.0, Duration::ZERO);
        assert!((heat.at(HALF_LIFE) - 4.0).abs() < 1e-9);
        assert!((heat.at(HALF_LIFE * 3) - 1.0).abs() < 1e-9);
        heat.add(HALF_LIFE, 1.0);
        assert!((heat.at(HALF_LIFE) - 5.0).abs() < 1e-9);
        assert!(heat.at(HALF_LIFE * 4000) < 1e-9, "it goes to nothing");
    }

    #[test]
    fn a_clock_that_goes_back_and_odd_weights_do_no_harm() {
        let mut heat = Heat::of(2.0, HALF_LIFE);
        assert!((heat.at(Duration::ZERO) - 2.0).abs() < 1e-9);
        for weight in [f64::NAN, f64::INFINITY, -5.0] {
            heat.add(HALF_LIFE, weight);
        }
        assert!((heat.at(HALF_LIFE) - 2.0).abs() < 1e-9);
    }
}
