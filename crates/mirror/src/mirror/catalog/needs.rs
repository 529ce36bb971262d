//! Which blobs the known manifests need, and which manifests are dropped when there are too many.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;

use super::bounds::Bounds;
use crate::blobs::{BlobDigest, BlobKey};

/// A name in few bytes: there may be a hundred thousand. Two with the same one would only be worth the
/// same to who makes room.
type Short = u128;

/// Manifests that are kept, and which of them need a blob.
#[derive(Debug, Default)]
pub(super) struct Needs {
    by: HashMap<Short, Vec<Short>>,
    known: HashMap<Short, Known>,
    /// All known manifests, by their last request.
    order: BTreeSet<(u64, Short)>,
    cost: u64,
    /// The part of `cost` that long manifests have.
    long_cost: u64,
}

#[derive(Debug)]
struct Known {
    key: BlobKey,
    /// Milliseconds since 1970 of its last request; 0 if that was before the start.
    used: u64,
    cost: u64,
    needs: Box<[Short]>,
}

fn short(name: &impl Display) -> Short {
    let hash = blake3::hash(name.to_string().as_bytes());
    let first = hash.as_bytes().first_chunk();
    u128::from_le_bytes(*first.unwrap_or(&[0; 16]))
}

impl Needs {
    /// Adds a manifest of this cost that needs these blobs, or records another request for it.
    pub(super) fn add(&mut self, key: &BlobKey, children: &[BlobDigest], cost: u64, used: u64) {
        let id = short(key);
        if self.known.contains_key(&id) {
            self.use_at(id, used);
            return;
        }
        let mut needs: Vec<_> = children.iter().map(short).collect();
        // One may be named a thousand times; each would be looked for among those of all others when this one goes.
        needs.sort_unstable();
        needs.dedup();
        let needs = needs.into_boxed_slice();
        for child in &needs {
            // Most are needed by one.
            let by = self
                .by
                .entry(*child)
                .or_insert_with(|| Vec::with_capacity(1));
            by.push(id);
        }
        self.cost += cost;
        if Bounds::is_long(cost) {
            self.long_cost += cost;
        }
        let key = key.clone();
        let known = Known {
            key,
            used,
            cost,
            needs,
        };
        self.known.insert(id, known);
        self.order.insert((used, id));
    }

    /// Records a request for a manifest.
    pub(super) fn touch(&mut self, key: &BlobKey, used: u64) {
        self.use_at(short(key), used);
    }

    fn use_at(&mut self, id: Short, used: u64) {
        if let Some(known) = self.known.get_mut(&id) {
            self.order.remove(&(known.used, id));
            known.used = used;
            self.order.insert((used, id));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn has(&self, key: &BlobKey) -> bool {
        let known = self.known.get(&short(key));
        known.is_some_and(|known| known.key == *key)
    }

    /// Returns how many manifests need a blob, and the time of the last request for one of them.
    pub(super) fn of(&self, digest: &BlobDigest) -> (usize, u64) {
        let by = self.by.get(&short(digest)).map(Vec::as_slice);
        let by = by.unwrap_or_default();
        let used = by.iter().filter_map(|id| self.known.get(id));
        let used = used.map(|known| known.used).max();
        (by.len(), used.unwrap_or(0))
    }

    /// Removes manifests until the others fit, the least recently requested first, and returns the removed
    /// ones. Long ones have a separate part: a few of them must not evict a thousand others.
    pub(super) fn drop_over(&mut self, bounds: &Bounds) -> Vec<BlobKey> {
        let mut dropped = Vec::new();
        loop {
            let too_long = self.long_cost > bounds.long;
            let too_much = self.cost > bounds.manifests || self.known.len() > bounds.count;
            if !too_long && !too_much {
                return dropped;
            }
            let is_long = |id: &Short| {
                let known = self.known.get(id);
                known.is_some_and(|known| Bounds::is_long(known.cost))
            };
            let mut oldest = self.order.iter().map(|(_, id)| *id);
            let Some(id) = oldest.find(|id| !too_long || is_long(id)) else {
                return dropped;
            };
            dropped.extend(self.forget(&id));
        }
    }

    /// Removes all manifests.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn forget(&mut self, id: &Short) -> Option<BlobKey> {
        let known = self.known.remove(id)?;
        self.order.remove(&(known.used, *id));
        for child in &known.needs {
            if let Some(by) = self.by.get_mut(child) {
                by.retain(|manifest| manifest != id);
                if by.is_empty() {
                    self.by.remove(child);
                }
            }
        }
        self.cost -= known.cost;
        if Bounds::is_long(known.cost) {
            self.long_cost -= known.cost;
        }
        Some(known.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blobs::Algorithm;

    fn named(name: u8) -> BlobKey {
        BlobKey::open(BlobDigest::of(Algorithm::Sha256, &[name]))
    }

    #[test]
    fn the_manifests_of_longest_ago_are_dropped() {
        let mut needs = Needs::default();
        let layer = BlobDigest::of(Algorithm::Sha256, b"layer");
        for used in [3, 1, 2] {
            needs.add(&named(used), std::slice::from_ref(&layer), 10, used.into());
        }
        assert_eq!(needs.of(&layer), (3, 3));
        let bounds = Bounds {
            manifests: 19,
            ..Bounds::of(1 << 30)
        };
        assert_eq!(needs.drop_over(&bounds), [named(1), named(2)]);
        assert!(needs.has(&named(3)));
        assert_eq!((needs.len(), needs.of(&layer)), (1, (1, 3)));
        let none = Bounds { count: 0, ..bounds };
        assert_eq!(needs.drop_over(&none), [named(3)]);
        assert!(needs.of(&layer) == (0, 0) && needs.by.is_empty() && needs.cost == 0);
    }

    #[test]
    fn what_a_manifest_names_again_and_again_counts_once() {
        let mut needs = Needs::default();
        let layer = BlobDigest::of(Algorithm::Sha256, b"layer");
        for name in 0..3 {
            needs.add(&named(name), &vec![layer.clone(); 1000], 10, 1);
        }
        assert_eq!(needs.of(&layer), (3, 1));
        assert_eq!(needs.by.values().map(Vec::len).sum::<usize>(), 3);
        needs.forget(&short(&named(1)));
        assert_eq!(needs.of(&layer), (2, 1));
    }

    #[test]
    fn long_manifests_drive_out_long_ones_only() {
        let mut needs = Needs::default();
        let bounds = Bounds::of(1 << 30);
        for name in 0..100 {
            needs.add(&named(name), &[], 5000, 1);
        }
        for name in 100..200 {
            needs.add(&named(name), &[], bounds.long / 2, name.into());
            needs.drop_over(&bounds);
        }
        assert_eq!(needs.len(), 102);
        assert!((0..100).all(|name| needs.has(&named(name))));
        assert!(needs.has(&named(199)) && needs.has(&named(198)));
    }
}
