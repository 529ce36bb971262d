//! Finds the last segment that begins at or before a sector.
//!
//! A binary search of 4 500 segments takes 13 steps, each of which waits for the one before. This is a search
//! tree whose nodes have 16 keys, which are compared at once: three steps, wherever the segments are. A node has no
//! pointers: the tree is complete, and the places of nodes are computed. Where segments lie as evenly as those of images, a
//! [table](Directory) leads to the leaf at once: two steps.
//!
//! Keys are numbers of 32 bits. The device is divided into parts of 1 TiB; if it has segments in several of them, each
//! has a separate tree, and another one finds the part. For few segments, two trees are slower than a binary
//! search: then there are none.

mod directory;

use rawio::sorted::{KEYS, count_at_most};

use crate::segment::Segment;
use directory::Directory;

/// A part has two to this power sectors.
const PART_BITS: u32 = 31;
/// Segments above which a second tree is faster than a binary search.
const MANY: usize = 2048;
/// What fills nodes up: above every key.
const FILLER: i32 = i32::MAX;
/// Children of a node: one before each key, and one behind the last.
const CHILDREN: usize = KEYS + 1;

#[derive(Debug, Default)]
pub(super) struct Search {
    /// The first sector that has something.
    base: u64,
    /// In the order of the device; those without a segment are left out. Empty for a binary search.
    parts: Vec<Part>,
    /// Finds a part by its number.
    by_number: Tree,
}

#[derive(Debug)]
struct Part {
    number: u64,
    /// The place of its first segment.
    first: usize,
    tree: Tree,
}

impl Search {
    pub(super) fn new(segments: &[Segment]) -> Self {
        let base = segments.first().map_or(0, |segment| segment.offset());
        let number = |segment: &Segment| (segment.offset() - base) >> PART_BITS;
        let mut parts = Vec::new();
        let mut first = 0;
        for part in segments.chunk_by(|one, next| number(one) == number(next)) {
            let keys = part.iter().map(|segment| key(segment.offset() - base));
            parts.push(Part {
                number: number(&part[0]),
                first,
                tree: Tree::new(keys.collect()),
            });
            first += part.len();
        }
        if parts.len() > 1 && segments.len() < MANY {
            parts.clear();
        }
        Self {
            base,
            by_number: Tree::new(parts.iter().map(|part| key(part.number)).collect()),
            parts,
        }
    }

    /// Returns the place of the last segment that begins at or before a sector.
    #[inline]
    pub(super) fn last_from(&self, segments: &[Segment], sector: u64) -> Option<usize> {
        let distance = sector.checked_sub(self.base)?;
        let number = distance >> PART_BITS;
        let part = match &self.parts[..] {
            [only] => only,
            [] => {
                let behind = segments.partition_point(|segment| segment.offset() <= sector);
                return behind.checked_sub(1);
            }
            parts => &parts[self.by_number.at_most(key(number)).checked_sub(1)?],
        };
        let limit = match part.number == number {
            true => key(distance),
            // It is behind the part.
            false => FILLER - 1,
        };
        (part.first + part.tree.at_most(limit)).checked_sub(1)
    }
}

/// Returns the key of a place within its part: below [`FILLER`].
#[inline]
fn key(place: u64) -> i32 {
    // 31 bits, so that it fits.
    let within = place & ((1 << PART_BITS) - 1);
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
