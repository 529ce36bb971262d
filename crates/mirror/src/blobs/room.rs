//! Which blobs are evicted when another one needs room.
//!
//! Incomplete blobs are evicted before complete ones, and blobs that no known image needs before those
//! that one does. Among these a [`Policy`](chunks::Policy) chooses, the same code as for chunks. A blob
//! that is being read is pinned: its bytes would not be freed before the read ends.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::key::{BlobKey, Realm};
use chunks::Class;
use chunks::{Fingerprint, Item, Limit, PolicyKind, Residents};

/// The unit of sizes: a blob may have more bytes than an [`Item`] can count.
const PAGE: u64 = 4096;

/// A candidate for eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tenant {
    /// Its key.
    pub(super) key: BlobKey,
    /// Its bytes on the disk.
    pub(super) bytes: u64,
    /// Whether it is incomplete, without a download.
    pub(super) is_part: bool,
    /// How many known manifests need it.
    pub(super) references: usize,
    /// Seconds since 1970 of the last request for it, or for an image that needs it.
    pub(super) used: u64,
}

impl Fingerprint for BlobKey {
    fn fingerprint(&self) -> u64 {
        // They are hashes already, of at least 16 digits.
        let digest = u64::from_str_radix(&self.digest.hex()[..16], 16).unwrap_or(0);
        match self.realm {
            Realm::Open => digest,
            Realm::Of(id) => digest ^ u64::from_le_bytes(*id.0.first_chunk().unwrap_or(&[0; 8])),
        }
    }
}

/// The complete blobs as the policy knows them, each with the last use that was reported to it.
#[derive(Debug)]
pub(super) struct Order(Residents<BlobKey, u64>);

impl Order {
    /// Returns an empty order for a budget in bytes, which the caller enforces.
    pub(super) fn new(policy: PolicyKind, budget: u64) -> Self {
        let policy = policy.build(budget.div_ceil(PAGE));
        Self(Residents::with(policy, Limit::bytes(u64::MAX)))
    }

    /// Adds a blob with the time of its last use.
    pub(super) fn insert(&mut self, key: &BlobKey, bytes: u64, used: u64) {
        let item = Item {
            fingerprint: key.fingerprint(),
            bytes: u32::try_from(bytes.div_ceil(PAGE)).unwrap_or(u32::MAX),
            class: Class::Demand,
        };
        self.0.admit(key.clone(), used, item, &mut |_, _| {});
    }

    /// Removes a blob.
    pub(super) fn remove(&mut self, key: &BlobKey) {
        self.0.remove(key);
    }

    /// Pins a blob that is being read.
    pub(super) fn pin(&mut self, key: &BlobKey) {
        self.0.pin(key);
    }

    /// Unpins a blob.
    pub(super) fn unpin(&mut self, key: &BlobKey) {
        self.0.unpin(key);
    }

    /// Returns the blobs to evict so that `need` bytes become free, the least valuable first. All
    /// of them may not be enough. They are removed from the policy.
    pub(super) fn victims(&mut self, mut tenants: Vec<Tenant>, need: u64) -> Vec<Tenant> {
        sort(&mut tenants);
        self.learn(&tenants);
        let (pinned, idle): (Vec<_>, Vec<_>) = tenants
            .into_iter()
            .partition(|tenant| !tenant.is_part && self.0.is_pinned(&tenant.key));
        let (needed, useless): (Vec<_>, Vec<_>) = idle.into_iter().partition(Tenant::is_needed);
        let mut needed: HashMap<_, _> = needed
            .into_iter()
            .map(|tenant| (tenant.key.clone(), tenant))
            .collect();
        let mut freed = 0;
        let mut chosen = Vec::new();
        let mut useless = useless.into_iter();
        let mut pinned = pinned.into_iter();
        while freed < need {
            let next = useless.next();
            let next = next.or_else(|| self.choose(&mut needed));
            let Some(tenant) = next.or_else(|| pinned.next()) else {
                break;
            };
            freed += tenant.bytes;
            chosen.push(tenant);
        }
        chosen
    }

    /// Lets the policy choose among blobs that images need.
    fn choose(&mut self, needed: &mut HashMap<BlobKey, Tenant>) -> Option<Tenant> {
        loop {
            // What is not among them goes already.
            let (key, _) = self.0.evict()?;
            if let Some(tenant) = needed.remove(&key) {
                return Some(tenant);
            }
        }
    }

