//! An index as bytes: docs/tiering-parts-format.md, section 2. No I/O.

use std::collections::HashSet;

use blocks::{BlockIndex, BlockRange, Broken, ContentId, Input};

use super::{Index, PART_BLOCKS_MAX, Part};

const MAGIC: [u8; 8] = *b"\x89YOLOTP\n";
const VERSION: u32 = 1;
const HEAD_LEN: usize = 64;
const POOL_LEN: usize = 32;
const PART_LEN: usize = 48;

/// Pools of an index: the segments that a boot image may have, and the image itself.
const POOLS_MAX: usize = 65;
const PARTS_MAX: usize = 1 << 20;
/// Where the last block of a part may be.
const BLOCK_MAX: u64 = 1 << 36;
/// Most bytes of an index.
pub const LEN_MAX: u64 = (HEAD_LEN + POOLS_MAX * POOL_LEN + PARTS_MAX * PART_LEN) as u64;

/// Why something is no index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// It does not look like one.
    #[error("it is no index of parts")]
    Magic,
    /// A later program wrote it.
    #[error("it has version {found}; this program knows {VERSION}")]
    Version {
        /// The version found.
        found: u32,
    },
    /// It ends too early, or a number in it cannot be.
    #[error("it is damaged")]
    Broken(#[from] Broken),
    /// A rule of the format does not hold.
    #[error("it is invalid: {rule}")]
    Rule {
        /// The rule.
        rule: &'static str,
    },
}

/// Returns whether a file of `len` bytes that begins with `head` may be an index: few other files need
/// to be read.
#[must_use]
pub fn begins_an_index(head: &[u8], len: u64) -> bool {
    head.starts_with(&MAGIC) && len <= LEN_MAX
}

impl Index {
    /// Returns it as the object that it is.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for number in [
            VERSION,
            count32(self.pools.len()),
            count32(self.parts.len()),
        ] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.resize(HEAD_LEN, 0);
        for pool in &self.pools {
            bytes.extend_from_slice(&pool.0);
        }
        for part in &self.parts {
            bytes.extend_from_slice(&count32(part.pool).to_le_bytes());
            let blocks = u32::try_from(part.blocks.len()).unwrap_or(u32::MAX);
            bytes.extend_from_slice(&blocks.to_le_bytes());
            bytes.extend_from_slice(&part.blocks.start().0.to_le_bytes());
            bytes.extend_from_slice(&part.hash);
        }
        bytes
    }

    /// Returns the name of the object that it is.
    #[must_use]
    pub fn id(&self) -> ContentId {
        ContentId::of(&self.encode())
    }

    /// Decodes it.
    ///
    /// # Errors
    /// If it is not a valid index.
    pub fn decode(bytes: &[u8]) -> Result<Self, IndexError> {
        if !begins_an_index(bytes, bytes.len() as u64) {
            return Err(IndexError::Magic);
        }
        let mut input = Input::new("index", bytes);
        input.take(MAGIC.len())?;
        let found = input.u32()?;
        if found != VERSION {
            return Err(IndexError::Version { found });
        }
        let (pools, parts) = (input.count()?, input.count()?);
        Input::new("index", input.take(HEAD_LEN - 20)?).zeros()?;
        let pools = input.records::<POOL_LEN>(pools)?;
        let records = input.records::<PART_LEN>(parts)?;
        input.end()?;
        let parts = records.iter().map(part_of).collect::<Result<_, _>>()?;
        let pools = pools.iter().copied().map(ContentId).collect();
        let index = Self { pools, parts };
        index.check()?;
        Ok(index)
    }

    /// Holds what the format promises.
    pub(super) fn check(&self) -> Result<(), IndexError> {
        let rule = |rule| Err(IndexError::Rule { rule });
        if self.pools.len() > POOLS_MAX || self.parts.len() > PARTS_MAX {
            return rule("there are too many pools or parts");
        }
        if self.pools.iter().collect::<HashSet<_>>().len() != self.pools.len() {
            return rule("a pool is listed twice");
        }
        let mut used = 0;
        let mut before: Option<&Part> = None;
        for part in &self.parts {
            let blocks = part.blocks;
            if !(1..=PART_BLOCKS_MAX).contains(&blocks.len()) || blocks.end().0 > BLOCK_MAX {
                return rule("a part has a number out of its range");
            }
            let follows = before.is_none_or(|before| {
                part.pool > before.pool
                    || part.pool == before.pool && blocks.start() >= before.blocks.end()
            });
            if !follows {
                return rule("parts overlap, or are out of order");
            }
            used += usize::from(before.is_none_or(|before| before.pool != part.pool));
            before = Some(part);
        }
        let last = before.map_or(0, |part| part.pool + 1);
        if used != self.pools.len() || last != self.pools.len() {
            return rule("a part is in no pool, or a pool has no part");
        }
        Ok(())
    }
}

