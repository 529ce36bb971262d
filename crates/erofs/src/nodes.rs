//! Inodes: their places, and their bytes.

use blocks::{Attr, FileId, Inode, NodeKind, Tree};

use crate::error::{BLOCK_BYTES, ErofsError};
use crate::{dirs, xattrs};

/// Inodes have numbers by their place, in units of this.
pub(crate) const SLOT_BYTES: usize = 32;
/// The extended form, which has all 32 bits of owners and a time.
const INODE_BYTES: usize = 64;

/// Data in one run of blocks.
const LAYOUT_PLAIN: u16 = 0;
/// The same, but that the last part, which fills no block, is behind the inode.
const LAYOUT_INLINE: u16 = 2;

/// The place of an inode, and the part of its content that is metadata.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    /// Its first byte, from the beginning of the metadata.
    pub(crate) at: usize,
    /// Bytes of its content that are in blocks of the metadata.
    pub(crate) in_blocks: usize,
    /// Bytes of its content that are behind it.
    pub(crate) inline: usize,
    /// Bytes of its attributes.
    xattrs: usize,
}

impl Node {
    fn len(self) -> usize {
        INODE_BYTES + self.xattrs + self.inline
    }

    pub(crate) const fn number(self) -> u64 {
        // A `usize` has at most 64 bits.
        (self.at / SLOT_BYTES) as u64
    }
}

/// Returns the place of each inode, and the byte behind all of them.
pub(crate) fn lay_out(tree: &Tree) -> Result<(Vec<Node>, usize), ErofsError> {
    let above = above(tree);
    let mut nodes = Vec::with_capacity(tree.len());
    // Nothing has the number zero: programs take it for a name that was removed.
    let mut at = 2 * SLOT_BYTES;
    for (file, inode) in tree.files() {
        let content = match inode.attr.kind {
            NodeKind::Dir => dirs::size(tree, file, above[file.index()]),
            NodeKind::Symlink => tree.link_target(file).unwrap_or_default().len(),
            _ => 0,
        };
        let xattrs = xattrs::encode(tree.xattrs(file))?.len();
        let tail = content % BLOCK_BYTES;
        let fits = INODE_BYTES + xattrs + tail <= BLOCK_BYTES;
        let inline = if fits { tail } else { 0 };
        let node = Node {
            at,
            in_blocks: content - inline,
            inline,
            xattrs,
        };
        // Neither an inode nor what is inline may lie in two blocks.
        let left = BLOCK_BYTES - at % BLOCK_BYTES;
        let together = match node.inline {
            0 => INODE_BYTES,
            _ => node.len(),
        };
        if together > left {
            at += left;
        }
        nodes.push(Node { at, ..node });
        at = (at + node.len()).next_multiple_of(SLOT_BYTES);
    }
    Ok((nodes, at))
}

/// Returns the directory above each directory; the root's is itself.
pub(crate) fn above(tree: &Tree) -> Vec<FileId> {
    let mut above = vec![FileId::ROOT; tree.len()];
    for (dir, inode) in tree.files() {
        if inode.attr.kind == NodeKind::Dir {
            for (_, file) in tree.entries(dir) {
                above[file.index()] = dir;
            }
        }
    }
    above
}

/// Encodes an inode and its attributes, whose blocks of content begin at `block`.
pub(crate) fn encode(
    tree: &Tree,
    file: FileId,
    inode: &Inode,
    node: Node,
    block: u32,
) -> Result<Vec<u8>, ErofsError> {
    let attributes = xattrs::encode(tree.xattrs(file))?;
    let Attr {
        kind,
        perm,
        uid,
        gid,
        nlink,
        rdev,
        size,
        mtime,
        ..
    } = inode.attr;
    let layout = match node.inline {
        0 => LAYOUT_PLAIN,
        _ => LAYOUT_INLINE,
    };
    let (size, place) = match kind {
        NodeKind::File => (size, block),
        NodeKind::Dir | NodeKind::Symlink => ((node.in_blocks + node.inline) as u64, block),
        NodeKind::CharDevice | NodeKind::BlockDevice => (0, rdev),
        NodeKind::Fifo | NodeKind::Socket => (0, 0),
    };
    let mut bytes = Vec::with_capacity(node.len());
    bytes.extend((1 | layout << 1).to_le_bytes());
    bytes.extend(xattrs::units(&attributes).unwrap_or(0).to_le_bytes());
    bytes.extend((kind.mode() | perm).to_le_bytes());
    bytes.extend([0; 2]);
    bytes.extend(size.to_le_bytes());
    bytes.extend(place.to_le_bytes());
    bytes.extend((file.0 + 1).to_le_bytes());
    bytes.extend(uid.to_le_bytes());
    bytes.extend(gid.to_le_bytes());
    bytes.extend(mtime.secs.to_le_bytes());
    bytes.extend(mtime.nanos.to_le_bytes());
    bytes.extend(nlink.to_le_bytes());
    bytes.resize(INODE_BYTES, 0);
    bytes.extend(attributes);
    Ok(bytes)
}
