//! Finds the last segment that begins at or before a sector.
//!
//! A binary search of 4 500 segments takes 13 steps, each of which waits for the one before. So a
//! table says for each of some equal parts of the device which segment it begins with; there are
//! more parts than segments, so that a search within one takes a step or two. The number of steps is
//! the same for all sectors: a branch that the processor could predict wrongly costs more than a
//! step.
//!
//! A few segments far from all others would stretch the parts until one holds all the rest. So the
//! table spans only the range that holds most of the segments densely; a sector outside of it is
//! found by a binary search, as the branch to it costs nothing while sectors are inside.
//!
//! Images put most of their data in few places. If the parts of one table hold too unequal numbers of
//! segments, each has a table of its own, with as many parts as it needs. And where even this takes
//! nearly as many steps as a binary search, it is a binary search.

use std::ops::Range;

use crate::num::size;
use crate::segment::Segment;

/// How many parts a table has for each segment; of the largest indexes, which fit no cache, fewer.
const PARTS_PER_SEGMENT: u64 = 4;
const PARTS_PER_SEGMENT_OF_MANY: u64 = 1;
/// More segments than this are many.
const MANY: usize = 1 << 18;
/// Segments in the fullest part up to which one table is enough.
const FULL: usize = 4;
/// Of how many segments one may be left out of the tables, if it is far from the others.
const SEGMENTS_PER_OUTLIER: usize = 16;
/// How many segments a part of the first of two tables has, on average.
const SEGMENTS_PER_OUTER_PART: u64 = 8;

#[derive(Debug, Default)]
pub(super) struct Search {
    /// The first sector of the first segment in the tables.
    base: u64,
    /// From there to the first sector of the last segment in the tables.
    span: u64,
    /// A part of the outer table has two to this power sectors.
    shift: u32,
    /// Steps of the search within a part.
    steps: u32,
    tables: Tables,
}

#[derive(Debug, Default)]
enum Tables {
    /// Nothing but a search.
    #[default]
    None,
    /// The last segment that begins at or before each part.
    One(Vec<u32>),
    /// As `One`, in parts of parts.
    Two { outer: Vec<Outer>, inner: Vec<u32> },
}

/// A part of the outer of two tables.
#[derive(Clone, Copy, Debug)]
struct Outer {
    /// Where its parts begin in the inner table.
    inner: u32,
    /// The inner parts have two to this power sectors.
    shift: u32,
}

/// Returns two to which power sectors a part has, if `span` sectors have at most `parts`.
fn shift_for(span: u64, parts: u64) -> u32 {
    (0..64).find(|&shift| span >> shift < parts).unwrap_or(63)
}

/// Returns the number of steps that search among so many candidates.
fn steps_for(candidates: usize) -> u32 {
    usize::BITS - candidates.saturating_sub(1).leading_zeros()
}

/// Returns the range of segments that the tables are of: the densest that leaves out few, and what
/// can be added at both ends while it is at most twice as long.
fn dense_range(segments: &[Segment]) -> Range<usize> {
    let kept = segments.len() - segments.len() / SEGMENTS_PER_OUTLIER;
    let distance = |from: usize, to: usize| segments[to].offset() - segments[from].offset();
    let densest = (0..=segments.len() - kept).min_by_key(|&from| distance(from, from + kept - 1));
    let mut from = densest.unwrap_or(0);
    let mut last = from + kept - 1;
    let longest = 2 * distance(from, last);
    while last + 1 < segments.len() && distance(from, last + 1) <= longest {
        last += 1;
    }
    while from > 0 && distance(from - 1, last) <= longest {
        from -= 1;
    }
    from..last + 1
}

/// Walks parts in order and says which segment each begins with.
struct Walk<'a> {
    segments: &'a [Segment],
    at: usize,
    fullest: usize,
}

impl Walk<'_> {
    /// Appends the entries of `parts` parts of two to the power `shift` sectors each.
    fn append(&mut self, table: &mut Vec<u32>, start: u64, parts: u64, shift: u32) {
        for part in 0..parts {
            let first = self.at_or_before(start + (part << shift));
            let last = self.at_or_before(start + ((part + 1) << shift) - 1);
            self.fullest = self.fullest.max(last - first + 1);
            table.push(u32::try_from(first).unwrap_or(u32::MAX));
        }
    }

    fn at_or_before(&mut self, sector: u64) -> usize {
        while self
            .segments
            .get(self.at + 1)
            .is_some_and(|next| next.offset() <= sector)
        {
            self.at += 1;
        }
        self.at
    }
}

