//! Turns in a shuffled order, and what is said of their samples.

use std::time::{SystemTime, UNIX_EPOCH};

/// A small generator (splitmix64): shuffling needs no better one, only another seed each time.
#[derive(Clone, Debug)]
pub struct Shuffle {
    state: u64,
}

impl Shuffle {
    /// Starts from the clock.
    #[must_use]
    pub fn from_clock() -> Self {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self::from_seed(u64::from(since.subsec_nanos()) ^ since.as_secs())
    }

    /// Starts from a seed: the same one gives the same order.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns a number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }

    /// Returns the items in another order.
    pub fn order<T: Clone>(&mut self, items: &[T]) -> Vec<T> {
        let mut left = items.to_vec();
        let mut order = Vec::with_capacity(left.len());
        while !left.is_empty() {
            let index = usize::try_from(self.below(left.len() as u64)).unwrap_or(0);
            order.push(left.swap_remove(index));
        }
        order
    }
}

/// Returns the middle of the samples, or nothing if there are none.
#[must_use]
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(sorted[sorted.len() / 2 - 1], upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn an_order_holds_everything_once_and_changes() {
        let items: Vec<u32> = (0..50).collect();
        let mut shuffle = Shuffle::from_seed(1);
        let (first, second) = (shuffle.order(&items), shuffle.order(&items));
        assert_ne!(first, second);
        for mut order in [first, second] {
            order.sort_unstable();
            assert_eq!(order, items);
        }
    }
}
