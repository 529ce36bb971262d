//! A tree that is being made: what has names in it may still change.

use std::collections::BTreeMap;

use blocks::{
    Attr, DirEntry, FileId, Inode, NodeData, NodeKind, Span, Timestamp, Tree, TreeError, TreeParts,
    Xattr,
};

/// A place in a draft.
pub(super) type NodeId = usize;

/// The top of every draft.
pub(super) const TOP: NodeId = 0;

/// What a directory seems to take; tars do not say it.
const DIR_BYTES: u64 = 4096;

const UNNUMBERED: u32 = u32::MAX;

/// Files of a tree, with what their contents became.
#[derive(Debug)]
pub(super) struct Draft<C> {
    nodes: Vec<Node<C>>,
}

/// One file, however many names it has.
#[derive(Debug)]
pub(super) struct Node<C> {
    /// How many links there are to it, and its number, come last.
    pub(super) attr: Attr,
    /// Where a symbolic link leads.
    pub(super) target: Vec<u8>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What is in a directory.
    pub(super) names: BTreeMap<Vec<u8>, NodeId>,
    /// The content of a regular file.
    pub(super) content: Option<C>,
}

impl<C> Node<C> {
    pub(super) const fn new(attr: Attr) -> Self {
        Self {
            attr,
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            names: BTreeMap::new(),
            content: None,
        }
    }

    pub(super) const fn is_dir(&self) -> bool {
        matches!(self.attr.kind, NodeKind::Dir)
    }

    /// Returns whether it deletes lower layers' files of its name.
    pub(super) const fn is_whiteout(&self) -> bool {
        matches!(self.attr.kind, NodeKind::CharDevice) && self.attr.rdev == 0
    }
}

/// Returns the attributes of a file of root's, made in 1970.
pub(super) const fn plain(kind: NodeKind, perm: u16) -> Attr {
    let time = Timestamp { secs: 0, nanos: 0 };
    let size = match kind {
        NodeKind::Dir => DIR_BYTES,
        _ => 0,
    };
    Attr {
        kind,
        perm,
        uid: 0,
        gid: 0,
        nlink: 1,
        rdev: 0,
        size,
        blocks: size.div_ceil(512),
        atime: time,
        mtime: time,
        ctime: time,
        source_inode: 0,
    }
}

impl<C> Draft<C> {
    /// Returns one with an empty directory.
    pub(super) fn new() -> Self {
        let top = Node::new(plain(NodeKind::Dir, 0o755));
        Self { nodes: vec![top] }
    }

    pub(super) fn node(&self, id: NodeId) -> &Node<C> {
        &self.nodes[id]
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> &mut Node<C> {
        &mut self.nodes[id]
    }

    /// Adds a file that has no name yet.
    pub(super) fn add(&mut self, node: Node<C>) -> NodeId {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Returns the tree, depth first and names in order, and the contents of its regular files in
    /// the order of the tree. Inodes without a name are left out.
    ///
    /// # Errors
    /// If it is larger than a tree can be, or names or attributes are invalid.
    pub(super) fn finish(mut self) -> Result<(Tree, Vec<C>), TreeError> {
        let (order, numbers) = self.numbered()?;
        let mut parts = TreeParts::default();
        let mut contents = Vec::new();
        for id in &order {
            let node = &mut self.nodes[*id];
            node.attr.source_inode = u64::from(numbers[*id]) + 1;
            let inode = append(&mut parts, node, &numbers)?;
            parts.inodes.push(inode);
            contents.extend(node.content.take());
        }
        Ok((Tree::new(parts)?, contents))
    }

    /// Gives each file that has a name its number, and counts its names.
    fn numbered(&mut self) -> Result<(Vec<NodeId>, Vec<u32>), TreeError> {
        let mut numbers = vec![UNNUMBERED; self.nodes.len()];
        let mut links = vec![0_u32; self.nodes.len()];
        let mut order = Vec::new();
        let mut next = vec![TOP];
        while let Some(id) = next.pop() {
            if numbers[id] != UNNUMBERED {
                continue; // another name of a file that has its number
            }
            numbers[id] = u32::try_from(order.len()).map_err(|_| TreeError::TooMany)?;
            order.push(id);
            for child in self.nodes[id].names.values().rev() {
                links[*child] = links[*child].saturating_add(1);
                if self.nodes[*child].is_dir() {
                    links[id] = links[id].saturating_add(1); // its `..`
                }
                next.push(*child);
            }
        }
        for id in &order {
            let node = &mut self.nodes[*id];
            // A directory's own `.`, and the top's name, which it has nowhere.
            let more = u32::from(node.is_dir()) + u32::from(*id == TOP);
            node.attr.nlink = links[*id].saturating_add(more);
        }
        Ok((order, numbers))
    }
}

/// Appends what belongs to an inode to the tables, and returns it.
fn append<C>(parts: &mut TreeParts, node: &Node<C>, numbers: &[u32]) -> Result<Inode, TreeError> {
    let data = match node.attr.kind {
        NodeKind::Dir => {
            let start = parts.entries.len();
            for (name, child) in &node.names {
                let name = bytes(parts, name)?;
                let file = FileId(numbers[*child]);
                parts.entries.push(DirEntry { name, file });
            }
            let entries = span(start, node.names.len())?;
            NodeData::Dir { entries }
        }
        NodeKind::Symlink => NodeData::Symlink {
            target: bytes(parts, &node.target)?,
        },
        _ => NodeData::None,
    };
    let start = parts.xattrs.len();
    for (name, value) in &node.xattrs {
        let (name, value) = (bytes(parts, name)?, bytes(parts, value)?);
        parts.xattrs.push(Xattr { name, value });
    }
    Ok(Inode {
        attr: node.attr,
        data,
        xattrs: span(start, node.xattrs.len())?,
    })
}

fn bytes(parts: &mut TreeParts, bytes: &[u8]) -> Result<Span, TreeError> {
    let start = parts.bytes.len();
    parts.bytes.extend_from_slice(bytes);
    span(start, bytes.len())
}

fn span(start: usize, len: usize) -> Result<Span, TreeError> {
    let narrow = |number: usize| u32::try_from(number).map_err(|_| TreeError::TooMany);
    Ok(Span {
        start: narrow(start)?,
        len: narrow(len)?,
    })
}