fn parts_per_segment(segments: &[Segment]) -> u64 {
    match segments.len() > MANY {
        true => PARTS_PER_SEGMENT_OF_MANY,
        false => PARTS_PER_SEGMENT,
    }
}

impl Search {
    pub(super) fn new(segments: &[Segment]) -> Self {
        if segments.is_empty() {
            return Self::default();
        }
        let plain = steps_for(segments.len());
        let dense = dense_range(segments);
        let (first, count) = (dense.start, dense.len() as u64);
        let segments = &segments[..dense.end];
        let one = Self::one(segments, first, count * parts_per_segment(segments));
        if one.steps <= steps_for(FULL) {
            return one;
        }
        let two = Self::two(segments, first, count / SEGMENTS_PER_OUTER_PART + 1);
        // Each table costs about as much as a step.
        let choices = [(one.steps + 1, one), (two.steps + 3, two)];
        let best = choices.into_iter().min_by_key(|(cost, _)| *cost);
        match best {
            Some((cost, best)) if cost + 1 < plain => best,
            _ => Self::default(),
        }
    }

    fn one(segments: &[Segment], first: usize, parts: u64) -> Self {
        let base = segments[first].offset();
        let span = segments[segments.len() - 1].offset() - base;
        let shift = shift_for(span, parts);
        let parts = (span >> shift) + 1;
        let mut walk = Walk {
            segments,
            at: first,
            fullest: 0,
        };
        let mut table = Vec::with_capacity(size(parts));
        walk.append(&mut table, base, parts, shift);
        Self {
            base,
            span,
            shift,
            steps: steps_for(walk.fullest),
            tables: Tables::One(table),
        }
    }

    fn two(segments: &[Segment], first: usize, parts: u64) -> Self {
        let base = segments[first].offset();
        let span = segments[segments.len() - 1].offset() - base;
        let shift = shift_for(span, parts);
        let mut outer = Vec::new();
        let mut inner = Vec::new();
        let mut walk = Walk {
            segments,
            at: first,
            fullest: 0,
        };
        for part in 0..=span >> shift {
            let start = base + (part << shift);
            let from = walk.at_or_before(start);
            let end = start + (1 << shift);
            let held = segments[from..].partition_point(|segment| segment.offset() < end) as u64;
            let bits = (held * parts_per_segment(segments))
                .next_power_of_two()
                .trailing_zeros()
                .min(shift);
            outer.push(Outer {
                inner: u32::try_from(inner.len()).unwrap_or(u32::MAX),
                shift: shift - bits,
            });
            walk.append(&mut inner, start, 1 << bits, shift - bits);
        }
        Self {
            base,
            span,
            shift,
            steps: steps_for(walk.fullest),
            tables: Tables::Two { outer, inner },
        }
    }

    /// Returns how many segments a search may look at behind the last one.
    pub(super) fn window(&self) -> usize {
        1 << self.steps
    }

    #[cfg(test)]
    pub(super) const fn has_tables(&self) -> bool {
        !matches!(self.tables, Tables::None)
    }

    /// Returns the place of the last segment that begins at or before a sector; of one that begins
    /// behind it if there is none.
    #[inline]
    pub(super) fn last_from(&self, segments: &[Segment], sector: u64) -> usize {
        // A sector before the tables becomes a large number.
        let distance = sector.wrapping_sub(self.base);
        if distance > self.span {
            return self.without_tables(segments, sector);
        }
        let part = size(distance >> self.shift);
        let mut at = match &self.tables {
            Tables::None => return self.without_tables(segments, sector),
            Tables::One(table) => table[part] as usize,
            Tables::Two { outer, inner } => {
                let found = outer[part];
                let inner_part = (distance & ((1 << self.shift) - 1)) >> found.shift;
                inner[found.inner as usize + size(inner_part)] as usize
            }
        };
        for step in (0..self.steps).rev() {
            let next = at + (1 << step);
            at = match segments[next].offset() <= sector {
                true => next,
                false => at,
            };
        }
        at
    }

    /// Does what `last_from` does by binary search. Kept out of line, as it slows the search in tables
    /// by a tenth if inlined there.
    #[cold]
    #[inline(never)]
    fn without_tables(&self, segments: &[Segment], sector: u64) -> usize {
        let count = segments.len() - self.window();
        segments[..count]
            .partition_point(|segment| segment.offset() <= sector)
            .saturating_sub(1)
    }
}
