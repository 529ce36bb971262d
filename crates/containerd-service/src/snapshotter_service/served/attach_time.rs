//! How long it takes until layers are mounted, as far as those before them tell.

use std::time::Duration;

/// The time that mounting one layer took lately.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AttachTime(Option<Duration>);

impl AttachTime {
    /// Notes how long one took; the last ones count most.
    pub(super) fn note(&mut self, took: Duration) {
        self.0 = Some(match self.0 {
            None => took,
            Some(before) => before.mul_f64(0.75) + took.mul_f64(0.25),
        });
    }

    /// Returns how long `layers` will take at least, with so many threads; nothing before the first was mounted.
    pub(super) fn of(self, layers: usize, threads: usize) -> Duration {
        let turns = u32::try_from(layers.div_ceil(threads)).unwrap_or(u32::MAX);
        self.0.unwrap_or_default().saturating_mul(turns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_layers_take_as_long_as_those_before() {
        let mut time = AttachTime::default();
        assert_eq!(time.of(500, 2), Duration::ZERO);
        time.note(Duration::from_millis(40));
        assert_eq!(time.of(121, 2), Duration::from_millis(61 * 40));
        assert_eq!(time.of(0, 2), Duration::ZERO);
        // It follows the disk, and not a single layer.
        time.note(Duration::from_millis(80));
        assert_eq!(time.of(2, 2), Duration::from_millis(50));
    }
}
