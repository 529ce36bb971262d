//! Who has to go when a blob needs room: a pure choice.

use std::cmp::Reverse;

use super::digest::BlobDigest;

/// Something that could go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Which blob.
    pub digest: BlobDigest,
    /// What it takes.
    pub bytes: u64,
    /// Whether it is the beginning of a blob that nobody fills.
    pub is_part: bool,
    /// How many of the manifests that are known need it.
    pub references: usize,
    /// Seconds since 1970 at which it, or an image that needs it, was last asked for.
    pub used: u64,
}

/// Returns who goes so that `need` bytes become free, the least valuable first. All of them may be
/// too few.
///
/// Beginnings of blobs go before whole ones, and blobs that no known image needs before those that
/// one does. Among these, whoever belongs to the image that was not asked for longest goes first;
/// of one image's layers, first the one that fewest others share.
#[must_use]
pub fn victims(mut tenants: Vec<Tenant>, need: u64) -> Vec<Tenant> {
    tenants.sort_by(|a, b| {
        let key = |tenant: &Tenant| {
            let is_needed = !tenant.is_part && tenant.references > 0;
            (is_needed, !tenant.is_part, tenant.used, tenant.references)
        };
        let by_value = key(a).cmp(&key(b));
        by_value.then_with(|| Reverse(a.bytes).cmp(&Reverse(b.bytes)))
    });
    let mut freed = 0;
    let chosen = tenants.into_iter().take_while(|tenant| {
        let wanted = freed < need;
        freed += tenant.bytes;
        wanted
    });
    chosen.collect()
}

#[cfg(test)]
mod tests {
    use super::super::digest::Algorithm;
    use super::*;

    fn tenant(name: &str, bytes: u64, references: usize, used: u64) -> Tenant {
        Tenant {
            digest: BlobDigest::of(Algorithm::Sha256, name.as_bytes()),
            bytes,
            is_part: false,
            references,
            used,
        }
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
        let all = vec![
            new.clone(),
            old_base.clone(),
            part.clone(),
            old.clone(),
            orphan.clone(),
        ];
        let order = victims(all, u64::MAX);
        assert_eq!(order, [part, orphan, old, old_base, new]);
    }

    #[test]
    fn no_more_go_than_must() {
        let all = vec![
            tenant("a", 10, 0, 1),
            tenant("b", 10, 0, 2),
            tenant("c", 10, 0, 3),
        ];
        assert_eq!(victims(all.clone(), 0), []);
        assert_eq!(victims(all.clone(), 10).len(), 1);
        assert_eq!(victims(all.clone(), 11).len(), 2);
        assert_eq!(victims(all, 100).len(), 3);
    }
}