    /// Reports the uses since the last report to the policy, in their order. They are not reported
    /// as they happen, because a client that pulls an image may request none of its blobs.
    fn learn(&mut self, tenants: &[Tenant]) {
        let mut used: Vec<_> = tenants.iter().filter(|tenant| !tenant.is_part).collect();
        used.sort_by_key(|tenant| tenant.used);
        for Tenant { key, used, .. } in used {
            if let Some(known) = self.0.get_mut(key)
                && *known < *used
            {
                *known = *used;
                self.0.hit(key, Class::Demand);
            }
        }
    }
}

impl Tenant {
    const fn is_needed(&self) -> bool {
        !self.is_part && self.references > 0
    }
}

/// The least valuable first, as far as that does not take a policy: of what was used at the same
/// time, first what fewest images share, and of that the largest.
fn sort(tenants: &mut [Tenant]) {
    tenants.sort_by_key(|tenant| {
        let value = (tenant.is_needed(), !tenant.is_part, tenant.used);
        (value, tenant.references, Reverse(tenant.bytes))
    });
}

#[cfg(test)]
mod tests {
    use super::super::digest::{Algorithm, BlobDigest};
    use super::*;

    fn tenant(name: &str, bytes: u64, references: usize, used: u64) -> Tenant {
        Tenant {
            key: BlobKey::open(BlobDigest::of(Algorithm::Sha256, name.as_bytes())),
            bytes,
            is_part: false,
            references,
            used,
        }
    }

    /// Returns an order that knows these, as they came.
    fn order(policy: PolicyKind, whole: &[&Tenant]) -> Order {
        let mut order = Order::new(policy, 1 << 30);
        for tenant in whole {
            order.insert(&tenant.key, tenant.bytes, 0);
        }
        order
    }

    #[test]
    fn parts_go_first_then_orphans_then_the_image_of_longest_ago() {
        let part = Tenant {
            is_part: true,
            ..tenant("part", 1, 9, 99)
        };
        let orphan = tenant("orphan", 1, 0, 50);
        let old = tenant("old", 1, 1, 10);
        let old_base = tenant("base", 1, 3, 10);
        let new = tenant("new", 1, 1, 20);
        let mut order = order(PolicyKind::Lru, &[&new, &orphan, &old_base, &old]);
        let all = vec![
            new.clone(),
            old_base.clone(),
            part.clone(),
            old.clone(),
            orphan.clone(),
        ];
        let chosen = order.victims(all, u64::MAX);
        assert_eq!(chosen, [part, orphan, old, old_base, new]);
    }

    #[test]
    fn no_more_go_than_must() {
        let all = [
            tenant("a", 10, 0, 1),
            tenant("b", 10, 1, 2),
            tenant("c", 10, 1, 3),
        ];
        for (need, count) in [(0, 0), (10, 1), (11, 2), (100, 3)] {
            let mut order = order(PolicyKind::Lru, &all.each_ref());
            assert_eq!(order.victims(all.to_vec(), need).len(), count, "{need}");
        }
    }

    #[test]
    fn what_is_read_goes_last_and_like_others_when_it_is_read() {
        let (read, idle) = (tenant("read", 1, 1, 1), tenant("idle", 1, 1, 2));
        let orphan = tenant("orphan", 1, 0, 0);
        let all = || vec![read.clone(), idle.clone(), orphan.clone()];
        let whole = [&read, &idle, &orphan];
        let mut order = order(PolicyKind::Lru, &whole);
        order.pin(&read.key);
        order.pin(&orphan.key);
        let chosen = order.victims(all(), 1);
        assert_eq!(chosen, std::slice::from_ref(&idle));
        order.insert(&idle.key, 1, 0);
        let chosen = order.victims(all(), 3);
        assert_eq!(chosen, [idle.clone(), orphan.clone(), read.clone()]);
        order.insert(&idle.key, 1, 9);
        order.unpin(&read.key);
        order.unpin(&orphan.key);
        let chosen = order.victims(all(), 3);
        assert_eq!(chosen[0], orphan);
        assert_eq!(chosen.len(), 3);
    }

    #[test]
    fn the_policy_is_the_one_that_was_asked_for() {
        // Used often, but longest ago.
        let often = tenant("often", 1, 1, 3);
        let mut order = order(PolicyKind::Lfu, &[&often]);
        for used in 1..3 {
            let seen = Tenant {
                used,
                ..often.clone()
            };
            assert_eq!(order.victims(vec![seen], 0), []);
        }
        let late = tenant("late", 1, 1, 9);
        order.insert(&late.key, 1, 9);
        assert_eq!(order.victims(vec![often, late.clone()], 1), [late]);
    }
}
