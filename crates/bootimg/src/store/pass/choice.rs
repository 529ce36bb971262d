//! Which images of a store are worth most in memory: those that save most for what they add to the ones before them.
//!
//! An image that shares most of its blocks with one that is loaded adds little. So a budget goes to whole families of
//! images, whose segments are read from front to back, rather than to a part of many.

use std::collections::{BTreeMap, BTreeSet};

use blocks::{ContentId, RangeSet};

use super::{by_segment, order::read_soon};
use crate::layout::PAGE_BYTES;
use crate::store::catalog;
use crate::{ImageId, Store, StoreError, StoredImage};

/// An image that may be loaded.
struct Candidate {
    id: ImageId,
    wanted: BTreeMap<ContentId, RangeSet>,
    /// What it saves, in thousandths of a byte.
    saves: u128,
    /// Bytes that it adds to what is chosen.
    adds: u64,
}

impl Candidate {
    fn measure(&mut self, chosen: &BTreeMap<ContentId, RangeSet>) {
        let new = self.wanted.iter().map(|(segment, set)| {
            let had = chosen.get(segment);
            set.len() - had.map_or(0, |had| set.common_len(had))
        });
        self.adds = new.sum::<u64>() * PAGE_BYTES;
    }

    /// Returns what it saves for each byte that it adds.
    fn gain(&self) -> u128 {
        self.saves / u128::from(self.adds.max(1))
    }
}

impl Store {
    /// Returns the order in which images are loaded best, when no more than `budget` bytes may be: next is always the one
    /// that saves most for what it adds. Those that do not fit come last.
    ///
    /// # Errors
    /// If an image is missing or cannot be opened.
    pub fn best_first(
        &self,
        images: &[StoredImage],
        budget: u64,
    ) -> Result<Vec<ImageId>, StoreError> {
        read_soon(images.iter().map(|image| self.places.image(&image.info.id)));
        let mut left = Vec::with_capacity(images.len());
        for image in images {
            let described = catalog::describe(&self.places, &image.info.id)?;
            let mut candidate = Candidate {
                id: image.info.id,
                wanted: by_segment(&described),
                saves: u128::from(image.value) * u128::from(image.own_bytes),
                adds: 0,
            };
            candidate.measure(&BTreeMap::new());
            left.push(candidate);
        }
        Ok(choose(left, budget))
    }
}

fn choose(mut left: Vec<Candidate>, mut budget: u64) -> Vec<ImageId> {
    let mut order = Vec::with_capacity(left.len());
    let mut chosen: BTreeMap<ContentId, RangeSet> = BTreeMap::new();
    loop {
        let fitting = (0..).zip(&left).filter(|(_, one)| one.adds <= budget);
        let best = fitting.max_by_key(|(_, one)| (one.gain(), std::cmp::Reverse(one.id)));
        let Some((at, _)) = best else {
            break;
        };
        let best = left.swap_remove(at);
        budget -= best.adds;
        order.push(best.id);
        let touched: BTreeSet<ContentId> = best.wanted.keys().copied().collect();
        for (segment, set) in best.wanted {
            let had = chosen.entry(segment).or_default();
            had.extend(set.runs().iter().copied());
        }
        let shares = |one: &Candidate| one.wanted.keys().any(|id| touched.contains(id));
        for one in left.iter_mut().filter(|one| shares(one)) {
            one.measure(&chosen);
        }
    }
    order.extend(left.into_iter().map(|one| one.id));
    order
}

#[cfg(test)]
mod tests {
    use blocks::{BlockIndex, BlockRange};

    use super::*;

    fn id(name: &str) -> ContentId {
        ContentId::of(name.as_bytes())
    }

    /// An image with blocks of segments.
    fn image(name: &str, saves: u128, parts: &[(&str, u64, u64)]) -> Candidate {
        let mut one = Candidate {
            id: ImageId(id(name)),
            wanted: BTreeMap::new(),
            saves,
            adds: 0,
        };
        for (segment, start, end) in parts {
            let run = BlockRange::new(BlockIndex(*start), BlockIndex(*end));
            one.wanted.entry(id(segment)).or_default().insert(run);
        }
        one.measure(&BTreeMap::new());
        one
    }

    fn names(order: &[ImageId]) -> Vec<&'static str> {
        let all = ["a1", "a2", "a3", "b1", "b2", "old"];
        let name = |found: &ImageId| all.into_iter().find(|name| id(name) == found.0).unwrap();
        order.iter().map(name).collect()
    }

    fn families() -> Vec<Candidate> {
        vec![
            image("b1", 1_010 << 30, &[("b1", 0, 110)]),
            image("a1", 1_010 << 30, &[("a1", 0, 100)]),
            image("a2", 1_000 << 30, &[("a1", 0, 70), ("a2", 0, 30)]),
            image("b2", 1_000 << 30, &[("b1", 20, 110), ("b2", 0, 20)]),
            image(
                "a3",
                1_000 << 30,
                &[("a1", 0, 50), ("a2", 0, 25), ("a3", 0, 25)],
            ),
            image("old", 1, &[("a1", 0, 100)]),
        ]
    }

    #[test]
    fn a_family_comes_before_a_part_of_many() {
        let order = choose(families(), u64::MAX);
        assert_eq!(names(&order), ["a1", "a2", "a3", "b1", "b2", "old"]);
    }

    #[test]
    fn what_does_not_fit_comes_last() {
        // One family fits, and of the other nothing that it is worth to begin with.
        let budget = 155 * PAGE_BYTES;
        let order = names(&choose(families(), budget));
        assert_eq!(order[..4], ["a1", "a2", "a3", "old"]);
        assert_eq!(order.len(), 6);
    }
}
