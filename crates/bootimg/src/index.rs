//! Finding the extent of a block of a file.
//!
//! Measured with `cargo bench -p benches --bench bootimg -- extent`, 4 500 extents, random
//! questions, one of two busy cores: this structure answers 144 million a second over 600 files
//! and 102 million in one disk image; a binary search of all extents 25 and 27 million.

use blocks::{BlockIndex, BlockRange, FileId};

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Find {
    /// An extent.
    Extent {
        /// Its number in the list that the index was made of.
        number: u32,
        /// Its blocks.
        range: BlockRange,
    },
    /// Nothing, for so many blocks (at least one).
    Gap {
        /// How many; [`u64::MAX`] if no extent follows.
        blocks: u64,
    },
}

/// Which extents a tree's files have.
///
/// A dense table leads from the file to its extents, sorted; a directory of buckets, each of so
/// many blocks that there are about two for an extent, leads from the block to the first extent
/// that can hold it. So a look-up costs three dependent loads, however large the file.
#[derive(Clone, Debug, Default)]
pub struct ExtentIndex {
    /// By file id: an index into `files`, or [`NO_FILE`].
    by_file: Vec<u32>,
    files: Vec<FileEntry>,
    /// Indices into `slots`.
    buckets: Vec<u32>,
    slots: Vec<Slot>,
}

const NO_FILE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct FileEntry {
    /// The first block of the first extent.
    base: u64,
    /// The file's buckets; the one past them leads to the file's last slot.
    first_bucket: u32,
    buckets: u32,
    /// Binary logarithm of the blocks in a bucket.
    shift: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    start: u64,
    end: u64,
    number: u32,
}

/// The extents of one file.
#[derive(Clone, Copy, Debug)]
pub struct FileExtents<'a> {
    /// Which of the files that have extents it is, counted from 0 in the order of ids.
    pub number: usize,
    entry: &'a FileEntry,
    index: &'a ExtentIndex,
}

impl ExtentIndex {
    /// Makes an index for a tree of `tree_len` inodes. Extents are numbered in order; empty ones, those
    /// of files past the tree, and those that overlap an earlier one are left out.
    pub fn new(tree_len: usize, extents: impl IntoIterator<Item = (FileId, BlockRange)>) -> Self {
        let mut sorted: Vec<(FileId, BlockRange, u32)> = (0u32..)
            .zip(extents)
            .map(|(number, (file, range))| (file, range, number))
            .filter(|(file, range, _)| file.index() < tree_len && !range.is_empty())
            .collect();
        sorted.sort_unstable();
        sorted.dedup_by(|b, a| a.0 == b.0 && b.1.start() < a.1.end());
        let mut index = Self {
            by_file: vec![NO_FILE; tree_len],
            ..Self::default()
        };
        for extents in sorted.chunk_by(|a, b| a.0 == b.0) {
            index.push_file(extents);
        }
        index
    }

    /// Returns the files that have extents, in order.
    pub fn files(&self) -> impl Iterator<Item = FileId> {
        (0u32..)
            .zip(&self.by_file)
            .filter(|(_, number)| **number != NO_FILE)
            .map(|(file, _)| FileId(file))
    }

    /// Returns the extents of a file, if it has any.
    #[must_use]
    pub fn file(&self, file: FileId) -> Option<FileExtents<'_>> {
        let number = *self.by_file.get(file.index())? as usize;
        Some(FileExtents {
            number,
            entry: self.files.get(number)?,
            index: self,
        })
    }

    fn push_file(&mut self, extents: &[(FileId, BlockRange, u32)]) {
        let (Some(first), Some(last)) = (extents.first(), extents.last()) else {
            return;
        };
        let base = first.1.start().0;
        let span = last.1.end().0 - base;
        let wanted = 2 * extents.len() as u64;
        let mut shift = 0;
        while span >> shift > wanted {
            shift += 1;
        }
        let buckets = narrow((span - 1) >> shift) + 1;
        let first_bucket = narrow(self.buckets.len() as u64);
        let mut slot = self.slots.len();
        for (_, range, number) in extents {
            self.slots.push(Slot {
                start: range.start().0,
                end: range.end().0,
                number: *number,
            });
        }
        for bucket in 0..buckets {
            let start = base + (u64::from(bucket) << shift);
            while self.slots.get(slot).is_some_and(|s| s.end <= start) {
                slot += 1;
            }
            self.buckets.push(narrow(slot as u64));
        }
        // The last bucket ends in the file's last slot, not in the next file's first.
        self.buckets.push(narrow(self.slots.len() as u64 - 1));
        if let Some(number) = self.by_file.get_mut(first.0.index()) {
            *number = narrow(self.files.len() as u64);
        }
        self.files.push(FileEntry {
            base,
            first_bucket,
            buckets,
            shift,
        });
    }
}

