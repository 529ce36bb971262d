//! Blocks of a file, and runs of them.

use std::fmt;
use std::ops::Range;

/// Bytes in a block. Boot images record at this size because the same trace costs 35 MiB at
/// 4 KiB and 67 to 152 MiB at the sizes that peers use; it is also the page size of the kernel.
pub const BLOCK_SIZE: usize = 1 << BLOCK_SHIFT;

/// Binary logarithm of [`BLOCK_SIZE`].
pub const BLOCK_SHIFT: u32 = 12;

const BLOCK_BYTES: u64 = 1 << BLOCK_SHIFT;

/// The position of a block in a file: byte offset divided by [`BLOCK_SIZE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockIndex(pub u64);

impl BlockIndex {
    /// Returns the block that holds the byte at `offset`.
    #[must_use]
    pub const fn containing(offset: u64) -> Self {
        Self(offset >> BLOCK_SHIFT)
    }

    /// Returns the offset of the block's first byte.
    #[must_use]
    pub const fn byte_offset(self) -> u64 {
        self.0 << BLOCK_SHIFT
    }
}

/// A run of blocks of one file: `start` and all up to, not including, `end`.
///
/// Never inverted: `start <= end` holds by construction. Ordered by start, then end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockRange {
    start: u64,
    end: u64,
}

impl BlockRange {
    /// Returns the run from `start` up to, not including, `end`; an inverted pair is empty.
    #[must_use]
    pub const fn new(start: BlockIndex, end: BlockIndex) -> Self {
        let end = if end.0 < start.0 { start.0 } else { end.0 };
        Self {
            start: start.0,
            end,
        }
    }

    /// Returns the run of `count` blocks from `start`, cut at the largest index.
    #[must_use]
    pub const fn with_len(start: BlockIndex, count: u64) -> Self {
        Self {
            start: start.0,
            end: start.0.saturating_add(count),
        }
    }

    /// Returns every block that contains a byte of `[offset, offset + len)`.
    #[must_use]
    pub const fn covering(offset: u64, len: u64) -> Self {
        let start = offset >> BLOCK_SHIFT;
        if len == 0 {
            return Self { start, end: start };
        }
        let last = offset.saturating_add(len - 1) >> BLOCK_SHIFT;
        Self {
            start,
            end: last + 1,
        }
    }

    /// Returns the first block.
    #[must_use]
    pub const fn start(self) -> BlockIndex {
        BlockIndex(self.start)
    }

    /// Returns the block after the last.
    #[must_use]
    pub const fn end(self) -> BlockIndex {
        BlockIndex(self.end)
    }

    /// Returns the number of blocks.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Returns whether the run has no block.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Returns the bytes the run spans, whole blocks counted.
    #[must_use]
    pub const fn byte_len(self) -> u64 {
        self.len().saturating_mul(BLOCK_BYTES)
    }

    /// Returns the byte offsets the run spans.
    #[must_use]
    pub const fn bytes(self) -> Range<u64> {
        self.start.saturating_mul(BLOCK_BYTES)..self.end.saturating_mul(BLOCK_BYTES)
    }

    /// Returns whether `block` is in the run.
    #[must_use]
    pub const fn contains(self, block: BlockIndex) -> bool {
        self.start <= block.0 && block.0 < self.end
    }

    /// Returns the blocks in both runs; empty, and placed at the larger start, if there is none.
    #[must_use]
    pub fn intersect(self, other: Self) -> Self {
        let start = self.start.max(other.start);
        Self {
            start,
            end: self.end.min(other.end).max(start),
        }
    }

    /// Returns whether both runs share a block or lie next to each other.
    #[must_use]
    pub const fn touches(self, other: Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// Splits into the blocks before `at` and the rest; one of them may be empty.
    #[must_use]
    pub fn split_at(self, at: BlockIndex) -> (Self, Self) {
        let at = at.0.clamp(self.start, self.end);
        (
            Self {
                start: self.start,
                end: at,
            },
            Self {
                start: at,
                end: self.end,
            },
        )
    }

    /// Splits off the first `count` blocks (fewer, if the run is shorter).
    #[must_use]
    pub fn split_first(self, count: u64) -> (Self, Self) {
        self.split_at(BlockIndex(self.start.saturating_add(count)))
    }

    /// Returns the blocks one by one.
    pub fn iter(self) -> impl ExactSizeIterator<Item = BlockIndex> {
        // An ExactSizeIterator over u64 ranges does not exist; counts of blocks fit in usize.
        let len = usize::try_from(self.len()).unwrap_or(usize::MAX);
        (0..len).map(move |i| BlockIndex(self.start + i as u64))
    }
}

impl fmt::Debug for BlockRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}
