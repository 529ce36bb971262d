//! A table that says in which leaf of the tree a key is, so that one step takes the place of all levels above the leaves.
//!
//! The range of the keys is divided into buckets of the same length. Each has the number of the leaf in which it begins, and
//! the first key of the next one if that begins in the bucket: one comparison tells whether a key is before it. So at most one
//! leaf may begin in a bucket. One in which several begin says so, and the tree is searched; where many are like that,
//! there is no table.

use super::FILLER;

/// The leaf of a bucket in which several leaves begin.
const SEARCHED: u32 = u32::MAX;
/// Buckets for each leaf, at most: twice as many bytes as the segments of the leaf take.
const BUCKETS_PER_LEAF: usize = 64;
/// The same for more leaves than images have: to write the table takes longer than all else, and a hostile index is not to
/// take twice its memory.
const BUCKETS_PER_LEAF_OF_MANY: usize = 32;
const MANY: usize = 1 << 15;
/// Of so many leaves, one may begin in a bucket with others.
const LEAVES_PER_SEARCHED: usize = 16;

#[derive(Debug)]
pub(super) struct Directory {
    /// Of a key, to get its bucket.
    shift: u32,
    buckets: Vec<Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// The one in which it begins.
    leaf: u32,
    /// The first key of the leaf that begins in it; above all keys if none does.
    next: i32,
}

impl Directory {
    /// Takes the first keys of leaves; none if they lie too unevenly.
    pub(super) fn new(firsts: &[i32]) -> Option<Self> {
        let (_, bounds) = firsts.split_first()?;
        let last = place(*bounds.last()?);
        let most = firsts.len()
            * match firsts.len() <= MANY {
                true => BUCKETS_PER_LEAF,
                false => BUCKETS_PER_LEAF_OF_MANY,
            };
        let finest = (0..u32::BITS).find(|&shift| (last >> shift) < most)?;
        // The coarsest that is good takes the least of the processor's cache.
        let worth_it = |shift: &u32| *shift == finest || last >> shift >= firsts.len();
        let mut from_coarsest = (finest..u32::BITS).rev().filter(worth_it);
        let shift = from_coarsest.find(|&shift| is_even(bounds, shift))?;
        Some(Self::of(bounds, shift))
    }

    fn of(bounds: &[i32], shift: u32) -> Self {
        let mut buckets = Vec::new();
        let mut leaf = 0;
        let within = |leaf| Bucket { leaf, next: FILLER };
        let begun = bounds.chunk_by(|one, next| bucket(*one, shift) == bucket(*next, shift));
        for begun in begun {
            buckets.resize(bucket(begun[0], shift), within(leaf));
            buckets.push(match *begun {
                [next] => Bucket { leaf, next },
                _ => within(SEARCHED),
            });
            leaf += u32::try_from(begun.len()).unwrap_or(u32::MAX);
        }
        // What is behind all of them.
        buckets.push(within(leaf));
        Self { shift, buckets }
    }

    /// Returns the leaf that has the last key up to a limit; `None` if the tree has to be searched.
    #[inline]
    pub(super) fn leaf(&self, limit: i32) -> Option<usize> {
        let bucket = bucket(limit, self.shift).min(self.buckets.len() - 1);
        let Bucket { leaf, next } = self.buckets[bucket];
        (leaf != SEARCHED).then(|| leaf as usize + usize::from(next <= limit))
    }
}

/// Keys begin at -1.
#[inline]
fn place(key: i32) -> usize {
    (key + 1).cast_unsigned() as usize
}

#[inline]
fn bucket(key: i32, shift: u32) -> usize {
    place(key) >> shift
}

/// Returns whether few leaves begin in the same bucket as others.
fn is_even(bounds: &[i32], shift: u32) -> bool {
    let buckets = bounds.chunk_by(|one, next| bucket(*one, shift) == bucket(*next, shift));
    let shared = buckets.map(<[i32]>::len).filter(|&leaves| leaves > 1);
    shared.sum::<usize>() * LEAVES_PER_SEARCHED <= bounds.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_in_its_leaf_or_is_searched() {
        let bounds = [9, 10, 50, 90, 91, 100];
        let directory = Directory::of(&bounds, 3);
        for limit in -1..200 {
            let leaf = bounds.iter().filter(|first| **first <= limit).count();
            let is_shared = (7..15).contains(&limit) || (87..95).contains(&limit);
            let expected = (!is_shared).then_some(leaf);
            assert_eq!(directory.leaf(limit), expected, "{limit}");
        }
        assert_eq!(directory.leaf(FILLER - 1), Some(6));
    }

    #[test]
    fn only_what_lies_evenly_has_one() {
        let even: Vec<i32> = (0..300).map(|leaf| leaf * 500 - 1).collect();
        let buckets = Directory::new(&even).unwrap().buckets.len();
        assert!((300..602).contains(&buckets), "{buckets}");
        let mut outlier = even;
        outlier.push(i32::MAX - 2);
        assert!(Directory::new(&outlier).is_none());
    }
}
