//! A plan by the chunks that it lies in: who goes through it opens each chunk once.

use std::collections::HashMap;

use blocks::{BLOCK_SHIFT, Extent, FileId, ReplayPlan};
use chunks::index::CHUNK_BYTES;

use crate::PLAN_CHUNKS_MAX;

const CHUNK_BLOCKS: u64 = CHUNK_BYTES >> BLOCK_SHIFT;

/// Returns `plan` with its extents cut at the ends of chunks, and those of a chunk one behind the other, where the chunk is
/// used first. A start comes back to most chunks: in the order of the recording each is decompressed and verified
/// as often as it is out of memory by then. What lies in more than [`PLAN_CHUNKS_MAX`] chunks follows as it is.
#[must_use]
pub fn by_chunk(plan: &ReplayPlan) -> ReplayPlan {
    let mut places: HashMap<(FileId, u64), usize> = HashMap::new();
    let (mut parts, mut beyond) = (Vec::new(), Vec::new());
    for extent in &plan.extents {
        let mut rest = extent.range;
        while !rest.is_empty() {
            let start = rest.start().0;
            let next = places.len();
            let chunk = (extent.file, start / CHUNK_BLOCKS);
            let place = match places.get(&chunk) {
                Some(place) => *place,
                None if next < PLAN_CHUNKS_MAX => *places.entry(chunk).or_insert(next),
                None => {
                    let range = rest;
                    beyond.push(Extent { range, ..*extent });
                    break;
                }
            };
            let (range, after) = rest.split_first(CHUNK_BLOCKS - start % CHUNK_BLOCKS);
            parts.push((place, Extent { range, ..*extent }));
            rest = after;
        }
    }
    parts.sort_by_key(|(place, part)| (*place, part.range.start()));
    ReplayPlan {
        extents: parts.into_iter().map(|(_, p)| p).chain(beyond).collect(),
        touches: plan.touches.clone(),
        ..*plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan_order::tests::plan;

    fn ranges(plan: &ReplayPlan) -> Vec<(u32, u64, u64)> {
        let range = |e: &Extent| (e.file.0, e.range.start().0, e.range.len());
        plan.extents.iter().map(range).collect()
    }

    #[test]
    fn extents_of_a_chunk_follow_each_other_where_it_is_used_first() {
        // The second one lies in chunks 0 and 1 of file 1, the fourth in chunks 1 and 2.
        let recorded = plan(&[
            (1, 8, 4),
            (1, 30, 4),
            (2, 0, 1),
            (1, 60, 8),
            (1, 0, 2),
            (2, 3, 1),
        ]);
        let expected = [
            (1, 0, 2),
            (1, 8, 4),
            (1, 30, 2),
            (1, 32, 2),
            (1, 60, 4),
            (2, 0, 1),
            (2, 3, 1),
            (1, 64, 4),
        ];
        assert_eq!(ranges(&by_chunk(&recorded)), expected);
    }

    #[test]
    fn a_plan_that_names_everything_is_put_together_as_far_as_it_is_streamed() {
        let most = PLAN_CHUNKS_MAX as u64 * CHUNK_BLOCKS;
        let whole = by_chunk(&plan(&[(1, 0, 1 << 40), (2, 7, 1), (1, 1 << 41, 1)]));
        let all = ranges(&whole);
        assert_eq!(all.len(), PLAN_CHUNKS_MAX + 3);
        let rest = (1, most, (1 << 40) - most);
        assert_eq!(all[PLAN_CHUNKS_MAX..], [rest, (2, 7, 1), (1, 1 << 41, 1)]);
    }
}
