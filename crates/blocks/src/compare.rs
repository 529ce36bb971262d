//! How two trees differ: a source then and now, or a source and a mount of it.

use std::collections::HashMap;
use std::fmt;

use crate::{Attr, FileId, NodeKind, Tree};

/// How alike two trees are expected to be. Access times are never compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Likeness {
    /// One source at two times: all attributes, inode numbers included.
    SameSource,
    /// A source and what a mount shows of it: all but inode numbers.
    Mirror,
    /// A source and a copy on another file system: not what the copy's file system decides, which
    /// is inode numbers, the time of the last change of attributes, space taken, and the sizes
    /// and link counts of directories.
    Copy,
}

/// The attribute in which a path differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Aspect {
    /// Only the second tree has it, with all below it.
    Added,
    /// Only the first tree has it, with all below it.
    Removed,
    /// It is another kind of file.
    Kind,
    /// Permission bits.
    Permissions,
    /// User or group.
    Owner,
    /// The number of hard links.
    LinkCount,
    /// Which other paths are the same file.
    HardLinks,
    /// The number of a device.
    Device,
    /// Length in bytes.
    Size,
    /// Space taken.
    Space,
    /// Time of the last change of the content.
    Mtime,
    /// Time of the last change of content or attributes.
    Ctime,
    /// Inode number.
    Inode,
    /// Where a symbolic link points.
    Target,
    /// Extended attributes.
    Xattrs,
}

impl fmt::Display for Aspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Kind => "kind of file",
            Self::Permissions => "permissions",
            Self::Owner => "owner",
            Self::LinkCount => "number of links",
            Self::HardLinks => "hard links",
            Self::Device => "device number",
            Self::Size => "size",
            Self::Space => "space taken",
            Self::Mtime => "time of change",
            Self::Ctime => "time of change of attributes",
            Self::Inode => "inode number",
            Self::Target => "link target",
            Self::Xattrs => "extended attributes",
        })
    }
}

/// A path at which two trees differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The path from the root, without a leading `/`.
    pub path: Vec<u8>,
    /// The attributes that differ; at least one, in ascending order.
    pub aspects: Vec<Aspect>,
}

/// Returns every path at which `new` differs from `old`, directories before what is in them.
#[must_use]
pub fn compare(old: &Tree, new: &Tree, likeness: Likeness) -> Vec<Difference> {
    let mut comparison = Comparison {
        old,
        new,
        likeness,
        partner: HashMap::new(),
        found: Vec::new(),
    };
    let mut waiting = vec![(FileId::ROOT, FileId::ROOT)];
    comparison.pair(&ComparedPath::Root, FileId::ROOT, FileId::ROOT);
    while let Some((old, new)) = waiting.pop() {
        comparison.dir(old, new, &mut waiting);
    }
    comparison.found
}

struct Comparison<'a> {
    old: &'a Tree,
    new: &'a Tree,
    likeness: Likeness,
    /// By file of one tree: the file of the other that it was first met with.
    partner: HashMap<(Side, FileId), FileId>,
    found: Vec<Difference>,
}

/// Where two files are compared. Its path is only made where they differ: those of a forged tree add
/// up to far more than its size.
enum ComparedPath<'a> {
    Root,
    /// A name in a directory of the old tree; that of the new tree has the same path.
    Name(FileId, &'a [u8]),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Side {
    Old,
    New,
}

