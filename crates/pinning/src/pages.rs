//! A set of pages of a file.

use std::collections::BTreeMap;
use std::ops::Range;

/// Size of a page. Larger pages of some machines are split into these.
pub const PAGE: u64 = 4096;

/// A set of numbers of pages, as ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages(BTreeMap<u64, u64>);

impl Pages {
    /// Adds pages, and returns how many of them are new.
    pub fn insert(&mut self, pages: Range<u64>) -> u64 {
        if pages.is_empty() {
            return 0;
        }
        let (mut start, mut end) = (pages.start, pages.end);
        let mut known = 0;
        // Those that overlap or touch begin at its end at most; only the last of them that begins before it can.
        while let Some((&other, &other_end)) = self.0.range(..=end).next_back()
            && other_end >= start
        {
            let common = other_end
                .min(pages.end)
                .saturating_sub(other.max(pages.start));
            known += common;
            start = start.min(other);
            end = end.max(other_end);
            self.0.remove(&other);
        }
        self.0.insert(start, end);
        (pages.end - pages.start) - known
    }

    /// Adds the pages of another set, and returns how many of them are new.
    pub fn insert_all(&mut self, others: &Self) -> u64 {
        others.ranges().map(|range| self.insert(range)).sum()
    }

    /// Returns the ranges, in ascending order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(&start, &end)| start..end)
    }

    /// Returns how many pages there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.ranges().map(|range| range.end - range.start).sum()
    }

    /// Returns the part of `pages` that is in this set.
    #[must_use]
    pub fn common(&self, pages: &Range<u64>) -> Vec<Range<u64>> {
        let cut = |range: Range<u64>| range.start.max(pages.start)..range.end.min(pages.end);
        let first = self.0.range(..=pages.start).next_back();
        let from = first.map_or(pages.start, |(&start, _)| start);
        let near = self.0.range(from..pages.end.max(from));
        let cut = near.map(|(&start, &end)| cut(start..end));
        cut.filter(|range| !range.is_empty()).collect()
    }

    /// Returns the pages of a file of `size` bytes that are in this set.
    #[must_use]
    pub fn within(&self, size: u64) -> Self {
        let mut within = Self::default();
        for range in self.common(&(0..size.div_ceil(PAGE))) {
            within.insert(range);
        }
        within
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn range() -> impl Strategy<Value = Range<u64>> {
        (0_u64..60, 0_u64..12).prop_map(|(start, len)| start..start + len)
    }

    proptest! {
        #[test]
        fn it_is_a_set(ranges in proptest::collection::vec(range(), 0..20), window in range()) {
            let (mut pages, mut model) = (Pages::default(), BTreeSet::new());
            for range in ranges {
                let before = model.len();
                model.extend(range.clone());
                prop_assert_eq!(pages.insert(range), (model.len() - before) as u64);
            }
            let all: Vec<u64> = pages.ranges().flatten().collect();
            prop_assert_eq!(&all, &model.iter().copied().collect::<Vec<_>>());
            let ranges: Vec<_> = pages.ranges().collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            let common: Vec<u64> = pages.common(&window).into_iter().flatten().collect();
            prop_assert_eq!(common, model.range(window).copied().collect::<Vec<_>>());
            prop_assert_eq!(pages.count(), model.len() as u64);
        }
    }

    #[test]
    fn the_end_of_a_file_is_part_of_its_last_page() {
        let mut pages = Pages::default();
        pages.insert(0..10);
        assert_eq!(pages.within(2 * PAGE + 1).count(), 3);
        assert_eq!(pages.within(0).count(), 0);
    }
}
