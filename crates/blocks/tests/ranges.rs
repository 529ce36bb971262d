//! Range arithmetic against sets that hold every block by itself.

use std::collections::BTreeSet;

use blocks::{BLOCK_SIZE, BlockIndex, BlockRange, RangeSet};
use proptest::prelude::*;

/// Small enough to write every block down, large enough for runs to meet in every way.
const BLOCKS: u64 = 40;

type Naive = BTreeSet<u64>;

fn any_range() -> impl Strategy<Value = BlockRange> {
    (0..BLOCKS, 0..12_u64).prop_map(|(start, len)| BlockRange::with_len(BlockIndex(start), len))
}

fn naive(range: BlockRange) -> Naive {
    (range.start().0..range.end().0).collect()
}

fn naive_of(ranges: impl IntoIterator<Item = BlockRange>) -> Naive {
    ranges.into_iter().flat_map(naive).collect()
}

/// The only form a set may have: sorted, nothing empty, nothing that could be one run with the
/// next.
fn assert_canonical(set: &RangeSet) {
    assert!(set.runs().iter().all(|run| !run.is_empty()));
    assert!(
        set.runs()
            .windows(2)
            .all(|pair| pair[0].end() < pair[1].start())
    );
}

proptest! {
    #[test]
    fn one_range(a in any_range(), b in any_range(), at in 0..BLOCKS + 20) {
        let (na, nb) = (naive(a), naive(b));
        prop_assert_eq!(a.len(), na.len() as u64);
        prop_assert_eq!(a.is_empty(), na.is_empty());
        prop_assert_eq!(a.contains(BlockIndex(at)), na.contains(&at));
        prop_assert_eq!(a.byte_len(), na.len() as u64 * BLOCK_SIZE as u64);
        prop_assert_eq!(a.iter().map(|block| block.0).collect::<Naive>(), na.clone());
        let common = a.intersect(b);
        prop_assert_eq!(naive(common), &na & &nb);
        prop_assert_eq!(common.is_empty(), (&na & &nb).is_empty());
        if !a.is_empty() && !b.is_empty() {
            let near: Naive = na.iter().flat_map(|block| [*block, block + 1]).collect();
            let near_b: Naive = nb.iter().flat_map(|block| [*block, block + 1]).collect();
            prop_assert_eq!(a.touches(b), !(&near & &nb).is_empty() || !(&near_b & &na).is_empty());
        }
        let (before, rest) = a.split_at(BlockIndex(at));
        prop_assert_eq!(naive(before), na.range(..at).copied().collect::<Naive>());
        prop_assert_eq!(naive(rest), na.range(at..).copied().collect::<Naive>());
        let (first, others) = a.split_first(at);
        prop_assert_eq!(first.len(), at.min(a.len()));
        prop_assert_eq!(&naive(first) | &naive(others), na);
    }

    #[test]
    fn bytes_and_blocks(offset in 0..200_000_u64, len in 0..50_000_u64) {
        let block = BLOCK_SIZE as u64;
        let range = BlockRange::covering(offset, len);
        let want: Naive = (0..100)
            .filter(|i| offset < (i + 1) * block && i * block < offset + len)
            .filter(|_| len > 0)
            .collect();
        prop_assert_eq!(naive(range), want);
        prop_assert_eq!(range.start(), BlockIndex::containing(offset));
        if len > 0 {
            prop_assert!(range.bytes().start <= offset && offset + len <= range.bytes().end);
        }
    }

    #[test]
    fn sets(
        steps in prop::collection::vec((any_range(), any::<bool>()), 0..30),
        other in prop::collection::vec(any_range(), 0..8),
        window in any_range(),
    ) {
        let mut set = RangeSet::new();
        let mut model = Naive::new();
        for (range, add) in steps {
            if add {
                set.insert(range);
                model.extend(naive(range));
            } else {
                set.remove(range);
                model.retain(|block| !naive(range).contains(block));
            }
            assert_canonical(&set);
            prop_assert_eq!(naive_of(set.runs().iter().copied()), model.clone());
        }
        prop_assert_eq!(set.len(), model.len() as u64);
        prop_assert_eq!(set.is_empty(), model.is_empty());
        for block in 0..BLOCKS + 20 {
            prop_assert_eq!(set.contains(BlockIndex(block)), model.contains(&block));
        }
        let within: Vec<_> = set.within(window).collect();
        prop_assert!(within.is_sorted());
        prop_assert_eq!(naive_of(within), &model & &naive(window));
        let gaps = set.gaps(window);
        prop_assert!(gaps.is_sorted() && gaps.iter().all(|gap| !gap.is_empty()));
        prop_assert_eq!(naive_of(gaps), &naive(window) - &model);
        let other: RangeSet = other.into_iter().collect();
        let other_model = naive_of(other.runs().iter().copied());
        let common = (&model & &other_model).len() as u64;
        prop_assert_eq!(set.common_len(&other), common);
        prop_assert_eq!(other.common_len(&set), common);
    }

    /// Offsets and counts from hostile files: anything at all.
    #[test]
    fn the_largest_numbers_are_no_exception(a in any::<[u64; 2]>(), b in any::<[u64; 2]>()) {
        let ranges = [
            BlockRange::new(BlockIndex(a[0]), BlockIndex(a[1])),
            BlockRange::with_len(BlockIndex(b[0]), b[1]),
            BlockRange::covering(a[1], b[1]),
            BlockRange::covering(u64::MAX, a[0]),
            BlockRange::with_len(BlockIndex(u64::MAX), 1),
        ];
        for one in ranges {
            prop_assert!(one.start() <= one.end());
            prop_assert_eq!(one.iter().len() as u64, one.len());
            prop_assert!(one.bytes().start <= one.bytes().end);
            prop_assert!(one.byte_len() >= one.len());
            let (head, tail) = one.split_first(b[0]);
            prop_assert_eq!(head.len() + tail.len(), one.len());
            for other in ranges {
                prop_assert!(one.intersect(other).len() <= one.len().min(other.len()));
                prop_assert_eq!(one.intersect(other).len(), other.intersect(one).len());
            }
        }
        let mut set: RangeSet = ranges.into_iter().collect();
        assert_canonical(&set);
        set.remove(ranges[0]);
        assert_canonical(&set);
        prop_assert_eq!(set.within(ranges[0]).count(), 0);
    }
}

#[test]
fn a_run_that_is_past_the_largest_index_is_cut() {
    let all = BlockRange::with_len(BlockIndex(1), u64::MAX);
    assert_eq!(all.end(), BlockIndex(u64::MAX));
    assert_eq!(all.byte_len(), u64::MAX);
    let last = all.iter().next().unwrap();
    assert_eq!(last, BlockIndex(1));
}
