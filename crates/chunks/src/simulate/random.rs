//! A seeded generator of pseudorandom numbers: a workload is given by its parameters and a seed.

/// SplitMix64 (Steele et al., 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

/// Spreads a number over all bits; different numbers stay different.
pub(super) const fn mix(number: u64) -> u64 {
    let mut z = number;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Random {
    /// Returns the numbers that belong to `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        // The upper half of the product: no division, and no bias that matters here.
        let wide = u128::from(mix(self.0)) * u128::from(end);
        u64::try_from(wide >> 64).unwrap_or(0)
    }
}

/// Picks number *n* (from 0) with a chance in proportion to 1/(n+1)^s.
#[derive(Clone, Debug)]
pub struct Zipf {
    /// Sums of the weights up to each number.
    sums: Vec<u64>,
}

impl Zipf {
    /// Returns the distribution over `count` numbers, at least one.
    #[must_use]
    pub fn new(count: usize, exponent: f64) -> Self {
        /// Weights are whole numbers of this part of the first.
        const FIRST: f64 = 1e9;
        let mut sum = 0;
        let sums = (1..=count.max(1)).map(|rank| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "0 to 1e9"
            )]
            #[expect(clippy::cast_precision_loss, reason = "ranks are small")]
            let weight = (FIRST / (rank as f64).powf(exponent)) as u64;
            sum += weight.max(1);
            sum
        });
        Self {
            sums: sums.collect(),
        }
    }

    /// Picks a number.
    pub fn pick(&self, random: &mut Random) -> usize {
        let end = self.sums.last().copied().unwrap_or(1);
        let at = random.below(end);
        self.sums.partition_point(|sum| *sum <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_same_each_time_and_below_their_end() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..1000).map(|_| random.below(10)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        for digit in 0..10 {
            let count = draw(1).iter().filter(|n| **n == digit).count();
            assert!((60..140).contains(&count), "{digit}: {count}");
        }
    }

    #[test]
    fn the_first_is_picked_most() {
        let zipf = Zipf::new(100, 0.9);
        let mut random = Random::new(7);
        let mut counts = [0; 100];
        (0..10_000).for_each(|_| counts[zipf.pick(&mut random)] += 1);
        assert!(
            counts[0] > counts[9] && counts[9] > counts[99],
            "{counts:?}"
        );
        // 1 of 6.4 by the formula.
        assert!((1450..1700).contains(&counts[0]), "{}", counts[0]);
    }
}
