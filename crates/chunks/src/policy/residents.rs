//! The entries of a cache: keeps their number and bytes within limits, never evicts pinned ones, and
//! asks a policy which entry to evict.

use std::collections::HashMap;
use std::hash::Hash;

use super::{Item, Policy, PolicyKind, Slot};
use crate::Class;

/// Has a hash that is the same in every process, and spread well.
pub trait Fingerprint {
    /// Returns it.
    fn fingerprint(&self) -> u64;
}

impl Fingerprint for crate::ChunkId {
    fn fingerprint(&self) -> u64 {
        // It is a hash already.
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

/// What a cache may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bytes.
    pub bytes: u64,
    /// Number of entries.
    pub entries: usize,
}

impl Limit {
    /// Returns a limit on bytes, and 2^32 for their number.
    #[must_use]
    pub const fn bytes(bytes: u64) -> Self {
        Self {
            bytes,
            entries: u32::MAX as usize,
        }
    }
}

/// A resident.
#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    value: V,
    item: Item,
}

/// Names, with what belongs to each, of all that is in a cache.
#[derive(Debug)]
pub struct Residents<K, V> {
    slots: HashMap<K, Slot>,
    entries: Vec<Option<Entry<K, V>>>,
    free: Vec<Slot>,
    /// How often each is pinned, whether it is cached or not. The policy does not contain pinned entries.
    pins: HashMap<K, u32>,
    policy: Box<dyn Policy>,
    limit: Limit,
    bytes: u64,
    pinned_bytes: u64,
    pinned: usize,
}

impl<K: Clone + Eq + Hash + Fingerprint, V> Residents<K, V> {
    /// Returns an empty cache.
    #[must_use]
    pub fn new(policy: PolicyKind, limit: Limit) -> Self {
        Self::with(policy.build(limit.bytes), limit)
    }

    /// Returns an empty cache with a policy that was made for another limit.
    #[must_use]
    pub fn with(policy: Box<dyn Policy>, limit: Limit) -> Self {
        Self {
            slots: HashMap::new(),
            entries: Vec::new(),
            free: Vec::new(),
            pins: HashMap::new(),
            policy,
            limit,
            bytes: 0,
            pinned_bytes: 0,
            pinned: 0,
        }
    }

    /// Returns how many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the bytes of all entries.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns how many of them are pinned.
    #[must_use]
    pub const fn pinned(&self) -> usize {
        self.pinned
    }

    /// Returns the bytes of those that are here and pinned, and how many are pinned, here or not.
    #[must_use]
    pub fn pinned_room(&self) -> (u64, usize) {
        (self.pinned_bytes, self.pins.len())
    }

    /// Returns whether this one is pinned, here or not.
    #[must_use]
    pub fn is_pinned(&self, key: &K) -> bool {
        self.pins.contains_key(key)
    }

    /// Returns whether an entry of this size can be added: enough is not pinned.
    #[must_use]
    pub fn has_room(&self, bytes: u32) -> bool {
        let bytes = self.pinned_bytes.saturating_add(u64::from(bytes));
        bytes <= self.limit.bytes && self.pinned < self.limit.entries
    }

    /// Returns what belongs to `key`, if it is here; this is no use of it.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&V> {
        let entry = self.entries[self.slots.get(key)?.index()].as_ref();
        entry.map(|entry| &entry.value)
    }

    /// Returns what belongs to `key`, to change it.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let entry = self.entries[self.slots.get(key)?.index()].as_mut();
        entry.map(|entry| &mut entry.value)
    }

    /// Records a use of `key`, and returns whether it is cached.
    pub fn hit(&mut self, key: &K, class: Class) -> bool {
        let Some(&slot) = self.slots.get(key) else {
            return false;
        };
        if !self.pins.contains_key(key) {
            self.policy.hit(slot, class);
        }
        true
    }

    /// Adds an entry, and passes evicted ones to `gone`. Returns whether it was added: if pinned entries leave
    /// too little space it is not, and nothing is evicted.
    pub fn admit(&mut self, key: K, value: V, item: Item, gone: &mut dyn FnMut(K, V)) -> bool {
        let bytes = u64::from(item.bytes);
        if !self.has_room(item.bytes) || self.slots.contains_key(&key) {
            return false;
        }
        while self.bytes + bytes > self.limit.bytes || self.len() >= self.limit.entries {
            let Some((key, value)) = self.evict() else {
                return false;
            };
            gone(key, value);
        }
        let Some(slot) = self.take_slot() else {
            return false;
        };
        self.bytes += bytes;
        if self.pins.contains_key(&key) {
            self.pinned += 1;
            self.pinned_bytes += bytes;
        } else {
            self.policy.insert(slot, item);
        }
        self.slots.insert(key.clone(), slot);
        self.entries[slot.index()] = Some(Entry { key, value, item });
        true
    }

    /// Has the policy choose one to go.
    pub fn evict(&mut self) -> Option<(K, V)> {
        let slot = self.policy.evict()?;
        self.release(slot)
    }

    /// Removes an entry, pinned or not.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let slot = *self.slots.get(key)?;
        if self.pins.contains_key(key) {
            let item = self.entries[slot.index()].as_ref()?.item;
            self.pinned -= 1;
            self.pinned_bytes -= u64::from(item.bytes);
        } else {
            self.policy.remove(slot);
        }
        self.release(slot).map(|(_, value)| value)
    }

    /// Keeps one from being evicted, also if it comes later. Does nothing beyond as many pins as
    /// there may be entries.
    pub fn pin(&mut self, key: &K) {
        if let Some(pins) = self.pins.get_mut(key) {
            *pins = pins.saturating_add(1);
            return;
        }
        if self.pins.len() >= self.limit.entries {
            return;
        }
        self.pins.insert(key.clone(), 1);
        if let Some((slot, item)) = self.find(key) {
            self.policy.remove(slot);
            self.pinned += 1;
            self.pinned_bytes += u64::from(item.bytes);
        }
    }

    /// Undoes one pin.
    pub fn unpin(&mut self, key: &K) {
        match self.pins.get_mut(key) {
            None => return,
            Some(pins) if *pins > 1 => {
                *pins -= 1;
                return;
            }
            Some(_) => self.pins.remove(key),
        };
        if let Some((slot, item)) = self.find(key) {
            self.pinned -= 1;
            self.pinned_bytes -= u64::from(item.bytes);
            self.policy.insert(slot, item);
        }
    }

    fn find(&self, key: &K) -> Option<(Slot, Item)> {
        let slot = *self.slots.get(key)?;
        let entry = self.entries[slot.index()].as_ref()?;
        Some((slot, entry.item))
    }

    fn take_slot(&mut self) -> Option<Slot> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let slot = Slot(u32::try_from(self.entries.len()).ok()?);
        self.entries.push(None);
        Some(slot)
    }

    fn release(&mut self, slot: Slot) -> Option<(K, V)> {
        let entry = self.entries[slot.index()].take()?;
        self.slots.remove(&entry.key);
        self.free.push(slot);
        self.bytes -= u64::from(entry.item.bytes);
        Some((entry.key, entry.value))
    }
}
