//! Finds the last segment that begins at or before a sector.
//!
//! A binary search of 4 500 segments takes 13 steps, each of which waits for the one before. This is a search
//! tree whose nodes have 16 keys, which are compared at once: three steps, wherever the segments are. A node has no
//! pointers: the tree is complete, and the places of nodes are computed. Where segments lie as evenly as those of images, a
//! [table](Directory) leads to the leaf at once: two steps.
//!
//! Keys are numbers of 32 bits. The device is divided into parts of 1 TiB; if it has segments in several of them, each
//! has a separate tree, and another one finds the part. Where a tree, or two of them, are slower than a binary search, there is
//! none: for few segments, and for parts that have few.

mod directory;

use rawio::sorted::{KEYS, count_at_most};

use crate::segment::Segment;
use directory::Directory;

/// A part has two to this power sectors.
const PART_BITS: u32 = 31;
/// Segments up to which a binary search of them is faster than a tree.
const FEW: usize = 8;
/// Segments above which a second tree is faster than a binary search.
const MANY: usize = 2048;
/// Segments that a part has at least, on average, where a second tree is faster.
const MANY_OF_PART: usize = 128;
/// Segments above which the steps of a binary search wait for memory, and trees are faster even for parts that have few.
const CACHED: usize = 1 << 14;
/// What fills nodes up: above every key.
const FILLER: i32 = i32::MAX;
/// Children of a node: one before each key, and one behind the last.
const CHILDREN: usize = KEYS + 1;

#[derive(Debug)]
pub(super) enum Search {
    /// By a binary search of where each segment begins: half of what the segments take, and nothing to be masked out.
    Steps(Vec<u64>),
    /// All segments are in one part.
    Tree(Part),
    Trees(Parts),
}

/// Parts that have segments, in the order of the device.
#[derive(Debug)]
pub(super) struct Parts {
    parts: Vec<Part>,
    /// The first sector of the first one.
    start: u64,
    /// The number of the last one.
    last: u64,
    /// Finds a part by its number.
    by_number: Tree,
}

#[derive(Debug)]
pub(super) struct Part {
    /// Where its first segment begins.
    start: u64,
    /// How far from that its last one begins.
    last: u64,
    /// The place of its first segment.
    first: usize,
    tree: Tree,
}

impl Default for Search {
    fn default() -> Self {
        Self::Steps(Vec::new())
    }
}

impl Search {
    pub(super) fn new(segments: &[Segment]) -> Self {
        let number = |segment: &Segment| {
            let base = segments.first().map_or(0, |segment| segment.offset());
            (segment.offset() - base) >> PART_BITS
        };
        let in_parts = || segments.chunk_by(|one, next| number(one) == number(next));
        let enough = match in_parts().take(2).count() {
            0 | 1 => FEW + 1,
            _ => MANY.max(in_parts().count() * MANY_OF_PART),
        };
        if segments.len() < enough && segments.len() <= CACHED {
            return Self::Steps(segments.iter().map(|segment| segment.offset()).collect());
        }
        let mut first = 0;
        let part = |segments: &[Segment]| {
            let part = Part::new(segments, first);
            first += segments.len();
            part
        };
        let mut parts: Vec<_> = in_parts().map(part).collect();
        match parts.len() {
            1 => Self::Tree(parts.remove(0)),
            _ => Self::Trees(Parts::new(parts)),
        }
    }

    /// Returns the place of the last segment that begins at or before a sector.
    #[inline]
    pub(super) fn last_from(&self, sector: u64) -> Option<usize> {
        match self {
            Self::Steps(offsets) => offsets.partition_point(|offset| *offset <= sector),
            Self::Tree(part) => part.count(sector),
            Self::Trees(parts) => parts.count(sector),
        }
        .checked_sub(1)
    }
}

impl Parts {
    fn new(parts: Vec<Part>) -> Self {
        let start = parts.first().map_or(0, |part| part.start);
        let numbers = parts.iter().map(|part| (part.start - start) >> PART_BITS);
        Self {
            start,
            last: numbers.clone().next_back().unwrap_or(0),
            by_number: Tree::new(numbers.map(key).collect()),
            parts,
        }
    }