fn part_of(record: &[u8; PART_LEN]) -> Result<Part, Broken> {
    let mut row = Input::new("part", record);
    let pool = row.count()?;
    let blocks = u64::from(row.u32()?);
    let first = BlockIndex(row.u64()?);
    Ok(Part {
        pool,
        blocks: BlockRange::with_len(first, blocks),
        hash: row.array()?,
    })
}

/// Counts are bounded by the format.
fn count32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(pool: usize, first: u64, blocks: u64) -> Part {
        let blocks = BlockRange::with_len(BlockIndex(first), blocks);
        let hash = [7; 32];
        Part { pool, blocks, hash }
    }

    fn pools(count: u8) -> Vec<ContentId> {
        (0..count).map(|at| ContentId([at; 32])).collect()
    }

    #[test]
    fn what_is_written_is_as_the_document_says_and_is_read_back() {
        let index = Index::new(pools(2), vec![part(1, 9, 64), part(0, 3, 1)]).unwrap();
        let bytes = index.encode();
        assert_eq!(bytes.len(), 64 + 2 * 32 + 2 * 48);
        assert_eq!(bytes[..20], *b"\x89YOLOTP\n\x01\0\0\0\x02\0\0\0\x02\0\0\0");
        assert_eq!(bytes[64..128], [[0; 32], [1; 32]].concat());
        assert_eq!(bytes[128..144], *b"\0\0\0\0\x01\0\0\0\x03\0\0\0\0\0\0\0");
        assert_eq!(bytes[144..176], [7; 32]);
        assert_eq!(Index::decode(&bytes), Ok(index.clone()));
        assert_eq!(
            (index.part_bytes(), index.id()),
            (65 << 12, ContentId::of(&bytes))
        );
        let empty = Index::new(Vec::new(), Vec::new()).unwrap();
        assert_eq!(Index::decode(&empty.encode()), Ok(empty));
    }

    #[test]
    fn what_breaks_a_rule_is_refused() {
        let refused = |pools, parts: &[Part]| Index::new(pools, parts.to_vec()).unwrap_err();
        refused(pools(1), &[]);
        refused(pools(1), &[part(1, 0, 1)]);
        refused(pools(2), &[part(1, 0, 1)]);
        refused(pools(2), &[part(0, 0, 1), part(2, 0, 1)]);
        refused(vec![ContentId([1; 32]); 2], &[part(0, 0, 1), part(1, 0, 1)]);
        refused(pools(1), &[part(0, 0, 0)]);
        refused(pools(1), &[part(0, 0, 65)]);
        refused(pools(1), &[part(0, u64::MAX, 1)]);
        refused(pools(1), &[part(0, 0, 3), part(0, 2, 1)]);
        let many: Vec<Part> = (0..66).map(|pool| part(pool, 0, 1)).collect();
        refused(pools(66), &many);
    }

    #[test]
    fn any_cut_is_noticed_and_so_is_what_is_reserved() {
        let index = Index::new(pools(1), vec![part(0, 3, 1)]).unwrap();
        let good = index.encode();
        for cut in 0..good.len() {
            assert!(Index::decode(&good[..cut]).is_err(), "{cut}");
        }
        let with = |at: usize, byte: u8| {
            let mut bad = good.clone();
            bad[at] = byte;
            Index::decode(&bad)
        };
        assert_eq!(with(0, 0), Err(IndexError::Magic));
        assert_eq!(with(8, 2), Err(IndexError::Version { found: 2 }));
        for at in [12, 15, 16, 19, 20, 63, 100, 103] {
            assert!(with(at, 0xFF).is_err(), "{at}");
        }
        assert!(Index::decode(&[good, vec![0]].concat()).is_err());
    }
}
