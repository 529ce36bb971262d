//! The last blocks of which only a part was read: whoever reads 4 KiB of a block of 64 KiB soon reads the next 4 KiB, and
//! a block is not to be decompressed once for each of its parts.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// Bytes that are kept at most: two blocks of the largest size.
pub(super) const RECENT_BYTES: usize = 128 << 10;

/// Uncompressed blocks and their numbers, the one that was used last at the end.
#[derive(Default)]
pub(super) struct Recent {
    blocks: Mutex<VecDeque<(usize, Vec<u8>)>>,
}

impl std::fmt::Debug for Recent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recent")
            .field("blocks", &self.blocks.lock().len())
            .finish()
    }
}

impl Recent {
    /// Fills the buffer with what a block has from `skip` on, and returns whether the block is here.
    pub(super) fn read(&self, block: usize, skip: usize, buffer: &mut [u8]) -> bool {
        let mut blocks = self.blocks.lock();
        let Some(at) = blocks.iter().position(|(number, _)| *number == block) else {
            return false;
        };
        buffer.copy_from_slice(&blocks[at].1[skip..skip + buffer.len()]);
        if let Some(used) = blocks.remove(at) {
            blocks.push_back(used);
        }
        true
    }

    /// Keeps a block, and forgets those that were not used for longest.
    pub(super) fn keep(&self, block: usize, bytes: Vec<u8>) {
        let mut blocks = self.blocks.lock();
        // Two threads may have decompressed it at once.
        if blocks.iter().any(|(number, _)| *number == block) {
            return;
        }
        blocks.push_back((block, bytes));
        let mut kept: usize = blocks.iter().map(|(_, bytes)| bytes.len()).sum();
        while kept > RECENT_BYTES
            && let Some((_, oldest)) = blocks.pop_front()
        {
            kept -= oldest.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_blocks_that_were_used_last_are_kept_within_the_bound() {
        const BLOCK: usize = RECENT_BYTES / 4;
        let recent = Recent::default();
        let mut byte = [0];
        for block in 0..4 {
            recent.keep(block, vec![u8::try_from(block).unwrap(); BLOCK]);
        }
        assert!(recent.read(0, BLOCK - 1, &mut byte));
        recent.keep(4, vec![4; BLOCK]);
        recent.keep(4, vec![5; BLOCK]);
        let has = |block| recent.read(block, 7, &mut [0]);
        assert_eq!([0, 1, 2, 3, 4].map(has), [true, false, true, true, true]);
        assert!(recent.read(4, 0, &mut byte) && byte == [4]);
        let kept = recent
            .blocks
            .lock()
            .iter()
            .map(|(_, b)| b.len())
            .sum::<usize>();
        assert_eq!(kept, RECENT_BYTES);
    }
}
