//! One index of the indexes of a stack.

use super::Index;
use crate::budget::IMAGE_SEGMENTS_MAX;
use crate::error::{Result, at_most};
use crate::segment::{SEGMENT_SECTORS_MAX, Segment};

/// Layers of the highest stack; a tag has no number for more.
pub const LAYERS_MAX: usize = 255;

/// Merges the indexes by halves, so that each segment is copied only as often as there are doublings.
pub(super) fn merge(top_to_bottom: &[&Index]) -> Result<Vec<Segment>> {
    at_most(
        "number of layers",
        top_to_bottom.len() as u64,
        LAYERS_MAX as u64,
    )?;
    halves(top_to_bottom, 0)
}

fn halves(layers: &[&Index], first: usize) -> Result<Vec<Segment>> {
    match layers {
        [] => Ok(Vec::new()),
        [only] => {
            let tag = u8::try_from(first).unwrap_or(u8::MAX);
            Ok(only
                .segments()
                .iter()
                .map(|segment| segment.tagged(tag))
                .collect())
        }
        _ => {
            let (upper, lower) = layers.split_at(layers.len() / 2);
            let upper = halves(upper, first)?;
            let lower = halves(lower, first + layers.len() / 2)?;
            let merged = two(&upper, &lower);
            at_most(
                "number of segments of all layers",
                merged.len() as u64,
                IMAGE_SEGMENTS_MAX,
            )?;
            Ok(merged)
        }
    }
}

/// Fills the gaps of one with the other.
fn two(upper: &[Segment], lower: &[Segment]) -> Vec<Segment> {
    let mut merged = Merged(Vec::with_capacity(upper.len() + lower.len()));
    let mut lower = lower.iter().copied().peekable();
    let mut from = 0;
    let ends = upper
        .iter()
        .map(|segment| (segment.offset(), Some(*segment)));
    for (gap_end, behind) in ends.chain([(u64::MAX, None)]) {
        while let Some(&segment) = lower.peek() {
            if segment.offset() >= gap_end {
                break;
            }
            if segment.end() > from && from < gap_end {
                merged.push(segment.clipped(from, gap_end));
            }
            if segment.end() > gap_end {
                break;
            }
            lower.next();
        }
        if let Some(segment) = behind {
            merged.push(segment);
            from = segment.end();
        }
    }
    merged.0
}

/// Segments, neighbors of which are joined.
struct Merged(Vec<Segment>);

impl Merged {
    fn push(&mut self, segment: Segment) {
        match self.0.last_mut() {
            Some(last)
                if last.continued_by(segment)
                    && last.sectors() + segment.sectors() <= SEGMENT_SECTORS_MAX =>
            {
                let (len, tag) = (last.sectors() + segment.sectors(), last.tag());
                *last =
                    Segment::new(last.offset(), len, last.moffset(), last.content()).tagged(tag);
            }
            _ => self.0.push(segment),
        }
    }
}
