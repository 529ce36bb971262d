//! Which indexes on a tier name which blocks of which pools. Pure.

use std::collections::{BTreeMap, BTreeSet};

use blocks::{BlockRange, ContentId, RangeSet};

use super::Index;

/// The indexes that count on a tier, by the ids of the objects that they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users(BTreeMap<ContentId, Index>);

impl Users {
    /// Adds an index.
    pub fn insert(&mut self, id: ContentId, index: Index) {
        self.0.insert(id, index);
    }

    /// Removes an index, and returns it if it was there.
    pub fn remove(&mut self, id: ContentId) -> Option<Index> {
        self.0.remove(&id)
    }

    /// Returns an index.
    #[must_use]
    pub fn get(&self, id: ContentId) -> Option<&Index> {
        self.0.get(&id)
    }

    /// Returns all indexes, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (ContentId, &Index)> {
        self.0.iter().map(|(id, index)| (*id, index))
    }

    /// Returns the blocks of a pool that any index names.
    #[must_use]
    pub fn used(&self, pool: ContentId) -> RangeSet {
        used_by(self.0.values(), pool)
    }

    /// Returns the size of all parts together, shared ones counted once.
    #[must_use]
    pub fn part_bytes(&self) -> u64 {
        let pools: BTreeSet<ContentId> = self.0.values().flat_map(Index::pools).copied().collect();
        let blocks = pools.into_iter().map(|pool| self.used(pool).len());
        bytes(blocks.sum())
    }

    /// Returns the bytes that the parts of an index would add.
    #[must_use]
    pub fn new_bytes(&self, index: &Index) -> u64 {
        index.part_bytes() - self.common_bytes(index, None)
    }

    /// Returns the size of an index's parts that other indexes use, too.
    #[must_use]
    pub fn shared_bytes(&self, id: ContentId) -> u64 {
        let index = self.0.get(&id);
        index.map_or(0, |index| self.common_bytes(index, Some(id)))
    }

    fn common_bytes(&self, index: &Index, except: Option<ContentId>) -> u64 {
        let others = || {
            let others = self.0.iter().filter(|(id, _)| Some(**id) != except);
            others.map(|(_, index)| index)
        };
        let common = index.pools().iter().map(|pool| {
            let used = used_by(others(), *pool);
            let ours: RangeSet = index.blocks_of(*pool).collect();
            ours.common_len(&used)
        });
        bytes(common.sum())
    }
}

fn used_by<'a>(indexes: impl Iterator<Item = &'a Index>, pool: ContentId) -> RangeSet {
    let mut runs: Vec<BlockRange> = indexes.flat_map(|index| index.blocks_of(pool)).collect();
    // In order each is appended, which costs nothing.
    runs.sort_unstable();
    runs.into_iter().collect()
}

const fn bytes(blocks: u64) -> u64 {
    blocks << blocks::BLOCK_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::Part;
    use blocks::BlockIndex;

    fn index(pool: u8, runs: &[(u64, u64)]) -> Index {
        let part = |(first, blocks): &(u64, u64)| Part {
            pool: 0,
            blocks: BlockRange::with_len(BlockIndex(*first), *blocks),
            hash: [0; 32],
        };
        let parts = runs.iter().map(part).collect();
        Index::new(vec![ContentId([pool; 32])], parts).unwrap()
    }

    #[test]
    fn what_several_name_counts_once() {
        let mut users = Users::default();
        let (a, b) = (index(1, &[(0, 10), (20, 10)]), index(1, &[(5, 20)]));
        let other = index(2, &[(5, 20)]);
        assert_eq!(users.new_bytes(&a), 20 << 12);
        users.insert(a.id(), a.clone());
        assert_eq!(users.shared_bytes(a.id()), 0);
        assert_eq!(users.new_bytes(&b), 10 << 12);
        assert_eq!(users.new_bytes(&other), 20 << 12);
        users.insert(b.id(), b.clone());
        users.insert(other.id(), other.clone());
        assert_eq!(users.part_bytes(), 50 << 12);
        assert_eq!(users.shared_bytes(a.id()), 10 << 12);
        assert_eq!(users.shared_bytes(b.id()), 10 << 12);
        assert_eq!(users.shared_bytes(other.id()), 0);
        assert_eq!(users.remove(a.id()), Some(a));
        assert_eq!(users.shared_bytes(b.id()), 0);
        assert_eq!(users.part_bytes(), 40 << 12);
    }
}
