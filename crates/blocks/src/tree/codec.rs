//! A tree as bytes: docs/bootimg-format.md, section 4. Boot images have it as a section, and so
//! have the indexes by which a SmartNIC's cache goes.

use super::narrow;
use crate::{
    Attr, Broken, DirEntry, FileId, Inode, Input, NodeData, NodeKind, Span, Timestamp, Tree,
    TreeError, TreeParts, Xattr,
};

const WHAT: &str = "tree section";
const INODE_BYTES: usize = 96;
const ENTRY_BYTES: usize = 12;
const XATTR_BYTES: usize = 16;
const NANOS_END: u32 = 1_000_000_000;

/// Why bytes are no tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeTreeError {
    /// They break a rule of the format.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The tables in them are no tree.
    #[error("the tree is not well formed")]
    Tree(#[from] TreeError),
}

impl Tree {
    /// Returns the tree as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Decodes a tree that [`encode`](Self::encode) encoded.
    ///
    /// # Errors
    /// If the bytes are invalid. Hostile bytes cost time and memory in proportion to their number.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeTreeError> {
        Ok(Self::new(parse(bytes)?)?)
    }
}

fn encode(tree: &Tree) -> Vec<u8> {
    let parts = tree.parts();
    let len = 16
        + parts.inodes.len() * INODE_BYTES
        + parts.entries.len() * ENTRY_BYTES
        + parts.xattrs.len() * XATTR_BYTES
        + parts.bytes.len();
    let mut out = Vec::with_capacity(len);
    for count in [
        parts.inodes.len(),
        parts.entries.len(),
        parts.xattrs.len(),
        parts.bytes.len(),
    ] {
        out.extend_from_slice(&narrow(count).to_le_bytes());
    }
    for inode in &parts.inodes {
        put_inode(&mut out, inode);
    }
    for entry in &parts.entries {
        put_span(&mut out, entry.name);
        out.extend_from_slice(&entry.file.0.to_le_bytes());
    }
    for xattr in &parts.xattrs {
        put_span(&mut out, xattr.name);
        put_span(&mut out, xattr.value);
    }
    out.extend_from_slice(&parts.bytes);
    out
}

fn parse(bytes: &[u8]) -> Result<TreeParts, Broken> {
    let mut input = Input::new(WHAT, bytes);
    let inodes = input.count()?;
    let entries = input.count()?;
    let xattrs = input.count()?;
    let names = input.count()?;
    let inodes = input.records::<INODE_BYTES>(inodes)?;
    let entries = input.records::<ENTRY_BYTES>(entries)?;
    let xattrs = input.records::<XATTR_BYTES>(xattrs)?;
    let names = input.take(names)?;
    input.end()?;
    Ok(TreeParts {
        inodes: each(inodes, take_inode)?,
        entries: each(entries, |input| {
            Ok(DirEntry {
                name: take_span(input)?,
                file: FileId(input.u32()?),
            })
        })?,
        xattrs: each(xattrs, |input| {
            Ok(Xattr {
                name: take_span(input)?,
                value: take_span(input)?,
            })
        })?,
        bytes: names.to_vec(),
    })
}

fn each<T, const N: usize>(
    records: &[[u8; N]],
    take: impl Fn(&mut Input<'_>) -> Result<T, Broken>,
) -> Result<Vec<T>, Broken> {
    records
        .iter()
        .map(|record| take(&mut Input::new(WHAT, record)))
        .collect()
}

fn put_inode(out: &mut Vec<u8>, inode: &Inode) {
    let attr = &inode.attr;
    out.extend_from_slice(&[kind_number(attr.kind), 0]);
    out.extend_from_slice(&attr.perm.to_le_bytes());
    for number in [attr.uid, attr.gid, attr.nlink, attr.rdev] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&attr.size.to_le_bytes());
    out.extend_from_slice(&attr.blocks.to_le_bytes());
    for time in [attr.atime, attr.mtime, attr.ctime] {
        out.extend_from_slice(&time.secs.to_le_bytes());
        out.extend_from_slice(&time.nanos.to_le_bytes());
    }
    out.extend_from_slice(&attr.source_inode.to_le_bytes());
    put_span(
        out,
        match inode.data {
            NodeData::None => Span::default(),
            NodeData::Dir { entries } => entries,
            NodeData::Symlink { target } => target,
        },
    );
    put_span(out, inode.xattrs);
}

