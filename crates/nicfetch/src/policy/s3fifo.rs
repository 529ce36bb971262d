//! S3-FIFO (Yang et al., SOSP 2023): a small queue in which a chunk has to prove itself before it
//! comes into the main one. So a scan passes through a tenth of the room, and hurts nothing.

use std::collections::{HashSet, VecDeque};

use super::queue::Queue;
use super::{Item, Policy, Slot, entry};
use crate::Class;

/// The part of the room that the small queue has.
const SMALL_PART: u64 = 10;
/// Uses that are counted.
const USES_MAX: u8 = 3;
/// Uses while in the small queue that prove a chunk.
const PROOF: u8 = 2;

/// What is known of a slot.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    fingerprint: u64,
    bytes: u32,
    uses: u8,
    in_main: bool,
}

/// Two queues, and the names of those that failed to prove themselves.
#[derive(Debug)]
pub(super) struct S3Fifo {
    small: Queue,
    main: Queue,
    slots: Vec<State>,
    small_bytes: u64,
    small_max: u64,
    main_len: usize,
    /// Slots in both queues.
    len: usize,
    ghost: Ghost,
}

impl S3Fifo {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        Self {
            small: Queue::default(),
            main: Queue::default(),
            slots: Vec::new(),
            small_bytes: 0,
            small_max: capacity_bytes / SMALL_PART,
            main_len: 0,
            len: 0,
            ghost: Ghost::default(),
        }
    }

    fn push_main(&mut self, slot: Slot) {
        self.slots[slot.index()].in_main = true;
        self.main_len += 1;
        self.main.push(slot);
    }

    fn pop_main(&mut self) -> Option<Slot> {
        let slot = self.main.pop()?;
        self.main_len -= 1;
        Some(slot)
    }

    fn pop_small(&mut self) -> Option<Slot> {
        let slot = self.small.pop()?;
        self.small_bytes -= u64::from(self.slots[slot.index()].bytes);
        Some(slot)
    }

    /// Takes from the small queue; those that proved themselves move to the main one.
    fn evict_small(&mut self) -> Option<Slot> {
        while let Some(slot) = self.pop_small() {
            let state = &mut self.slots[slot.index()];
            if state.uses < PROOF {
                let fingerprint = state.fingerprint;
                self.len -= 1;
                self.ghost.remember(fingerprint, self.len);
                return Some(slot);
            }
            state.uses = 0;
            self.push_main(slot);
        }
        None
    }

    /// Takes from the main queue; those that were used go round again, a few times.
    fn evict_main(&mut self) -> Option<Slot> {
        while let Some(slot) = self.pop_main() {
            let state = &mut self.slots[slot.index()];
            if state.uses == 0 {
                self.len -= 1;
                return Some(slot);
            }
            state.uses -= 1;
            self.push_main(slot);
        }
        None
    }
}

impl Policy for S3Fifo {
    fn insert(&mut self, slot: Slot, item: Item) {
        *entry(&mut self.slots, slot) = State {
            fingerprint: item.fingerprint,
            bytes: item.bytes,
            ..State::default()
        };
        self.len += 1;
        // What comes ahead of time proves nothing by coming back.
        if self.ghost.forget(item.fingerprint) && item.class == Class::Demand {
            self.push_main(slot);
        } else {
            self.small_bytes += u64::from(item.bytes);
            self.small.push(slot);
        }
    }

    fn hit(&mut self, slot: Slot, class: Class) {
        let state = &mut self.slots[slot.index()];
        if class == Class::Demand {
            state.uses = USES_MAX.min(state.uses + 1);
        }
    }

    fn evict(&mut self) -> Option<Slot> {
        if self.small_bytes >= self.small_max || self.main_len == 0 {
            self.evict_small().or_else(|| self.evict_main())
        } else {
            self.evict_main()
        }
    }

    fn remove(&mut self, slot: Slot) {
        let state = self.slots[slot.index()];
        self.len -= 1;
        if state.in_main {
            self.main_len -= 1;
            self.main.remove(slot);
        } else {
            self.small_bytes -= u64::from(state.bytes);
            self.small.remove(slot);
        }
    }
}

/// Names of what went lately: as many as there are residents, so that who comes back within about
/// their lifetime is known.
#[derive(Debug, Default)]
struct Ghost {
    known: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Ghost {
    /// Fewer are useless while a cache fills.
    const LEAST: usize = 64;

    fn remember(&mut self, fingerprint: u64, most: usize) {
        if self.known.insert(fingerprint) {
            self.order.push_back(fingerprint);
        }
        while self.order.len() > most.max(Self::LEAST) {
            if let Some(oldest) = self.order.pop_front() {
                self.known.remove(&oldest);
            }
        }
    }

    /// Returns whether the name was known. Its place in the order stays, and counts.
    fn forget(&mut self, fingerprint: u64) -> bool {
        self.known.remove(&fingerprint)
    }
}
