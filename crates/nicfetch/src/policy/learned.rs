//! Picks a policy by trying all of them in miniature: SHARDS (Waldspurger et al., FAST 2015). Chunks
//! whose fingerprints fall into a sample go through a *shadow* of the cache for each policy, as much
//! smaller as the sample is; shadows keep names, no bytes. Whichever saves most bytes is used.

use super::{Fingerprint, Item, Limit, Policy, PolicyKind, Residents, Slot, entry};
use crate::Class;

/// Who is tried; the first is used until something else is known to be better.
const CANDIDATES: [PolicyKind; 4] = [
    PolicyKind::S3Fifo,
    PolicyKind::Sieve,
    PolicyKind::Lfu,
    PolicyKind::Lru,
];

/// Chunks that a shadow should hold: few enough to be cheap (a megabyte for all shadows), enough for
/// an error of a percent or two.
const SHADOW_CHUNKS: u64 = 4096;
/// What a chunk takes on average, for want of knowledge.
const CHUNK_BYTES: u64 = 32 << 10;
/// Sampled accesses after which the shadows are compared.
const WINDOW: u32 = 2048;
/// A policy has to be better by this part of what was asked for, or the cost of the change eats it.
const LEAD_PART: u64 = 100;
/// With each window, what was seen before it counts for less by this part.
const FADE: u64 = 16;

/// One candidate, on the sample.
#[derive(Debug)]
struct Shadow {
    kind: PolicyKind,
    residents: Residents<Sampled, ()>,
    /// Bytes it has saved; older ones count less.
    saved: u64,
}

/// A fingerprint of the sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sampled(u64);

impl Fingerprint for Sampled {
    fn fingerprint(&self) -> u64 {
        self.0
    }
}

/// The best of the candidates.
#[derive(Debug)]
pub(super) struct Learned {
    capacity_bytes: u64,
    /// A fingerprint is in the sample if these bits of it are zero.
    mask: u64,
    shadows: Vec<Shadow>,
    window: u32,
    /// Bytes asked for of the sample; older ones count less.
    asked: u64,
    kind: PolicyKind,
    used: Box<dyn Policy>,
    /// What is where, and so what a new policy begins with.
    items: Vec<Option<Item>>,
}

impl Learned {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        let chunks = capacity_bytes / CHUNK_BYTES;
        let part = (chunks / SHADOW_CHUNKS).max(1).next_power_of_two();
        let shadow = |kind: PolicyKind| Shadow {
            kind,
            residents: Residents::new(kind, Limit::bytes(capacity_bytes / part)),
            saved: 0,
        };
        let kind = CANDIDATES[0];
        Self {
            capacity_bytes,
            mask: part - 1,
            shadows: CANDIDATES.map(shadow).into(),
            window: 0,
            asked: 0,
            kind,
            used: kind.build(capacity_bytes),
            items: Vec::new(),
        }
    }

    /// Lets the shadows see an access.
    fn see(&mut self, item: Item) {
        // The middle of the fingerprint: maps use its ends.
        if (item.fingerprint >> 24) & self.mask != 0 {
            return;
        }
        let key = Sampled(item.fingerprint);
        self.asked += u64::from(item.bytes);
        for shadow in &mut self.shadows {
            if shadow.residents.hit(&key, item.class) {
                shadow.saved += u64::from(item.bytes);
            } else {
                shadow.residents.admit(key, (), item, &mut |_, ()| {});
            }
        }
        self.window += 1;
        if self.window == WINDOW {
            self.compare();
        }
    }

    fn compare(&mut self) {
        let saved = |kind| {
            let mut shadows = self.shadows.iter();
            shadows
                .find(|shadow| shadow.kind == kind)
                .map_or(0, |shadow| shadow.saved)
        };
        // The first of equals: so the order of the candidates is one of preference.
        let best = CANDIDATES.into_iter().rev().max_by_key(|kind| saved(*kind));
        let best = best.unwrap_or(self.kind);
        if saved(best) > saved(self.kind) + self.asked / LEAD_PART {
            self.change_to(best);
        }
        for shadow in &mut self.shadows {
            shadow.saved -= shadow.saved / FADE;
        }
        self.asked -= self.asked / FADE;
        self.window = 0;
    }

    /// Hands all residents over to another policy, those first that would have gone first.
    fn change_to(&mut self, kind: PolicyKind) {
        let mut next = kind.build(self.capacity_bytes);
        while let Some(slot) = self.used.evict() {
            if let Some(item) = self.items[slot.index()] {
                next.insert(slot, item);
            }
        }
        log::debug!("evicting by {kind} instead of {}", self.kind);
        (self.kind, self.used) = (kind, next);
    }
}

impl Policy for Learned {
    fn insert(&mut self, slot: Slot, item: Item) {
        *entry(&mut self.items, slot) = Some(item);
        self.used.insert(slot, item);
        self.see(item);
    }

    fn hit(&mut self, slot: Slot, class: Class) {
        self.used.hit(slot, class);
        if let Some(item) = self.items[slot.index()] {
            self.see(Item { class, ..item });
        }
    }

    fn evict(&mut self) -> Option<Slot> {
        let slot = self.used.evict()?;
        self.items[slot.index()] = None;
        Some(slot)
    }

    fn remove(&mut self, slot: Slot) {
        self.items[slot.index()] = None;
        self.used.remove(slot);
    }
}
