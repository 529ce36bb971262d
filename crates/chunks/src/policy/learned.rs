//! Chooses a policy by simulating all of them on a sample: SHARDS (Waldspurger et al., FAST 2015).
//! Entries whose fingerprints fall into the sample go through a *shadow* cache for each policy, scaled
//! down like the sample; shadows keep fingerprints, no bytes.
//!
//! The best policy has the highest mean of two hit ratios, that of demand accesses and that of all
//! accesses, so that neither the reads of boots nor the bytes from the upstream registry are sacrificed
//! for the other. A policy whose overall hit ratio is below that of LRU is never chosen.

use super::{Fingerprint, Item, Limit, Policy, PolicyKind, Residents, Slot, entry};
use crate::Class;

/// The candidates; the first is used until another proves better.
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
/// By how much of what was asked for, in units of [`ALL`], a policy has to be better, or the cost of
/// the change eats it.
const LEAD: u64 = 20;
/// What a part of something is told in.
const ALL: u64 = 1000;
/// With each window, what was seen before it counts for less by this part: some hundred starts of
/// containers are remembered. With a memory of few starts the policies look good in turns, and each
/// change costs.
const FADE: u64 = 64;

/// Bytes; older ones count less.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    all: u64,
    /// Demand accesses.
    waited: u64,
}

impl Seen {
    fn count(&mut self, item: Item) {
        self.all += u64::from(item.bytes);
        if item.class == Class::Demand {
            self.waited += u64::from(item.bytes);
        }
    }

    const fn fade(&mut self) {
        self.all -= self.all / FADE;
        self.waited -= self.waited / FADE;
    }

    /// Returns the mean of the parts of `asked` that were saved.
    fn worth(self, asked: Self) -> u64 {
        let part = |saved: u64, asked: u64| saved * ALL / asked.max(1);
        let all = part(self.all, asked.all);
        match asked.waited {
            0 => all,
            waited => u64::midpoint(all, part(self.waited, waited)),
        }
    }
}

/// One candidate, on the sample.
#[derive(Debug)]
struct Shadow {
    kind: PolicyKind,
    residents: Residents<Sampled, ()>,
    saved: Seen,
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
    /// The requests in the sample.
    asked: Seen,
    kind: PolicyKind,
    used: Box<dyn Policy>,
    /// The entries by slot, with which a new policy begins.
    items: Vec<Option<Item>>,
}

impl Learned {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        let chunks = capacity_bytes / CHUNK_BYTES;
        let part = (chunks / SHADOW_CHUNKS).max(1).next_power_of_two();
        let shadow = |kind: PolicyKind| Shadow {
            kind,
            residents: Residents::new(kind, Limit::bytes(capacity_bytes / part)),
            saved: Seen::default(),
        };
        let kind = CANDIDATES[0];
        Self {
            capacity_bytes,
            mask: part - 1,
            shadows: CANDIDATES.map(shadow).into(),
            window: 0,
            asked: Seen::default(),
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
        self.asked.count(item);
        for shadow in &mut self.shadows {
            if shadow.residents.hit(&key, item.class) {
                shadow.saved.count(item);
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
        let floor = self.saved_by(PolicyKind::Lru).all;
        let worth = |kind| self.saved_by(kind).worth(self.asked);
        // The first of equals: so the order of the candidates is one of preference.
        let able = CANDIDATES.into_iter().rev();
        let able = able.filter(|kind| self.saved_by(*kind).all >= floor);
        let best = able.max_by_key(|kind| worth(*kind)).unwrap_or(self.kind);
        if worth(best) > worth(self.kind) + LEAD {
            self.change_to(best);
        }
        for shadow in &mut self.shadows {
            shadow.saved.fade();
        }
        self.asked.fade();
        self.window = 0;
    }

    fn saved_by(&self, kind: PolicyKind) -> Seen {
        let shadow = self.shadows.iter().find(|shadow| shadow.kind == kind);
        shadow.map_or_else(Seen::default, |shadow| shadow.saved)
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
