//! The blocks of a directory: entries in front, their names behind them.

use blocks::{FileId, NodeKind, Tree};

use crate::error::BLOCK_BYTES;

/// A name's number of inode, the place of its characters in the block, and its kind.
const ENTRY_BYTES: usize = 12;

/// Returns what is in a directory, with itself and the one above it, in the order of the format: by bytes.
fn names(tree: &Tree, dir: FileId, above: FileId) -> Vec<(&[u8], FileId)> {
    let mut names: Vec<_> = tree.entries(dir).collect();
    for (name, file) in [(&b".."[..], above), (b".", dir)] {
        let at = names.partition_point(|(other, _)| *other < name);
        names.insert(at, (name, file));
    }
    names
}

/// Cuts names into blocks; returns the names of each.
fn blocks<'a, 'n>(names: &'a [(&'n [u8], FileId)]) -> Vec<&'a [(&'n [u8], FileId)]> {
    let mut blocks = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (at, (name, _)) in names.iter().enumerate() {
        let more = ENTRY_BYTES + name.len();
        if bytes + more > BLOCK_BYTES {
            blocks.push(&names[start..at]);
            (start, bytes) = (at, 0);
        }
        bytes += more;
    }
    blocks.push(&names[start..]);
    blocks
}

fn bytes_of(block: &[(&[u8], FileId)]) -> usize {
    block.iter().map(|(name, _)| ENTRY_BYTES + name.len()).sum()
}

/// Returns how long a directory is: its last block ends with the last name.
pub(crate) fn size(tree: &Tree, dir: FileId, above: FileId) -> usize {
    let names = names(tree, dir, above);
    let blocks = blocks(&names);
    let last = blocks.last().map_or(0, |block| bytes_of(block));
    (blocks.len() - 1) * BLOCK_BYTES + last
}

/// Encodes a directory, given the number of each inode.
pub(crate) fn encode(
    tree: &Tree,
    dir: FileId,
    above: FileId,
    number: &dyn Fn(FileId) -> u64,
) -> Vec<u8> {
    let names = names(tree, dir, above);
    let mut encoded: Vec<u8> = Vec::new();
    for block in blocks(&names) {
        encoded.resize(encoded.len().next_multiple_of(BLOCK_BYTES), 0);
        let mut name_at = block.len() * ENTRY_BYTES;
        for (name, file) in block {
            encoded.extend(number(*file).to_le_bytes());
            // Within a block of 4 096 bytes.
            let place = u16::try_from(name_at).unwrap_or(u16::MAX);
            encoded.extend(place.to_le_bytes());
            encoded.extend([kind_of(tree, *file), 0]);
            name_at += name.len();
        }
        for (name, _) in block {
            encoded.extend_from_slice(name);
        }
    }
    encoded
}

fn kind_of(tree: &Tree, file: FileId) -> u8 {
    match tree.inode(file).map(|inode| inode.attr.kind) {
        None => 0,
        Some(NodeKind::File) => 1,
        Some(NodeKind::Dir) => 2,
        Some(NodeKind::CharDevice) => 3,
        Some(NodeKind::BlockDevice) => 4,
        Some(NodeKind::Fifo) => 5,
        Some(NodeKind::Socket) => 6,
        Some(NodeKind::Symlink) => 7,
    }
}
