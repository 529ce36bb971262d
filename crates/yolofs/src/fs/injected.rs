//! Which pages were pushed into the kernel's page cache, and which of them it dropped.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use blocks::{BlockRange, FileId, RangeSet};
use parking_lot::RwLock;

/// Pushed pages, and pages that were requested again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PageCounts {
    pub(super) injected: u64,
    pub(super) evicted: u64,
}

/// The pages that were pushed into the kernel and not requested since.
///
/// The kernel never requests a page that it has. So a read of a pushed page shows that the kernel
/// evicted it; the response restores it, and it is not counted any more.
#[derive(Debug, Default)]
pub(crate) struct Injected {
    files: RwLock<HashMap<FileId, RangeSet>>,
    /// Whether anything was ever pushed: reads of a mount without a boot image take no lock.
    any: AtomicBool,
    injected: AtomicU64,
    evicted: AtomicU64,
}

impl Injected {
    /// Records pushed pages.
    pub(crate) fn pushed(&self, file: FileId, range: BlockRange) {
        self.any.store(true, Relaxed);
        self.injected.fetch_add(range.len(), Relaxed);
        self.files.write().entry(file).or_default().insert(range);
    }

    /// Records pages that the kernel requested.
    pub(super) fn asked(&self, file: FileId, range: BlockRange) {
        if !self.any() {
            return;
        }
        let mine = |set: &RangeSet| set.within(range).next().is_some();
        if !self.files.read().get(&file).is_some_and(mine) {
            return;
        }
        let mut files = self.files.write();
        if let Some(set) = files.get_mut(&file) {
            let dropped: u64 = set.within(range).map(BlockRange::len).sum();
            set.remove(range);
            self.evicted.fetch_add(dropped, Relaxed);
        }
    }

    /// Records that the kernel invalidated a file.
    pub(crate) fn forget(&self, file: FileId) {
        self.files.write().remove(&file);
    }

    /// Returns whether anything was ever pushed.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Relaxed)
    }

    pub(super) fn counts(&self) -> PageCounts {
        PageCounts {
            injected: self.injected.load(Relaxed),
            evicted: self.evicted.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocks::BlockIndex;

    fn run(start: u64, len: u64) -> BlockRange {
        BlockRange::with_len(BlockIndex(start), len)
    }

    #[test]
    fn a_page_is_evicted_once() {
        let injected = Injected::default();
        injected.asked(FileId(1), run(0, 100));
        injected.pushed(FileId(1), run(10, 10));
        injected.asked(FileId(2), run(10, 10));
        injected.asked(FileId(1), run(0, 10));
        assert_eq!(injected.counts().evicted, 0);
        injected.asked(FileId(1), run(5, 10));
        injected.asked(FileId(1), run(5, 10));
        assert_eq!(injected.counts().evicted, 5);
        assert_eq!(injected.files.read()[&FileId(1)].runs(), [run(15, 5)]);
        assert_eq!(injected.counts().injected, 10);
    }
}