impl Comparison<'_> {
    /// Compares the names in two directories, and queues the directories that both have.
    fn dir(&mut self, dir: FileId, new: FileId, waiting: &mut Vec<(FileId, FileId)>) {
        let (old_tree, new_tree) = (self.old, self.new);
        let mut ours = old_tree.entries(dir).peekable();
        let mut theirs = new_tree.entries(new).peekable();
        loop {
            let order = match (ours.peek(), theirs.peek()) {
                (None, None) => break,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some((ours, _)), Some((theirs, _))) => ours.cmp(theirs),
            };
            let removed = if order.is_le() { ours.next() } else { None };
            let added = if order.is_ge() { theirs.next() } else { None };
            match (removed, added) {
                (Some((name, old)), Some((_, new))) => {
                    if self.pair(&ComparedPath::Name(dir, name), old, new) == Some(NodeKind::Dir) {
                        waiting.push((old, new));
                    }
                }
                (Some((name, _)), None) => {
                    self.note(&ComparedPath::Name(dir, name), vec![Aspect::Removed]);
                }
                (None, Some((name, _))) => {
                    self.note(&ComparedPath::Name(dir, name), vec![Aspect::Added]);
                }
                (None, None) => (),
            }
        }
    }

    fn note(&mut self, place: &ComparedPath<'_>, aspects: Vec<Aspect>) {
        let path = match place {
            ComparedPath::Root => Vec::new(),
            ComparedPath::Name(dir, name) => join(&self.old.path(*dir).unwrap_or_default(), name),
        };
        self.found.push(Difference { path, aspects });
    }

    /// Compares two files; returns their kind if both are of the same.
    fn pair(&mut self, place: &ComparedPath<'_>, old: FileId, new: FileId) -> Option<NodeKind> {
        let (Some(ours), Some(theirs)) = (self.old.inode(old), self.new.inode(new)) else {
            return None;
        };
        let (ours, theirs) = (ours.attr, theirs.attr);
        if ours.kind != theirs.kind {
            self.note(place, vec![Aspect::Kind]);
            return None;
        }
        let mut aspects = self.attributes(&ours, &theirs);
        if self.old.link_target(old) != self.new.link_target(new) {
            aspects.push(Aspect::Target);
        }
        if !self.old.xattrs(old).eq(self.new.xattrs(new)) {
            aspects.push(Aspect::Xattrs);
        }
        let forth = *self.partner.entry((Side::Old, old)).or_insert(new);
        let back = *self.partner.entry((Side::New, new)).or_insert(old);
        if forth != new || back != old {
            aspects.push(Aspect::HardLinks);
        }
        if !aspects.is_empty() {
            aspects.sort_unstable();
            self.note(place, aspects);
        }
        Some(ours.kind)
    }

    fn attributes(&self, a: &Attr, b: &Attr) -> Vec<Aspect> {
        let copy = self.likeness == Likeness::Copy;
        let of_disk = copy && a.kind == NodeKind::Dir;
        let all = [
            (Aspect::Permissions, a.perm != b.perm),
            (Aspect::Owner, (a.uid, a.gid) != (b.uid, b.gid)),
            (Aspect::LinkCount, a.nlink != b.nlink && !of_disk),
            (Aspect::Device, a.rdev != b.rdev),
            (Aspect::Size, a.size != b.size && !of_disk),
            (Aspect::Space, a.blocks != b.blocks && !copy),
            (Aspect::Mtime, a.mtime != b.mtime),
            (Aspect::Ctime, a.ctime != b.ctime && !copy),
            (
                Aspect::Inode,
                a.source_inode != b.source_inode && self.likeness == Likeness::SameSource,
            ),
        ];
        let differs = all.into_iter().filter(|(_, differs)| *differs);
        differs.map(|(aspect, _)| aspect).collect()
    }
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() {
        name.to_vec()
    } else {
        [path, name].join(&b'/')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Node, tree};

    /// `/a` and `/b` (one file), `/d/l` (link), `/d/e` (directory).
    fn nodes() -> Vec<Node> {
        let mut file = Node::file(10);
        file.attr.nlink = 2;
        file.xattrs = vec![(b"user.a".to_vec(), b"x".to_vec())];
        vec![
            Node::dir(&[("a", 1), ("b", 1), ("d", 2)]),
            file,
            Node::dir(&[("e", 4), ("l", 3)]),
            Node::symlink("t"),
            Node::dir(&[]),
        ]
    }

    fn differences(likeness: Likeness, change: impl FnOnce(&mut Vec<Node>)) -> Vec<String> {
        let old = tree(&nodes()).unwrap();
        let mut changed = nodes();
        change(&mut changed);
        let found = compare(&old, &tree(&changed).unwrap(), likeness);
        let line = |difference: Difference| {
            let path = String::from_utf8(difference.path).unwrap();
            let aspects: Vec<_> = difference.aspects.iter().map(Aspect::to_string).collect();
            format!("{path}: {}", aspects.join(", "))
        };
        found.into_iter().map(line).collect()
    }

    #[test]
    fn a_tree_is_like_itself() {
        for likeness in [Likeness::SameSource, Likeness::Mirror, Likeness::Copy] {
            assert!(differences(likeness, |_| ()).is_empty());
        }
    }

    #[test]
    fn every_attribute_counts_where_it_should() {
        type Change = fn(&mut Attr);
        let changes: [(&str, Change, usize); 8] = [
            ("permissions", |a| a.perm ^= 1, 3),
            ("owner", |a| a.gid += 1, 3),
            ("owner", |a| a.uid += 1, 3),
            ("device number", |a| a.rdev += 1, 3),
            ("time of change", |a| a.mtime.nanos += 1, 3),
            ("time of change of attributes", |a| a.ctime.nanos += 1, 2),
            ("space taken", |a| a.blocks += 8, 2),
            ("inode number", |a| a.source_inode = 5, 1),
        ];
        for (what, change, strictness) in changes {
            let all = [Likeness::SameSource, Likeness::Mirror, Likeness::Copy];
            for (index, likeness) in all.into_iter().enumerate() {
                for (node, path) in [(1, "a"), (3, "d/l"), (4, "d/e")] {
                    let found = differences(likeness, |nodes| change(&mut nodes[node].attr));
                    let seen = found.contains(&format!("{path}: {what}"));
                    assert_eq!(seen, index < strictness, "{what} {likeness:?} {found:?}");
                }
            }
        }
    }

    #[test]
    fn sizes_of_directories_are_the_file_systems_business() {
        let change = |node: usize| {
            move |nodes: &mut Vec<Node>| {
                nodes[node].attr.size += 1;
                nodes[node].attr.nlink += 1;
            }
        };
        assert!(differences(Likeness::Copy, change(4)).is_empty());
        let want = ["d/e: number of links, size"];
        assert_eq!(differences(Likeness::Mirror, change(4)), want);
        let want = ["a: number of links, size", "b: number of links, size"];
        assert_eq!(differences(Likeness::Copy, change(1)), want);
    }

    #[test]
    fn names_targets_and_attributes() {
        let renamed = |nodes: &mut Vec<Node>| nodes[2].names[0].0 = b"z".to_vec();
        let want = ["d/e: removed", "d/z: added"];
        assert_eq!(differences(Likeness::Copy, renamed), want);
        let elsewhere = |nodes: &mut Vec<Node>| nodes[3].target = b"u".to_vec();
        assert_eq!(differences(Likeness::Copy, elsewhere), ["d/l: link target"]);
        let value = |nodes: &mut Vec<Node>| nodes[1].xattrs[0].1 = b"y".to_vec();
        let want = ["a: extended attributes", "b: extended attributes"];
        assert_eq!(differences(Likeness::Copy, value), want);
        let kind = |nodes: &mut Vec<Node>| nodes[4] = Node::file(0);
        assert_eq!(differences(Likeness::Copy, kind), ["d/e: kind of file"]);
    }

    #[test]
    fn two_equal_files_are_not_one_with_two_names() {
        let apart = |nodes: &mut Vec<Node>| {
            let mut twin = nodes[1].clone();
            twin.attr.source_inode = 1001;
            nodes.push(twin);
            nodes[0].names[1].1 = 5;
        };
        assert_eq!(differences(Likeness::SameSource, apart), ["b: hard links"]);
        let old = tree(&nodes()).unwrap();
        let mut changed = nodes();
        apart(&mut changed);
        let back = compare(&tree(&changed).unwrap(), &old, Likeness::Copy);
        assert_eq!(back[0].aspects, [Aspect::HardLinks]);
    }
}