fn take_inode(input: &mut Input<'_>) -> Result<Inode, Broken> {
    let kind = match input.u8()? {
        1 => NodeKind::File,
        2 => NodeKind::Dir,
        3 => NodeKind::Symlink,
        4 => NodeKind::CharDevice,
        5 => NodeKind::BlockDevice,
        6 => NodeKind::Fifo,
        7 => NodeKind::Socket,
        _ => return Err(input.broken("there is no such kind of file")),
    };
    if input.u8()? != 0 {
        return Err(input.broken("a reserved field is in use"));
    }
    let attr = Attr {
        kind,
        perm: input.u16()?,
        uid: input.u32()?,
        gid: input.u32()?,
        nlink: input.u32()?,
        rdev: input.u32()?,
        size: input.u64()?,
        blocks: input.u64()?,
        atime: take_time(input)?,
        mtime: take_time(input)?,
        ctime: take_time(input)?,
        source_inode: input.u64()?,
    };
    if attr.perm > 0o7777 {
        return Err(input.broken("permissions have more than 12 bits"));
    }
    let span = take_span(input)?;
    let data = match kind {
        NodeKind::Dir => NodeData::Dir { entries: span },
        NodeKind::Symlink => NodeData::Symlink { target: span },
        _ if span == Span::default() => NodeData::None,
        _ => return Err(input.broken("a reserved field is in use")),
    };
    Ok(Inode {
        attr,
        data,
        xattrs: take_span(input)?,
    })
}

const fn kind_number(kind: NodeKind) -> u8 {
    match kind {
        NodeKind::File => 1,
        NodeKind::Dir => 2,
        NodeKind::Symlink => 3,
        NodeKind::CharDevice => 4,
        NodeKind::BlockDevice => 5,
        NodeKind::Fifo => 6,
        NodeKind::Socket => 7,
    }
}

fn take_time(input: &mut Input<'_>) -> Result<Timestamp, Broken> {
    let time = Timestamp {
        secs: input.i64()?,
        nanos: input.u32()?,
    };
    if time.nanos >= NANOS_END {
        return Err(input.broken("a second has more than 10^9 nanoseconds"));
    }
    Ok(time)
}

fn put_span(out: &mut Vec<u8>, span: Span) {
    out.extend_from_slice(&span.start.to_le_bytes());
    out.extend_from_slice(&span.len.to_le_bytes());
}

fn take_span(input: &mut Input<'_>) -> Result<Span, Broken> {
    Ok(Span {
        start: input.u32()?,
        len: input.u32()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Node, tree};
    use proptest::prelude::*;

    fn sample() -> Tree {
        let mut file = Node::file(5000);
        file.xattrs = vec![(b"user.a".to_vec(), b"1".to_vec())];
        let nodes = [
            Node::dir(&[("etc", 1), ("link", 3), ("two", 2)]),
            Node::dir(&[("one", 2), ("pipe", 4)]),
            file,
            Node::symlink("etc/one"),
            Node::new(NodeKind::Fifo),
        ];
        tree(&nodes).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let tree = sample();
        assert_eq!(Tree::decode(&tree.encode()).unwrap(), tree);
    }

    #[test]
    fn every_byte_counts() {
        let tree = sample();
        let bytes = tree.encode();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x40;
            // Either it breaks a rule, or it is another tree.
            assert!(
                Tree::decode(&changed).is_err() || Tree::decode(&changed).unwrap() != tree,
                "byte {at}"
            );
            assert!(Tree::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    proptest! {
        #[test]
        fn hostile_tables_are_refused_or_read(
            changes in prop::collection::vec((0usize..2000, any::<u8>()), 1..8),
        ) {
            let mut bytes = sample().encode();
            for (at, byte) in changes {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            if let Ok(tree) = Tree::decode(&bytes) {
                prop_assert_eq!(tree.encode(), bytes);
            }
        }
    }
}
