//! The index of a layer or of a stack of layers: which sectors of the device are where.

mod merge;
mod search;

use std::ops::Range;

pub use merge::LAYERS_MAX;

use crate::error::{Result, at_most, rule};
use crate::header::OPEN_SEGMENTS_MAX;
use crate::segment::{OFFSET_END, Segment};
use search::Search;

/// Segments in the order of the device, none of which overlap, with a tree that finds them.
#[derive(Debug, Default)]
pub struct Index {
    segments: Vec<Segment>,
    search: Search,
}

impl Index {
    /// Takes segments.
    ///
    /// # Errors
    ///
    /// Fails if they are out of order, overlap, are empty, or are more than 128 000 000.
    pub fn new(segments: Vec<Segment>) -> Result<Self> {
        at_most(
            "number of segments",
            segments.len() as u64,
            OPEN_SEGMENTS_MAX,
        )?;
        let mut end = 0;
        for segment in &segments {
            if segment.offset() < end || segment.sectors() == 0 {
                return rule("index", "segments overlap or are out of order");
            }
            end = segment.end();
        }
        if end > OFFSET_END {
            return rule("index", "a segment is past the largest device");
        }
        Ok(Self::of_sorted(segments))
    }

    /// Takes segments that are known to be in order.
    fn of_sorted(segments: Vec<Segment>) -> Self {
        Self {
            search: Search::new(&segments),
            segments,
        }
    }

    /// Returns the index of a stack, given those of its layers from the top to the bottom; the tag
    /// of each segment is the number of its layer in this list.
    ///
    /// # Errors
    ///
    /// Fails if there are more than 255 layers, or too many segments.
    pub fn merged(top_to_bottom: &[&Self]) -> Result<Self> {
        Ok(Self::of_sorted(merge::merge(top_to_bottom)?))
    }

    /// Returns the segments.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the segment that has a sector.
    #[inline]
    pub fn find(&self, sector: u64) -> Option<Segment> {
        let found = self.segments[self.search.last_from(sector)?];
        (sector - found.offset() < found.sectors()).then_some(found)
    }

    /// Returns the parts of segments within the sectors, in order; sectors without a segment are left out.
    pub fn within(&self, sectors: Range<u64>) -> impl Iterator<Item = Segment> + '_ {
        let first = self.search.last_from(sectors.start).map_or(0, |at| {
            at + usize::from(self.segments[at].end() <= sectors.start)
        });
        // Nothing lies in no sectors, not even a part of a segment.
        let end = if sectors.is_empty() { 0 } else { sectors.end };
        self.segments[first..]
            .iter()
            .take_while(move |segment| segment.offset() < end)
            .map(move |segment| segment.clipped(sectors.start, sectors.end))
    }
}

#[cfg(test)]
mod tests;
