//! Which layers of a pull are waited for, predicted from the sizes in the manifest.

use std::num::NonZeroUsize;

use tiering::lass::{Part, Placement, last_downloaded};

/// The layer that is downloaded last, of those that are missing: it and those above it are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Predicted {
    last: usize,
}

impl Predicted {
    /// Predicts from the sizes of blobs, the lowest layer first, of which `concurrent` are downloaded at a time;
    /// `None` without blobs.
    pub(crate) fn of(sizes: &[u64], concurrent: NonZeroUsize) -> Option<Self> {
        let last = last_downloaded(sizes, concurrent)?;
        Some(Self { last })
    }

    /// Returns the prediction that the layer `last` is downloaded last.
    pub(crate) const fn at(last: usize) -> Self {
        Self { last }
    }

    /// Returns the index of the layer that is downloaded last.
    pub(crate) const fn last(self) -> usize {
        self.last
    }

    /// Returns which part of the pull a layer is.
    pub(crate) const fn part(self, index: usize) -> Part {
        match index >= self.last {
            true => Part::LastOrAbove,
            false => Part::Below,
        }
    }

    /// Returns where a layer goes, if there is fast memory.
    pub(crate) const fn place(self, index: usize) -> Placement {
        match index >= self.last {
            true => Placement::Fast,
            false => Placement::Slow,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_layer_and_those_above_it_are_waited_for() {
        let three = NonZeroUsize::new(3).unwrap();
        assert_eq!(Predicted::of(&[], three), None);
        let predicted = Predicted::of(&[10, 1000, 10], three).unwrap();
        assert_eq!(predicted.last(), 1);
        let places = [0, 1, 2].map(|index| predicted.place(index));
        assert_eq!(places, [Placement::Slow, Placement::Fast, Placement::Fast]);
        assert_eq!(predicted.part(0), Part::Below);
        assert_eq!(predicted.part(2), Part::LastOrAbove);
    }
}
