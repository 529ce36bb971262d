//! A sample of the blocks of a boot image that is held back from the page cache.
//!
//! The kernel does not report which of its pages a boot used: pushed pages that were never needed look
//! the same as others. So a few blocks, chosen by their numbers, are not pushed; a boot that
//! needs one requests it, at the price of one request answered from memory. The requested share
//! is the share of all blocks that were worth pushing.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use blocks::{BlockIndex, BlockRange, FileId, RangeSet};
use parking_lot::RwLock;

/// How many blocks are in the sample, and how many of them were requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SampleCounts {
    pub(super) held_back: u64,
    pub(super) asked: u64,
}

/// The blocks that were held back: counted once each, however often a prewarm meets them and
/// whichever boot image has them.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    files: RwLock<HashMap<FileId, File>>,
    /// Whether there is a sample: reads of a mount without one take no lock.
    any: AtomicBool,
    held_back: AtomicU64,
    asked: AtomicU64,
}

/// The sample in one file.
#[derive(Debug, Default)]
struct File {
    /// The blocks that were held back.
    all: RangeSet,
    /// Those that were not requested so far.
    waiting: RangeSet,
}

impl Sample {
    /// Splits `range` into the runs to push, and records the blocks between them.
    pub(crate) fn hold_back(
        &self,
        file: FileId,
        range: BlockRange,
        one_in: NonZeroU32,
    ) -> Vec<BlockRange> {
        let mut runs = Vec::new();
        let mut start = range.start().0;
        for block in range.start().0..range.end().0 {
            if !is_chosen(file, block, one_in) {
                continue;
            }
            runs.push(BlockRange::new(BlockIndex(start), BlockIndex(block)));
            start = block + 1;
            self.note(file, BlockRange::with_len(BlockIndex(block), 1));
        }
        runs.push(BlockRange::new(BlockIndex(start), range.end()));
        runs.retain(|run| !run.is_empty());
        runs
    }

    fn note(&self, file: FileId, block: BlockRange) {
        self.any.store(true, Relaxed);
        let mut files = self.files.write();
        let file = files.entry(file).or_default();
        if file.all.within(block).next().is_none() {
            file.all.insert(block);
            file.waiting.insert(block);
            self.held_back.fetch_add(1, Relaxed);
        }
    }

    /// Records pages that the kernel requested.
    pub(super) fn asked(&self, file: FileId, range: BlockRange) {
        if !self.any.load(Relaxed) {
            return;
        }
        let held = |file: &File| file.waiting.within(range).next().is_some();
        if !self.files.read().get(&file).is_some_and(held) {
            return;
        }
        let mut files = self.files.write();
        if let Some(file) = files.get_mut(&file) {
            let asked: u64 = file.waiting.within(range).map(BlockRange::len).sum();
            file.waiting.remove(range);
            self.asked.fetch_add(asked, Relaxed);
        }
    }

    pub(super) fn counts(&self) -> SampleCounts {
        SampleCounts {
            held_back: self.held_back.load(Relaxed),
            asked: self.asked.load(Relaxed),
        }
    }
}

/// Whether a block is in the sample. The same blocks each time: a later prewarm of the same boot
/// image holds back what the first did.
const fn is_chosen(file: FileId, block: u64, one_in: NonZeroU32) -> bool {
    // Multiplication by large odd numbers spreads neighbours over all values (Fibonacci hashing).
    let mixed = (file.0 as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(block)
        .wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed >> 32).is_multiple_of(one_in.get() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId(7);

    fn run(start: u64, len: u64) -> BlockRange {
        BlockRange::with_len(BlockIndex(start), len)
    }

    fn one_in(count: u32) -> NonZeroU32 {
        NonZeroU32::new(count).unwrap()
    }

    #[test]
    fn the_sample_is_about_as_large_as_asked_for() {
        let sample = Sample::default();
        let pushed: u64 = sample
            .hold_back(FILE, run(5, 100_000), one_in(100))
            .iter()
            .map(|run| run.len())
            .sum();
        let held_back = sample.counts().held_back;
        assert_eq!(pushed + held_back, 100_000);
        assert!((800..1200).contains(&held_back), "{held_back}");
    }

    #[test]
    fn a_block_is_asked_for_once() {
        let sample = Sample::default();
        let pushed: RangeSet = sample
            .hold_back(FILE, run(0, 1000), one_in(10))
            .into_iter()
            .collect();
        sample.asked(FileId(8), run(0, 1000));
        for run in pushed.runs() {
            sample.asked(FILE, *run);
        }
        assert_eq!(sample.counts().asked, 0, "none of them was held back");
        sample.asked(FILE, run(0, 500));
        let half = sample.counts();
        assert!(half.asked > 0 && half.asked < half.held_back);
        sample.asked(FILE, run(0, 1000));
        sample.asked(FILE, run(0, 1000));
        assert_eq!(sample.counts().asked, half.held_back);
        // Another prewarm holds the same blocks back, of which the kernel has those asked for.
        let again: RangeSet = sample
            .hold_back(FILE, run(0, 1000), one_in(10))
            .into_iter()
            .collect();
        assert_eq!(again, pushed);
        assert_eq!(sample.counts().held_back, half.held_back);
    }

    #[test]
    fn all_may_be_held_back() {
        let sample = Sample::default();
        assert_eq!(sample.hold_back(FILE, run(3, 4), one_in(1)), []);
        assert_eq!(sample.counts().held_back, 4);
    }
}
