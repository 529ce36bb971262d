//! The order in which a stream brings the chunks of a plan.

use std::collections::HashSet;

use blocks::ReplayPlan;
use chunks::index::{Index, ZEROS};

/// The maximum number of chunks of a plan that are streamed: 4 GiB. The plan comes from another machine, and may
/// name all of a source.
pub const PLAN_CHUNKS_MAX: usize = 1 << 15;

/// Returns the numbers of the chunks that the extents of `plan` lie in, each once, in the order of
/// first use, without chunks of zeros and at most [`PLAN_CHUNKS_MAX`]. Service and client both
/// compute it, so that the client knows which chunks will come. Files of the plan are those of the
/// index's tree.
#[must_use]
pub fn plan_order(index: &Index, plan: &ReplayPlan) -> Vec<u32> {
    let mut seen = HashSet::new();
    let chunks = plan.extents.iter().flat_map(|extent| {
        let start = extent.range.bytes().start;
        index.covering(extent.file, start, extent.range.byte_len())
    });
    let chunks = chunks.filter(|number| index.chunk(*number) != Some(ZEROS));
    let first = chunks.filter(|number| seen.insert(*number));
    first.take(PLAN_CHUNKS_MAX).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use blocks::testing::{Node, tree};
    use blocks::{BlockIndex, BlockRange, ContentId, Extent, FileId};
    use chunks::index::CHUNK_BYTES;

    use super::*;

    /// An index of two files, of `large` chunks and of one; chunk 1 is zeros.
    fn index(large: u64) -> Index {
        let nodes = [
            Node::dir(&[("a", 1), ("b", 2)]),
            Node::file(large * CHUNK_BYTES),
            Node::file(1),
        ];
        let chunks = (0..=large).map(|n| match n {
            1 => ZEROS,
            n => ContentId::of(&n.to_le_bytes()),
        });
        Index::new(b"a", Arc::new(tree(&nodes).unwrap()), chunks.collect()).unwrap()
    }

    /// Returns a plan of extents: file, first block, blocks.
    pub(crate) fn plan(extents: &[(u32, u64, u64)]) -> ReplayPlan {
        let extent = |(file, first, blocks): &(u32, u64, u64)| Extent {
            file: FileId(*file),
            range: BlockRange::with_len(BlockIndex(*first), *blocks),
            bin: 0,
            seen: 1,
        };
        ReplayPlan {
            extents: extents.iter().map(extent).collect(),
            ..ReplayPlan::default()
        }
    }

    #[test]
    fn each_chunk_comes_once_and_in_the_order_of_first_use() {
        let index = index(4);
        // Block 95 and 96 are on both sides of the end of chunk 2.
        let plan = plan(&[(2, 0, 1), (1, 95, 2), (1, 0, 96), (1, 64, 1)]);
        assert_eq!(plan_order(&index, &plan), [4, 2, 3, 0]);
    }

    #[test]
    fn what_is_in_no_file_is_left_out() {
        let plan = plan(&[(0, 0, 1), (9, 0, 1), (2, 1, 1), (2, 0, 1)]);
        assert_eq!(plan_order(&index(4), &plan), [4]);
    }

    #[test]
    fn a_plan_that_names_everything_is_cut() {
        let large = PLAN_CHUNKS_MAX as u64 + 5;
        let order = plan_order(&index(large), &plan(&[(1, 0, large * 32)]));
        assert_eq!(order.len(), PLAN_CHUNKS_MAX);
        assert_eq!((order[0], order[1]), (0, 2));
    }
}
