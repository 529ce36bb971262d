//! The extents of a run of blocks: in the inode, or in blocks that the inode names.

use crate::error::{BLOCK_BYTES, Ext4Error};

/// The field of an inode for extents.
pub(crate) const ROOT_BYTES: usize = 60;
const MAGIC: u16 = 0xf30a;
/// The header of each node, and each of its entries.
const ENTRY_BYTES: usize = 12;
/// Entries of the node in an inode.
const ROOT_ENTRIES: usize = 4;
/// Entries of a node in a block.
const BLOCK_ENTRIES: usize = BLOCK_BYTES / ENTRY_BYTES - 1;
/// Blocks of the longest extent: longer ones say that they are not written.
const EXTENT_BLOCKS: u32 = 32_768;

/// The extents of an inode.
#[derive(Debug)]
pub(crate) struct Extents {
    /// The field of the inode.
    pub(crate) root: Vec<u8>,
    /// The blocks that it names.
    pub(crate) blocks: Vec<u8>,
}

impl Extents {
    /// Encodes a run of blocks. Blocks of extents, if there have to be any, begin at `spare`.
    pub(crate) fn encode(start: u32, blocks: u32, spare: u32) -> Result<Self, Ext4Error> {
        let extents: Vec<_> = (0..blocks)
            .step_by(EXTENT_BLOCKS as usize)
            .map(|at| extent(at, EXTENT_BLOCKS.min(blocks - at), start + at))
            .collect();
        if extents.len() <= ROOT_ENTRIES {
            return Ok(Self {
                root: node(&extents, ROOT_ENTRIES, 0, ROOT_BYTES),
                blocks: Vec::new(),
            });
        }
        let nodes: Vec<_> = extents.chunks(BLOCK_ENTRIES).collect();
        if nodes.len() > ROOT_ENTRIES {
            let bytes = u64::from(blocks) * BLOCK_BYTES as u64;
            return Err(Ext4Error::FileTooLong { bytes });
        }
        let numbers = (spare..).zip(&nodes);
        let names: Vec<_> = numbers.map(|(at, node)| index(&node[0], at)).collect();
        let encoded = nodes
            .iter()
            .map(|extents| node(extents, BLOCK_ENTRIES, 0, BLOCK_BYTES));
        Ok(Self {
            root: node(&names, ROOT_ENTRIES, 1, ROOT_BYTES),
            blocks: encoded.flatten().collect(),
        })
    }
}

type Entry = [u8; ENTRY_BYTES];

fn node(entries: &[Entry], room: usize, depth: u16, len: usize) -> Vec<u8> {
    // Counts within a block.
    let short = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
    let fields = [MAGIC, short(entries.len()), short(room), depth];
    let mut bytes: Vec<u8> = fields.into_iter().flat_map(u16::to_le_bytes).collect();
    bytes.resize(ENTRY_BYTES, 0);
    bytes.extend(entries.as_flattened());
    bytes.resize(len, 0);
    bytes
}

fn extent(at: u32, blocks: u32, start: u32) -> Entry {
    let mut entry = [0; ENTRY_BYTES];
    entry[..4].copy_from_slice(&at.to_le_bytes());
    let blocks = u16::try_from(blocks).unwrap_or(u16::MAX);
    entry[4..6].copy_from_slice(&blocks.to_le_bytes());
    entry[8..].copy_from_slice(&start.to_le_bytes());
    entry
}

/// Returns the entry of a node that begins with an extent.
fn index(first: &Entry, block: u32) -> Entry {
    let mut entry = [0; ENTRY_BYTES];
    entry[..4].copy_from_slice(&first[..4]);
    entry[4..8].copy_from_slice(&block.to_le_bytes());
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_runs_get_blocks_of_their_own() {
        let none = Extents::encode(0, 0, 9).unwrap();
        assert_eq!(none.root[..8], [0x0a, 0xf3, 0, 0, 4, 0, 0, 0]);
        let four = Extents::encode(100, 4 * EXTENT_BLOCKS, 9).unwrap();
        assert!(four.blocks.is_empty());
        assert_eq!(four.root[48..], extent(3 << 15, 1 << 15, 100 + (3 << 15)));
        let five = Extents::encode(100, 4 * EXTENT_BLOCKS + 1, 9).unwrap();
        assert_eq!(five.root[..8], [0x0a, 0xf3, 1, 0, 4, 0, 1, 0]);
        assert_eq!(five.root[12..24], [0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(five.blocks.len(), BLOCK_BYTES);
        assert_eq!(five.blocks[60..72], extent(4 << 15, 1, 100 + (4 << 15)));
        let most = 4 * 340 * EXTENT_BLOCKS;
        assert_eq!(Extents::encode(0, most, 9).unwrap().blocks.len(), 4 << 12);
        assert!(Extents::encode(0, most + 1, 9).is_err());
    }
}
