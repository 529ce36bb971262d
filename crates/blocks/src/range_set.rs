//! Sets of blocks, kept as sorted runs.

use crate::{BlockIndex, BlockRange};

/// A set of blocks of one file: sorted runs that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    runs: Vec<BlockRange>,
}

impl RangeSet {
    /// Returns the empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { runs: Vec::new() }
    }

    /// Returns the runs in order; between any two there is at least one block that is absent.
    #[must_use]
    pub fn runs(&self) -> &[BlockRange] {
        &self.runs
    }

    /// Returns whether the set has no block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.runs.iter().map(|run| run.len()).sum()
    }

    /// Returns whether `block` is in the set.
    #[must_use]
    pub fn contains(&self, block: BlockIndex) -> bool {
        let after = self.runs.partition_point(|run| run.end() <= block);
        self.runs.get(after).is_some_and(|run| run.contains(block))
    }

    /// Adds the blocks of `range`.
    pub fn insert(&mut self, range: BlockRange) {
        if range.is_empty() {
            return;
        }
        let first = self.runs.partition_point(|run| run.end() < range.start());
        let last = self.runs.partition_point(|run| run.start() <= range.end());
        let mut merged = range;
        if let Some(touched) = self
            .runs
            .get(first..last)
            .filter(|touched| !touched.is_empty())
        {
            let start = touched[0].start().min(range.start());
            let end = touched[touched.len() - 1].end().max(range.end());
            merged = BlockRange::new(start, end);
        }
        self.runs.splice(first..last, [merged]);
    }

    /// Removes the blocks of `range`.
    pub fn remove(&mut self, range: BlockRange) {
        if range.is_empty() {
            return;
        }
        let first = self.runs.partition_point(|run| run.end() <= range.start());
        let last = self.runs.partition_point(|run| run.start() < range.end());
        let kept: Vec<BlockRange> = self.runs[first..last]
            .iter()
            .flat_map(|run| [run.split_at(range.start()).0, run.split_at(range.end()).1])
            .filter(|run| !run.is_empty())
            .collect();
        self.runs.splice(first..last, kept);
    }

    /// Returns the parts of `range` that are in the set, in order.
    pub fn within(&self, range: BlockRange) -> impl Iterator<Item = BlockRange> {
        let first = self.runs.partition_point(|run| run.end() <= range.start());
        self.runs[first..]
            .iter()
            .map(move |run| run.intersect(range))
            .take_while(|run| !run.is_empty())
    }

    /// Returns the parts of `range` that are not in the set, in order.
    #[must_use]
    pub fn gaps(&self, range: BlockRange) -> Vec<BlockRange> {
        let mut gaps = Vec::new();
        let mut rest = range;
        for run in self.within(range) {
            let (before, after) = rest.split_at(run.start());
            if !before.is_empty() {
                gaps.push(before);
            }
            rest = after.split_at(run.end()).1;
        }
        if !rest.is_empty() {
            gaps.push(rest);
        }
        gaps
    }

    /// Returns the number of blocks that are in both sets.
    #[must_use]
    pub fn common_len(&self, other: &Self) -> u64 {
        self.runs
            .iter()
            .flat_map(|run| other.within(*run))
            .map(BlockRange::len)
            .sum()
    }
}

impl Extend<BlockRange> for RangeSet {
    fn extend<I: IntoIterator<Item = BlockRange>>(&mut self, ranges: I) {
        for range in ranges {
            self.insert(range);
        }
    }
}

impl FromIterator<BlockRange> for RangeSet {
    fn from_iter<I: IntoIterator<Item = BlockRange>>(ranges: I) -> Self {
        let mut set = Self::new();
        set.extend(ranges);
        set
    }
}
