//! S3-FIFO (Yang et al., SOSP 2023): an entry must be used again in a small queue before it is moved to
//! the main one. A scan therefore passes through a twentieth of the cache and evicts nothing else.
//!
//! Beyond the paper, it distinguishes demand from prefetch. A demand access counts twice. Prefetched
//! entries have a queue of their own, so that a prefetched image cannot evict from the small queue what
//! boots have just read. An entry leaves that queue when it is used, or when it is prefetched again
//! after its eviction: no client waits for it, but the upstream registry would send it each time.

use std::collections::{HashSet, VecDeque};

use super::queue::Queue;
use super::{Item, Policy, Slot, entry};
use crate::Class;

/// The part of the room that the small queue has: a twentieth. The paper has a tenth; with it,
/// starts of many images lose a point or two to scans that no start waits for.
const SMALL_PART: u64 = 20;
/// The part that what came ahead of time has, before somebody uses it.
const AHEAD_PART: u64 = 100;
/// Uses that are counted.
const USES_MAX: u8 = 3;

/// The queue that a slot is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Segment {
    /// Added by prefetch, and not used since.
    Ahead,
    /// What has to prove itself.
    #[default]
    Small,
    /// Used.
    Main,
}

impl Segment {
    /// Uses that prove a slot which leaves here. One that somebody waited for came with the first.
    const fn proof(self) -> u8 {
        match self {
            Self::Ahead => 1,
            Self::Small | Self::Main => 2,
        }
    }
}

/// What is known of a slot.
#[derive(Clone, Copy, Debug, Default)]
struct SlotState {
    fingerprint: u64,
    bytes: u32,
    uses: u8,
    segment: Segment,
}

/// Slots that segment together.
#[derive(Debug, Default)]
struct Line {
    queue: Queue,
    len: usize,
    bytes: u64,
    /// Above so many bytes, the first goes from here.
    share: u64,
}

impl Line {
    fn with_share(share: u64) -> Self {
        Self {
            share,
            ..Self::default()
        }
    }

    const fn is_over(&self) -> bool {
        self.len > 0 && self.bytes >= self.share
    }
}

/// Three queues, and the names of those that failed to prove themselves.
#[derive(Debug)]
pub(super) struct S3Fifo {
    ahead: Line,
    small: Line,
    main: Line,
    slots: Vec<SlotState>,
    ghost: Ghost,
}

impl S3Fifo {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        Self {
            ahead: Line::with_share(capacity_bytes / AHEAD_PART),
            small: Line::with_share(capacity_bytes / SMALL_PART),
            main: Line::with_share(u64::MAX),
            slots: Vec::new(),
            ghost: Ghost::default(),
        }
    }

    const fn line(&mut self, segment: Segment) -> &mut Line {
        match segment {
            Segment::Ahead => &mut self.ahead,
            Segment::Small => &mut self.small,
            Segment::Main => &mut self.main,
        }
    }

    fn push(&mut self, segment: Segment, slot: Slot) {
        self.slots[slot.index()].segment = segment;
        let bytes = u64::from(self.slots[slot.index()].bytes);
        let line = self.line(segment);
        line.queue.push(slot);
        line.len += 1;
        line.bytes += bytes;
    }

    fn pop(&mut self, segment: Segment) -> Option<Slot> {
        let slot = self.line(segment).queue.oldest()?;
        self.remove(slot);
        Some(slot)
    }

    /// Takes from a queue in which slots have to prove themselves; those that did move on.
    fn evict_unproven(&mut self, segment: Segment) -> Option<Slot> {
        while let Some(slot) = self.pop(segment) {
            let state = &mut self.slots[slot.index()];
            if state.uses < segment.proof() {
                let fingerprint = state.fingerprint;
                let len = self.ahead.len + self.small.len + self.main.len;
                self.ghost.remember(fingerprint, len);
                return Some(slot);
            }
            state.uses = 0;
            self.push(Segment::Main, slot);
        }
        None
    }

    /// Takes from the main queue; those that were used go round again, a few times.
    fn evict_main(&mut self) -> Option<Slot> {
        while let Some(slot) = self.pop(Segment::Main) {
            let state = &mut self.slots[slot.index()];
            if state.uses == 0 {
                return Some(slot);
            }
            state.uses -= 1;
            self.push(Segment::Main, slot);
        }
        None
    }
}

impl Policy for S3Fifo {
    fn insert(&mut self, slot: Slot, item: Item) {
        let waited_for = item.class == Class::Demand;
        *entry(&mut self.slots, slot) = SlotState {
            fingerprint: item.fingerprint,
            bytes: item.bytes,
            uses: u8::from(waited_for),
            ..SlotState::default()
        };
        let segment = match (waited_for, self.ghost.forget(item.fingerprint)) {
            (true, true) => Segment::Main,
            (true, false) | (false, true) => Segment::Small,
            (false, false) => Segment::Ahead,
        };
        self.push(segment, slot);
    }

    fn hit(&mut self, slot: Slot, class: Class) {
        let state = &mut self.slots[slot.index()];
        let uses = if class == Class::Demand { 2 } else { 1 };
        state.uses = USES_MAX.min(state.uses + uses);
    }

    fn evict(&mut self) -> Option<Slot> {
        if self.ahead.is_over()
            && let Some(slot) = self.evict_unproven(Segment::Ahead)
        {
            return Some(slot);
        }
        if self.small.is_over()
            && let Some(slot) = self.evict_unproven(Segment::Small)
        {
            return Some(slot);
        }
        let slot = self.evict_main();
        let slot = slot.or_else(|| self.evict_unproven(Segment::Small));
        // Those of the last queue may have moved on to the main one.
        let slot = slot.or_else(|| self.evict_unproven(Segment::Ahead));
        slot.or_else(|| self.evict_main())
    }

    fn remove(&mut self, slot: Slot) {
        let SlotState { segment, bytes, .. } = self.slots[slot.index()];
        let line = self.line(segment);
        line.queue.remove(slot);
        line.len -= 1;
        line.bytes -= u64::from(bytes);
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
