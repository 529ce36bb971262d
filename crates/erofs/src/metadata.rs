//! The superblock, and all metadata of a tree in one run of blocks.

use blocks::{FileId, NodeKind, Tree};

use crate::error::{BLOCK_BYTES, ErofsError};
use crate::{dirs, nodes};

/// Where the superblock begins in the first block.
const SUPERBLOCK_AT: usize = 1024;
const MAGIC: u32 = 0xe0f5_e1e2;
/// Readers that know none of these may ignore them: the superblock has a checksum, and times are those of
/// changes.
const COMPATIBLE: u32 = 1 | 2;

/// Metadata of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The first block of the device.
    pub superblock: Vec<u8>,
    /// All other metadata: whole blocks, from the requested block on.
    pub metadata: Vec<u8>,
}

/// Returns the metadata of a tree for a device on which they begin at the block `start`. The content of each
/// regular file is in consecutive blocks, the last one filled up with zeros; `place` returns
/// the first one. It is not called for files without content.
///
/// # Errors
/// If the tree exceeds a limit of the format.
pub fn metadata(
    tree: &Tree,
    uuid: [u8; 16],
    start: u32,
    place: &dyn Fn(FileId) -> u32,
) -> Result<Written, ErofsError> {
    let (nodes, end) = nodes::lay_out(tree)?;
    let above = nodes::above(tree);
    let number = |file: FileId| nodes[file.index()].number();
    let mut bytes = vec![0; end.next_multiple_of(BLOCK_BYTES)];
    for (file, inode) in tree.files() {
        let node = nodes[file.index()];
        let content = match inode.attr.kind {
            NodeKind::Dir => dirs::encode(tree, file, above[file.index()], &number),
            NodeKind::Symlink => tree.link_target(file).unwrap_or_default().to_vec(),
            _ => Vec::new(),
        };
        let block = match inode.attr.kind {
            NodeKind::File if inode.attr.size > 0 => place(file),
            NodeKind::File => 0,
            _ => block_number(start, bytes.len())?,
        };
        let (blocks, tail) = content.split_at(node.in_blocks);
        let inode = nodes::encode(tree, file, inode, node, block)?;
        bytes[node.at..node.at + inode.len()].copy_from_slice(&inode);
        let behind = node.at + inode.len();
        bytes[behind..behind + tail.len()].copy_from_slice(tail);
        bytes.extend_from_slice(blocks);
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
    }
    let about = Superblock {
        uuid,
        root: number(FileId::ROOT),
        inodes: tree.len() as u64,
        start,
        blocks: block_number(start, bytes.len())?,
    };
    Ok(Written {
        superblock: about.encode(),
        metadata: bytes,
    })
}

/// Returns the number of the block so many bytes behind another.
fn block_number(start: u32, bytes: usize) -> Result<u32, ErofsError> {
    let blocks = u32::try_from(bytes / BLOCK_BYTES).ok();
    let number = blocks.and_then(|blocks| start.checked_add(blocks));
    number.ok_or(ErofsError::TooLarge)
}

struct Superblock {
    uuid: [u8; 16],
    root: u64,
    inodes: u64,
    /// The block where the metadata begin.
    start: u32,
    /// How many blocks there are.
    blocks: u32,
}

impl Superblock {
    fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        let fields = &mut block[SUPERBLOCK_AT..];
        let mut put = |at: usize, bytes: &[u8]| fields[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC.to_le_bytes());
        put(8, &COMPATIBLE.to_le_bytes());
        put(12, &[12]); // the logarithm of the bytes of a block
        // It is the first inode, so that its number always fits.
        put(14, &self.root.to_le_bytes()[..2]);
        put(16, &self.inodes.to_le_bytes());
        put(36, &self.blocks.to_le_bytes());
        put(40, &self.start.to_le_bytes());
        put(48, &self.uuid);
        // Without the complement at the end that libraries make.
        let sum = !crc32c::crc32c(&block[SUPERBLOCK_AT..]);
        block[SUPERBLOCK_AT + 4..SUPERBLOCK_AT + 8].copy_from_slice(&sum.to_le_bytes());
        block
    }
}
