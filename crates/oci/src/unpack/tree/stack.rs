//! Trees of layers on each other, as overlayfs shows them.

use std::collections::{BTreeMap, HashMap};

use blocks::{FileId, NodeKind, Tree, TreeError};

use super::super::write::OPAQUE_XATTR;
use super::draft::{Draft, Node, NodeId, TOP};

/// Where a regular file of a stack comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Which of the trees, the lowest being 0.
    pub layer: usize,
    /// The file in that tree.
    pub file: FileId,
}

/// Merges trees, the lowest first, and returns the visible tree, and the origin of
/// each of its regular files, in the order of the tree.
///
/// A name of a higher tree hides that of lower ones, a whiteout (a character device 0/0) everything
/// below it, and an opaque directory (`trusted.overlay.opaque`) those below it; other
/// directories are merged, with the attributes of the highest.
///
/// # Errors
/// If it is larger than a tree can be.
pub fn stack(trees: &[&Tree]) -> Result<(Tree, Vec<Origin>), TreeError> {
    let mut draft = Draft::new();
    // Files that have their place, by where they come from: others are more names of them.
    let mut placed: HashMap<Origin, NodeId> = HashMap::new();
    let roots = (0..trees.len()).rev().map(|layer| Origin {
        layer,
        file: FileId::ROOT,
    });
    let roots = visible_dirs(trees, roots);
    let top = roots.first().and_then(|from| node_of(trees, *from));
    if let Some(top) = top {
        *draft.node_mut(TOP) = top;
    }
    let mut next = vec![(TOP, roots)];
    while let Some((dir, sources)) = next.pop() {
        for (name, found) in names_in(trees, &sources) {
            let Some(first) = found.first().copied() else {
                continue;
            };
            if let Some(id) = placed.get(&first) {
                draft.node_mut(dir).names.insert(name.to_vec(), *id);
                continue;
            }
            let Some(node) = node_of(trees, first) else {
                continue;
            };
            if node.is_whiteout() {
                continue;
            }
            let is_dir = node.is_dir();
            let id = draft.add(node);
            draft.node_mut(dir).names.insert(name.to_vec(), id);
            if is_dir {
                next.push((id, visible_dirs(trees, found.into_iter())));
            } else {
                placed.insert(first, id);
            }
        }
    }
    draft.finish()
}

/// Returns what goes by each name in directories that show together, the highest first.
fn names_in<'a>(trees: &[&'a Tree], dirs: &[Origin]) -> BTreeMap<&'a [u8], Vec<Origin>> {
    let mut names: BTreeMap<&[u8], Vec<Origin>> = BTreeMap::new();
    for Origin { layer, file } in dirs {
        for (name, file) in trees[*layer].entries(*file) {
            let layer = *layer;
            names.entry(name).or_default().push(Origin { layer, file });
        }
    }
    names
}

/// Returns the directories that show together, out of files of one name, the highest first: until
/// one is opaque, or hides what is below it because it is none.
fn visible_dirs(trees: &[&Tree], files: impl Iterator<Item = Origin>) -> Vec<Origin> {
    let mut dirs = Vec::new();
    for from in files {
        let tree = trees[from.layer];
        let kind = tree.inode(from.file).map(|inode| inode.attr.kind);
        if kind != Some(NodeKind::Dir) {
            break;
        }
        dirs.push(from);
        let opaque = (OPAQUE_XATTR.to_bytes(), &b"y"[..]);
        if tree.xattrs(from.file).any(|xattr| xattr == opaque) {
            break;
        }
    }
    dirs
}

/// Returns a file without its names.
fn node_of(trees: &[&Tree], from: Origin) -> Option<Node<Origin>> {
    let tree = trees[from.layer];
    let mut node = Node::new(tree.inode(from.file)?.attr);
    let xattrs = tree.xattrs(from.file);
    // What it says to overlayfs was heeded.
    let xattrs = xattrs.filter(|(name, _)| *name != OPAQUE_XATTR.to_bytes());
    node.xattrs = xattrs
        .map(|(name, value)| (name.to_vec(), value.to_vec()))
        .collect();
    node.target = tree.link_target(from.file).unwrap_or_default().to_vec();
    node.content = (node.attr.kind == NodeKind::File).then_some(from);
    Some(node)
}