/// Numbers of extents fit 32 bits: the format allows four million.
fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(NO_FILE)
}

impl FileExtents<'_> {
    /// Returns the extent of `block`.
    #[inline]
    #[must_use]
    pub fn find(&self, block: BlockIndex) -> Find {
        let Some(from_base) = block.0.checked_sub(self.entry.base) else {
            return Find::Gap {
                blocks: self.entry.base - block.0,
            };
        };
        let nothing = Find::Gap { blocks: u64::MAX };
        let bucket = from_base >> self.entry.shift;
        if bucket >= u64::from(self.entry.buckets) {
            return nothing;
        }
        let bucket = self.entry.first_bucket as usize + narrow(bucket) as usize;
        let (Some(&low), Some(&high)) = (
            self.index.buckets.get(bucket),
            self.index.buckets.get(bucket + 1),
        ) else {
            return nothing;
        };
        // Up to and with the slot that the next bucket begins in.
        let high = (high as usize + 1).min(self.index.slots.len());
        let Some(slots) = self.index.slots.get(low as usize..high) else {
            return nothing;
        };
        let slot = if slots.len() <= LINEAR_MAX {
            slots.iter().find(|slot| slot.end > block.0)
        } else {
            slots.get(slots.partition_point(|slot| slot.end <= block.0))
        };
        match slot {
            Some(slot) if slot.start <= block.0 => Find::Extent {
                number: slot.number,
                range: BlockRange::new(BlockIndex(slot.start), BlockIndex(slot.end)),
            },
            Some(slot) => Find::Gap {
                blocks: slot.start - block.0,
            },
            None => nothing,
        }
    }
}

/// Buckets with more slots than this are searched by halves.
const LINEAR_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the index has to say, found by looking at every extent.
    fn naive(extents: &[(FileId, BlockRange)], file: FileId, block: u64) -> Option<Find> {
        let mine = || extents.iter().enumerate().filter(|(_, e)| e.0 == file);
        mine().next()?;
        let holds = mine().find(|(_, e)| e.1.contains(BlockIndex(block)));
        if let Some((number, (_, range))) = holds {
            return Some(Find::Extent {
                number: u32::try_from(number).unwrap(),
                range: *range,
            });
        }
        let next = mine().map(|(_, e)| e.1.start().0).filter(|s| *s > block);
        let blocks = next.min().map_or(u64::MAX, |start| start - block);
        Some(Find::Gap { blocks })
    }

    /// Extents that do not overlap, in any order: gaps and lengths of wildly different sizes.
    fn extents() -> impl Strategy<Value = Vec<(FileId, BlockRange)>> {
        let gap = prop_oneof![Just(0u64), 0u64..4, 0u64..1000, 0u64..1 << 40];
        let one = (0u32..5, gap, 1u64..40);
        prop::collection::vec(one, 0..200)
            .prop_map(|list| {
                let mut ends = [0u64; 5];
                list.into_iter()
                    .map(|(file, gap, len)| {
                        let start = ends[file as usize] + gap;
                        ends[file as usize] = start + len;
                        (FileId(file), BlockRange::with_len(BlockIndex(start), len))
                    })
                    .collect::<Vec<_>>()
            })
            .prop_shuffle()
    }

    proptest! {
        #[test]
        fn says_what_a_search_of_all_extents_says(
            extents in extents(),
            wild in prop::collection::vec((0u32..6, any::<u64>()), 20),
        ) {
            let index = ExtentIndex::new(5, extents.iter().copied());
            let near = extents.iter().flat_map(|(file, range)| {
                let (start, end) = (range.start().0, range.end().0);
                [start.wrapping_sub(1), start, (start + end) / 2, end - 1, end, end + 1]
                    .map(|block| (file.0, block))
            });
            for (file, block) in near.chain(wild.iter().copied()) {
                let found = index.file(FileId(file)).map(|f| f.find(BlockIndex(block)));
                prop_assert_eq!(found, naive(&extents, FileId(file), block), "{} {}", file, block);
            }
        }
    }

    #[test]
    fn one_crowded_bucket_is_searched_too() {
        // A single extent far away makes the buckets so wide that all others share one.
        let near = (0..1000).map(|i| (FileId(0), BlockRange::with_len(BlockIndex(2 * i), 1)));
        let far = (FileId(0), BlockRange::with_len(BlockIndex(1 << 40), 1));
        let extents: Vec<_> = near.chain([far]).collect();
        let index = ExtentIndex::new(1, extents.iter().copied());
        let file = index.file(FileId(0)).unwrap();
        for block in 0..2100 {
            assert_eq!(
                Some(file.find(BlockIndex(block))),
                naive(&extents, FileId(0), block)
            );
        }
    }
}
