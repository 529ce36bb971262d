//! The blocks of a directory.

use blocks::NodeKind;

use crate::error::BLOCK_BYTES;

/// What is in front of a name: number of inode, length of the entry, length of the name, kind.
const HEAD_BYTES: usize = 8;

/// One name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) inode: u32,
    pub(crate) kind: NodeKind,
}

/// Encodes a directory: whole blocks, each filled up by its last entry.
pub(crate) fn encode<'a>(names: impl Iterator<Item = Name<'a>>) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    let mut last = 0;
    for name in names {
        let len = (HEAD_BYTES + name.name.len()).next_multiple_of(4);
        if bytes.len() % BLOCK_BYTES + len > BLOCK_BYTES {
            fill_block(&mut bytes, last);
        }
        last = bytes.len();
        bytes.extend(name.inode.to_le_bytes());
        bytes.extend(short(len).to_le_bytes());
        // A tree's names have 255 bytes at most.
        bytes.push(u8::try_from(name.name.len()).unwrap_or(u8::MAX));
        bytes.push(number_of(name.kind));
        bytes.extend_from_slice(name.name);
        bytes.resize(last + len, 0);
    }
    fill_block(&mut bytes, last);
    bytes
}

/// Encodes the blocks of the directory that programs which repair put lost files into.
pub(crate) fn encode_lost_and_found(own: u32, root: u32) -> Vec<u8> {
    encode(around(own, root).into_iter())
}

/// Returns the two names that each directory has.
pub(crate) fn around(own: u32, above: u32) -> [Name<'static>; 2] {
    let name = |name, inode| Name {
        name,
        inode,
        kind: NodeKind::Dir,
    };
    [name(b".", own), name(b"..", above)]
}

/// Extends the last entry to the end of its block.
fn fill_block(bytes: &mut Vec<u8>, last: usize) {
    let end = bytes.len().next_multiple_of(BLOCK_BYTES);
    bytes.resize(end, 0);
    bytes[last + 4..last + 6].copy_from_slice(&short(end - last).to_le_bytes());
}

/// A length within a block of 4096 bytes.
fn short(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

const fn number_of(kind: NodeKind) -> u8 {
    match kind {
        NodeKind::File => 1,
        NodeKind::Dir => 2,
        NodeKind::CharDevice => 3,
        NodeKind::BlockDevice => 4,
        NodeKind::Fifo => 5,
        NodeKind::Socket => 6,
        NodeKind::Symlink => 7,
    }
}
