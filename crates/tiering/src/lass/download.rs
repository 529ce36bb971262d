//! Predicts which layer is downloaded last, from the sizes in the manifest.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroUsize;

/// Layers that engines download at once unless they are configured otherwise: dockerd's
/// `--max-concurrent-downloads`, and what the CRI of containerd takes over from it.
pub const CONCURRENT: NonZeroUsize = NonZeroUsize::new(3).unwrap();

/// Returns which of `layers`, compressed sizes from the lowest up, is downloaded last by an
/// engine that begins them in this order, `concurrent` at once, all at the same share of the
/// network. `None` if there are no layers.
///
/// Of two that end together the lower is returned: then more goes to fast memory than necessary,
/// and there is no unnecessary wait.
///
/// Layers that the engine already has must be left out.
#[must_use]
pub fn last_downloaded(layers: &[u64], concurrent: NonZeroUsize) -> Option<usize> {
    let mut last: Option<(u128, usize)> = None;
    for (layer, (_, end)) in spans(layers, concurrent).into_iter().enumerate() {
        if last.is_none_or(|(latest, _)| end > latest) {
            last = Some((end, layer));
        }
    }
    last.map(|(_, layer)| layer)
}

/// Returns when the downloads begin and end. With equal shares, time can be counted in bytes that each
/// running download got: it does not matter how fast the network is, nor how many share it.
pub(super) fn spans(layers: &[u64], concurrent: NonZeroUsize) -> Vec<(u128, u128)> {
    // Each slot ends one download and begins the next in the same moment.
    let mut slots: BinaryHeap<Reverse<u128>> = BinaryHeap::new();
    let span = |size: &u64| {
        let begin = if slots.len() < concurrent.get() {
            0
        } else {
            slots.pop().map_or(0, |Reverse(end)| end)
        };
        let end = begin + u128::from(*size);
        slots.push(Reverse(end));
        (begin, end)
    };
    layers.iter().map(span).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(layers: &[u64]) -> Option<usize> {
        last_downloaded(layers, CONCURRENT)
    }

    #[test]
    fn the_largest_is_the_last_unless_another_begins_late() {
        assert_eq!(last(&[]), None);
        assert_eq!(last(&[5]), Some(0));
        assert_eq!(last(&[100, 1, 1, 1, 1]), Some(0));
        assert_eq!(last(&[1, 100, 1, 1, 20]), Some(1));
        // The fourth begins when the shortest of three has ended, after 50.
        assert_eq!(last(&[50, 60, 70, 40, 1]), Some(3));
    }

    #[test]
    fn of_two_that_end_together_the_lower_is_taken() {
        assert_eq!(last(&[7, 7, 7]), Some(0));
        assert_eq!(last(&[0, 0, 0, 0, 0]), Some(0));
    }

    #[test]
    fn one_at_a_time_ends_with_the_top_and_all_at_once_with_the_largest() {
        let layers = [u64::MAX, 3, 9, u64::MAX, 2];
        let one = NonZeroUsize::MIN;
        assert_eq!(last_downloaded(&layers, one), Some(4));
        let all = NonZeroUsize::new(5).unwrap();
        assert_eq!(last_downloaded(&layers, all), Some(0));
    }
}
