//! The states of a blob's chunks, in memory that grows with the chunks that are there: the blob's size is only
//! what a registry says.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32};

/// Chunks whose states are made together.
const PAGE: u32 = 1024;

/// The state of one chunk.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Bits that the user of the table defines; 0 of a chunk that never was there.
    pub(super) state: AtomicU32,
    pub(super) crc: AtomicU32,
    /// Which server brought it.
    pub(super) server: AtomicU8,
}

/// The states of a number of chunks.
#[derive(Debug)]
pub(super) struct Table {
    count: u32,
    pages: Vec<OnceLock<Box<[Slot]>>>,
}

impl Table {
    /// Returns the states of `count` chunks. Those that are there have the state `present`.
    pub(super) fn new(count: u32, there: &BTreeMap<u32, u32>, present: u32) -> Self {
        let pages = (0..count.div_ceil(PAGE)).map(|_| OnceLock::new()).collect();
        let mut table = Self { count, pages };
        for (chunk, crc) in there.range(..count) {
            let page = &mut table.pages[(chunk / PAGE) as usize];
            if page.get().is_none() {
                *page = OnceLock::from(empty_page());
            }
            if let Some(slots) = page.get_mut() {
                let slot = &mut slots[(chunk % PAGE) as usize];
                (*slot.state.get_mut(), *slot.crc.get_mut()) = (present, *crc);
            }
        }
        table
    }

    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the state of a chunk that is or was there; `None` if it never was.
    pub(super) fn get(&self, chunk: u32) -> Option<&Slot> {
        let page = self.pages[(chunk / PAGE) as usize].get()?;
        Some(&page[(chunk % PAGE) as usize])
    }

    /// Returns the state of a chunk, which is made if there is none.
    pub(super) fn make(&self, chunk: u32) -> &Slot {
        let page = self.pages[(chunk / PAGE) as usize].get_or_init(empty_page);
        &page[(chunk % PAGE) as usize]
    }

    /// Returns all states that were made.
    pub(super) fn made(&self) -> impl Iterator<Item = &Slot> {
        self.pages.iter().filter_map(OnceLock::get).flatten()
    }
}

fn empty_page() -> Box<[Slot]> {
    (0..PAGE).map(|_| Slot::default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn memory_is_taken_for_what_is_there() {
        let there = BTreeMap::from([(0, 7), (PAGE, 8), (u32::MAX, 9)]);
        let table = Table::new(u32::MAX, &there, 1);
        // The last one is no chunk.
        assert_eq!(table.count(), u32::MAX);
        assert_eq!(table.made().count(), 2 * PAGE as usize);
        let crc = |chunk| table.get(chunk).map(|slot: &Slot| slot.crc.load(Relaxed));
        assert_eq!(
            [0, 1, PAGE, 5 * PAGE].map(crc),
            [Some(7), Some(0), Some(8), None]
        );
        table.make(5 * PAGE + 3).crc.store(5, Relaxed);
        assert_eq!(crc(5 * PAGE + 3), Some(5));
        assert_eq!(table.made().count(), 3 * PAGE as usize);
        assert_eq!(
            table
                .made()
                .filter(|slot| slot.state.load(Relaxed) == 1)
                .count(),
            2
        );
    }
}
