//! How alike several runs were.

use blocks::{BlockRange, FileId};

use super::first_reads::{FirstRead, Piece};

/// How alike the runs were, each figure from 0 (nothing in common) to 1 (the same). A single run,
/// and runs that read nothing, are the same as themselves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Similarity {
    /// Blocks that both runs of a pair read, over blocks that either read: the least alike pair.
    pub jaccard_min: f64,
    /// The same, mean over all pairs.
    pub jaccard_mean: f64,
    /// Of the blocks that both runs of a pair read, the largest share that both first read in the
    /// same order; mean over all pairs.
    pub order_mean: f64,
    /// Blocks that all runs read, over blocks that any run read.
    pub core_share: f64,
}

impl Similarity {
    pub(super) fn of(runs: &[Vec<FirstRead>], pieces: &[Piece]) -> Self {
        let mut jaccards = Vec::new();
        let mut orders = Vec::new();
        for (index, a) in runs.iter().enumerate() {
            for b in &runs[index + 1..] {
                let common = common(a, b);
                let shared = total(common.iter().map(|piece| piece.range));
                let either = total(a.iter().chain(b).map(|read| read.range)) - shared;
                jaccards.push(share(shared, either));
                orders.push(share(longest_common_order(&common), shared));
            }
        }
        let in_core = |piece: &&Piece| usize::from(piece.seen) == runs.len();
        let core = total(pieces.iter().filter(in_core).map(|piece| piece.range));
        let all = total(pieces.iter().map(|piece| piece.range));
        Self {
            jaccard_min: jaccards.iter().copied().fold(1.0, f64::min),
            jaccard_mean: mean(&jaccards),
            order_mean: mean(&orders),
            core_share: share(core, all),
        }
    }
}

/// Blocks that two runs read, and when each first did.
struct Common {
    file: FileId,
    range: BlockRange,
    a_us: u64,
    b_us: u64,
}

/// Returns what two sorted lists of disjoint reads have in common.
fn common(a: &[FirstRead], b: &[FirstRead]) -> Vec<Common> {
    let mut common = Vec::new();
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
        let range = x.range.intersect(y.range);
        if x.file == y.file && !range.is_empty() {
            common.push(Common {
                file: x.file,
                range,
                a_us: x.at_us,
                b_us: y.at_us,
            });
        }
        if (x.file, x.range.end()) <= (y.file, y.range.end()) {
            a.next();
        } else {
            b.next();
        }
    }
    common
}

/// Returns the number of blocks in the largest part of `common` that both runs read in the same
/// order: the heaviest rising subsequence of the ranks in `b`, taken in the order of `a`.
fn longest_common_order(common: &[Common]) -> u128 {
    let place = |piece: &Common| (piece.file, piece.range.start());
    let in_order = |time: fn(&Common) -> u64| -> Vec<usize> {
        let mut order: Vec<usize> = (0..common.len()).collect();
        order.sort_unstable_by_key(|i| (time(&common[*i]), place(&common[*i])));
        order
    };
    let mut rank_in_b = vec![0; common.len()];
    for (rank, index) in in_order(|piece| piece.b_us).into_iter().enumerate() {
        rank_in_b[index] = rank;
    }
    let mut heaviest = PrefixMax::new(common.len());
    for index in in_order(|piece| piece.a_us) {
        let rank = rank_in_b[index];
        let weight = heaviest.below(rank) + u128::from(common[index].range.len());
        heaviest.raise(rank, weight);
    }
    heaviest.below(common.len())
}

/// The largest value below an index, where values only ever rise: a Fenwick tree.
struct PrefixMax {
    tree: Vec<u128>,
}

impl PrefixMax {
    fn new(len: usize) -> Self {
        Self {
            tree: vec![0; len + 1],
        }
    }

    fn below(&self, end: usize) -> u128 {
        let mut at = end;
        let mut max = 0;
        while at > 0 {
            max = self.tree[at].max(max);
            at &= at - 1; // drops the lowest bit
        }
        max
    }

    fn raise(&mut self, index: usize, value: u128) {
        let mut at = index + 1;
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].max(value);
            at += at & at.wrapping_neg(); // adds the lowest bit
        }
    }
}

/// Counts blocks. Sizes of files come from a tree, and a hostile one can have many files of any
/// size: 64 bits would not do.
fn total(ranges: impl Iterator<Item = BlockRange>) -> u128 {
    ranges.map(|range| u128::from(range.len())).sum()
}

/// Returns a part as a share of the whole; of nothing, all.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 blocks")]
fn share(part: u128, whole: u128) -> f64 {
    if whole == 0 {
        1.0
    } else {
        part as f64 / whole as f64
    }
}

fn mean(shares: &[f64]) -> f64 {
    let count = u32::try_from(shares.len()).unwrap_or(u32::MAX);
    if count == 0 {
        1.0
    } else {
        shares.iter().sum::<f64>() / f64::from(count)
    }
}
