//! Objects in parts: data that several objects share is on each tier once.
//!
//! Such an object is an [`Index`]: an object as any other, which names runs of blocks in *pools*.
//! A pool is a sparse file with the blocks that some index on the tier names, each once. So the
//! journal counts indexes as it counts all objects, and knows nothing of pools: they are written
//! before an index counts, and given back after it does not. `docs/tiering-parts-format.md`.

mod format;
mod kept;
mod pools;
mod users;

use blocks::{BlockRange, ContentId};

pub use format::{IndexError, LEN_MAX, begins_an_index};
pub use kept::PartedObjects;
pub use pools::BringPart;
pub use pools::pool_name;
pub use users::Users;

/// Most blocks of a part: 256 KiB are hashed, and moved, at once.
pub const PART_BLOCKS_MAX: u64 = 64;

/// A run of blocks of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// Which pool, by its place among the index's pools.
    pub pool: usize,
    /// The blocks.
    pub blocks: BlockRange,
    /// The BLAKE3 hash of the blocks.
    pub hash: [u8; 32],
}

/// What an object in parts is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    pools: Vec<ContentId>,
    /// In the order of pools and of blocks.
    parts: Vec<Part>,
}

impl Index {
    /// Returns the index with these pools and parts, which may come in any order.
    ///
    /// # Errors
    /// If they break a rule or a limit of the format.
    pub fn new(pools: Vec<ContentId>, mut parts: Vec<Part>) -> Result<Self, IndexError> {
        parts.sort_unstable();
        let index = Self { pools, parts };
        index.check()?;
        Ok(index)
    }

    /// Returns the names of the pools, in the order of their creator.
    #[must_use]
    pub fn pools(&self) -> &[ContentId] {
        &self.pools
    }

    /// Returns the parts, in the order of pools and of blocks.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the bytes of all parts.
    #[must_use]
    pub fn part_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.blocks.byte_len()).sum()
    }

    /// Returns the name of the pool that a part is in.
    fn pool_of(&self, part: &Part) -> ContentId {
        self.pools.get(part.pool).copied().unwrap_or_default()
    }

    /// Returns the blocks that it names of a pool, in order.
    fn blocks_of(&self, pool: ContentId) -> impl Iterator<Item = BlockRange> {
        let place = self.pools.iter().position(|name| *name == pool);
        let place = place.unwrap_or(usize::MAX);
        let first = self.parts.partition_point(|part| part.pool < place);
        let parts = self.parts[first..].iter();
        parts
            .take_while(move |part| part.pool == place)
            .map(|part| part.blocks)
    }
}