    /// Returns how many segments of all parts begin at or before a sector.
    fn count(&self, sector: u64) -> usize {
        let Some(distance) = sector.checked_sub(self.start) else {
            return 0;
        };
        let number = (distance >> PART_BITS).min(self.last);
        let part = self.by_number.at_most(key(number)).saturating_sub(1);
        self.parts.get(part).map_or(0, |part| part.count(sector))
    }
}

impl Part {
    /// Takes segments, the first of which is the one at this place of the index.
    fn new(segments: &[Segment], place: usize) -> Self {
        let ends = [segments.first(), segments.last()];
        let [start, last] = ends.map(|end| end.map_or(0, |segment| segment.offset()));
        let distances = segments.iter().map(|segment| segment.offset() - start);
        Self {
            start,
            last: last - start,
            first: place,
            tree: Tree::new(distances.map(key).collect()),
        }
    }

    /// Returns how many segments, of this part and those before it, begin at or before a sector.
    #[inline]
    fn count(&self, sector: u64) -> usize {
        match sector.checked_sub(self.start) {
            Some(distance) => self.first + self.tree.at_most(key(distance.min(self.last))),
            None => self.first,
        }
    }
}

/// Returns the key of a distance within a part: below [`FILLER`].
#[inline]
fn key(distance: u64) -> i32 {
    // 31 bits, so that it fits.
    let within = distance & ((1 << PART_BITS) - 1);
    i32::try_from(within).unwrap_or(FILLER) - 1
}

/// Keys in ascending order, of which it tells how many are at most a limit.
#[derive(Debug, Default)]
struct Tree {
    nodes: Vec<[i32; KEYS]>,
    /// Where each level begins, from the root on, but for the last one.
    levels: Vec<usize>,
    /// Where the last level begins, which has all keys.
    leaves: usize,
    /// Instead of the levels before the last one, if there are any.
    directory: Option<Directory>,
}

impl Tree {
    fn new(keys: Vec<i32>) -> Self {
        let mut leaves = Vec::with_capacity(keys.len().div_ceil(KEYS));
        for chunk in keys.chunks(KEYS) {
            leaves.push(filled(chunk));
        }
        // The first keys of what lies below each node.
        let mut firsts: Vec<i32> = keys.iter().copied().step_by(KEYS).collect();
        drop(keys);
        let directory = match firsts.len() {
            0 | 1 => None,
            _ => Directory::new(&firsts),
        };
        let mut inner = Vec::new();
        while firsts.len() > 1 {
            let level = firsts.chunks(CHILDREN).map(|below| filled(&below[1..]));
            inner.push(level.collect::<Vec<_>>());
            firsts = firsts.iter().copied().step_by(CHILDREN).collect();
        }
        inner.reverse();
        let mut nodes = Vec::with_capacity(leaves.len() + leaves.len() / KEYS + 1);
        let mut levels = Vec::with_capacity(inner.len());
        for level in inner {
            levels.push(nodes.len());
            nodes.extend(level);
        }
        let leaves_at = nodes.len();
        nodes.extend(leaves);
        Self {
            nodes,
            levels,
            leaves: leaves_at,
            directory,
        }
    }

    /// Returns how many keys are at most `limit`, which is below [`FILLER`].
    #[inline]
    fn at_most(&self, limit: i32) -> usize {
        if self.nodes.is_empty() {
            return 0;
        }
        let node = match self.directory.as_ref().and_then(|table| table.leaf(limit)) {
            Some(leaf) => leaf,
            None => self.descend(limit),
        };
        node * KEYS + count_at_most(&self.nodes[self.leaves + node], limit)
    }

    /// Returns the leaf that has the last key up to a limit.
    #[inline]
    fn descend(&self, limit: i32) -> usize {
        let mut node = 0;
        for level in &self.levels {
            node = node * CHILDREN + count_at_most(&self.nodes[level + node], limit);
        }
        node
    }
}

fn filled(keys: &[i32]) -> [i32; KEYS] {
    let mut node = [FILLER; KEYS];
    node[..keys.len()].copy_from_slice(keys);
    node
}
