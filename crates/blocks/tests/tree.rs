//! Trees from good tables, from tables with one fault, and from noise.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::ops::ControlFlow;

use blocks::testing::{Node, attr, tree};
use blocks::{
    FileId, Inode, LINKS_MAX, Lifetime, Namespace, NodeData, NodeKind, PATH_LIMIT, SourceErrorKind,
    Span, Tree, TreeError, TreeParts,
};
use proptest::prelude::*;

/// `/a` (file, also `/d/hard`), `/d` (directory), `/d/l` (link), `/d/sub` (directory), `/p` (pipe).
fn sample() -> TreeParts {
    let mut file = Node::file(10_000);
    file.xattrs = vec![
        (b"user.b".to_vec(), b"two".to_vec()),
        (b"user.a".to_vec(), Vec::new()),
    ];
    let nodes = [
        Node::dir(&[("p", 5), ("a", 1), ("d", 2)]),
        file,
        Node::dir(&[("l", 3), ("sub", 4), ("hard", 1)]),
        Node::symlink("../a"),
        Node::dir(&[]),
        Node::new(NodeKind::Fifo),
    ];
    tree(&nodes).unwrap().parts().clone()
}

fn names(tree: &Tree, dir: u32) -> Vec<&[u8]> {
    tree.entries(FileId(dir)).map(|(name, _)| name).collect()
}

#[test]
fn a_good_tree_answers_everything() {
    let tree = Tree::new(sample()).unwrap();
    assert_eq!(names(&tree, 0), [b"a".as_slice(), b"d", b"p"]);
    assert_eq!(names(&tree, 2), [b"hard".as_slice(), b"l", b"sub"]);
    assert_eq!(names(&tree, 1), Vec::<&[u8]>::new());
    assert_eq!(tree.resolve(b"/d//sub/"), Some(FileId(4)));
    assert_eq!(tree.resolve(b"d/hard"), tree.resolve(b"a"));
    assert_eq!(tree.resolve(b"a/nothing"), None);
    assert_eq!(tree.path(FileId::ROOT).unwrap(), b"");
    assert_eq!(tree.path(FileId(1)).unwrap(), b"a");
    assert_eq!(tree.path(FileId(4)).unwrap(), b"d/sub");
    assert_eq!(tree.path(FileId(6)), None);
    let paths = |file| tree.paths(FileId(file)).unwrap();
    assert_eq!(paths(0), [b""]);
    assert_eq!(paths(1), [b"a".as_slice(), b"d/hard"]);
    assert_eq!(paths(4), [b"d/sub"]);
    assert!(paths(6).is_empty());
    assert_eq!(tree.link_target(FileId(3)).unwrap(), b"../a");
    assert_eq!(tree.link_target(FileId(1)), None);
    let xattrs: Vec<_> = tree.xattrs(FileId(1)).collect();
    assert_eq!(
        xattrs,
        [(b"user.a".as_slice(), b"".as_slice()), (b"user.b", b"two")]
    );
    assert_eq!(tree.key(FileId(1)).unwrap().version.size, 10_000);
}

#[test]
fn a_file_with_too_many_names_has_no_list_of_them() {
    for (names, listed) in [(LINKS_MAX, true), (LINKS_MAX + 1, false)] {
        let names: Vec<_> = (0..names).map(|name| format!("{name:04}")).collect();
        let entries: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let tree = tree(&[Node::dir(&entries), Node::file(1)]).unwrap();
        let paths = tree.paths(FileId(1));
        assert_eq!(paths.is_some(), listed);
        assert!(paths.is_none_or(|paths| paths.len() == names.len()));
    }
}

#[test]
fn as_a_namespace_it_says_the_same() {
    let tree = Tree::new(sample()).unwrap();
    assert_eq!(tree.lifetime(), Lifetime::Forever);
    assert_eq!(tree.lookup(FileId(0), b"d").unwrap(), Some(FileId(2)));
    assert_eq!(tree.lookup(FileId(0), b"nothing").unwrap(), None);
    assert_eq!(tree.parent(FileId(4)).unwrap(), FileId(2));
    assert_eq!(tree.parent(FileId::ROOT).unwrap(), FileId::ROOT);
    assert_eq!(tree.target(FileId(3)).unwrap(), b"../a");
    assert_eq!(tree.xattr(FileId(1), b"user.b").unwrap().unwrap(), b"two");
    assert_eq!(tree.xattr(FileId(1), b"user.c").unwrap(), None);
    assert_eq!(tree.xattr_names(FileId(1)).unwrap(), b"user.a\0user.b\0");
    assert!(tree.has_xattrs());
    assert!(!tree.has_access_lists());
    for error in [
        tree.attr(FileId(6)).unwrap_err(),
        tree.target(FileId(1)).unwrap_err(),
        tree.xattr(FileId(u32::MAX), b"x").unwrap_err(),
    ] {
        assert_eq!(error.kind(), SourceErrorKind::NotFound);
    }
}

/// A listing that stops anywhere goes on from where it stopped.
#[test]
fn every_cursor_goes_on_behind_its_entry() {
    let tree = Tree::new(sample()).unwrap();
    for step in 1..=4 {
        let (mut seen, mut cursor) = (Vec::new(), 0);
        loop {
            let (from, mut left) = (cursor, step);
            tree.list(FileId(2), from, &mut |entry| {
                seen.push((entry.name.to_vec(), entry.file, entry.kind));
                cursor = entry.next;
                left -= 1;
                if left == 0 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
            .unwrap();
            if left == step {
                break;
            }
        }
        let want = [
            (b"hard".to_vec(), FileId(1), NodeKind::File),
            (b"l".to_vec(), FileId(3), NodeKind::Symlink),
            (b"sub".to_vec(), FileId(4), NodeKind::Dir),
        ];
        assert_eq!(seen, want, "{step} at a time");
    }
    let mut any = false;
    let mut visit = |_: blocks::EntryRef<'_>| {
        any = true;
        ControlFlow::Continue(())
    };
    tree.list(FileId(2), u64::MAX, &mut visit).unwrap();
    assert!(!any);
}

fn broken(fault: impl FnOnce(&mut TreeParts)) -> TreeError {
    let mut parts = sample();
    fault(&mut parts);
    Tree::new(parts).unwrap_err()
}

fn past_the_end(span: &mut Span) {
    span.start = u32::MAX;
    span.len = u32::MAX;
}

/// The entry with this name in the sample.
fn entry(parts: &TreeParts, name: &[u8]) -> usize {
    let bytes = |span: Span| &parts.bytes[span.start as usize..][..span.len as usize];
    parts
        .entries
        .iter()
        .position(|entry| bytes(entry.name) == name)
        .unwrap()
}

/// Gives an entry of the root another name.
fn rename(parts: &mut TreeParts, from: &[u8], to: &[u8]) {
    let at = entry(parts, from);
    parts.entries[at].name = Span {
        start: u32::try_from(parts.bytes.len()).unwrap(),
        len: u32::try_from(to.len()).unwrap(),
    };
    parts.bytes.extend_from_slice(to);
}

#[test]
fn there_is_a_root_and_it_is_a_directory() {
    assert_eq!(
        Tree::new(TreeParts::default()).unwrap_err(),
        TreeError::Root
    );
    assert_eq!(
        broken(|p| p.inodes[0].attr.kind = NodeKind::File),
        TreeError::Root
    );
}

#[test]
fn every_run_lies_in_its_table() {
    let bounds = TreeError::OutOfBounds;
    assert_eq!(broken(|p| past_the_end(&mut p.inodes[1].xattrs)), bounds(1));
    assert_eq!(broken(|p| p.inodes[1].xattrs.len += 1), bounds(1));
    assert_eq!(broken(|p| past_the_end(&mut p.xattrs[0].name)), bounds(1));
    assert_eq!(broken(|p| past_the_end(&mut p.xattrs[0].value)), bounds(1));
    assert_eq!(broken(|p| past_the_end(&mut p.entries[0].name)), bounds(0));
    let far = |p: &mut TreeParts| p.entries[0].file = FileId(6);
    assert_eq!(broken(far), bounds(0));
    let entries = Span { start: 5, len: 2 };
    assert_eq!(
        broken(|p| p.inodes[4].data = NodeData::Dir { entries }),
        bounds(4)
    );
    let target = Span {
        start: 0,
        len: u32::MAX,
    };
    assert_eq!(
        broken(|p| p.inodes[3].data = NodeData::Symlink { target }),
        bounds(3)
    );
}

#[test]
fn names_are_what_names_can_be() {
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'a'; 256]] {
        assert_eq!(
            broken(|p| rename(p, b"a", name)),
            TreeError::Name(0),
            "{name:?}"
        );
    }
    let mut longest = sample();
    rename(&mut longest, b"a", &[b'a'; 255]);
    Tree::new(longest).unwrap();
}

#[test]
fn targets_are_what_targets_can_be() {
    for target in [&b""[..], b"a\0b", &[b'a'; 4096]] {
        let fault = |p: &mut TreeParts| {
            let start = u32::try_from(p.bytes.len()).unwrap();
            let len = u32::try_from(target.len()).unwrap();
            p.bytes.extend_from_slice(target);
            p.inodes[3].data = NodeData::Symlink {
                target: Span { start, len },
            };
        };
        assert_eq!(broken(fault), TreeError::Name(3));
    }
}

#[test]
fn attributes_have_names() {
    assert_eq!(broken(|p| p.xattrs[0].name.len = 0), TreeError::Name(1));
    let nul = |p: &mut TreeParts| {
        let at = p.xattrs[0].name.start as usize;
        p.bytes[at + 2] = 0;
    };
    assert_eq!(broken(nul), TreeError::Name(1));
}

#[test]
fn names_and_attributes_ascend_strictly() {
    assert_eq!(broken(|p| rename(p, b"a", b"z")), TreeError::Order(0));
    assert_eq!(broken(|p| rename(p, b"a", b"d")), TreeError::Order(0));
    assert_eq!(broken(|p| p.xattrs.swap(0, 1)), TreeError::Order(1));
    assert_eq!(broken(|p| p.xattrs[1] = p.xattrs[0]), TreeError::Order(1));
}

#[test]
fn data_are_of_the_kind_of_the_attributes() {
    for file in 1..6_u32 {
        for kind in [NodeKind::Dir, NodeKind::Symlink, NodeKind::Socket] {
            let same = sample().inodes[file as usize].attr.kind == kind;
            let plain = !matches!(
                sample().inodes[file as usize].data,
                NodeData::Dir { .. } | NodeData::Symlink { .. }
            );
            if same || (plain && kind == NodeKind::Socket) {
                continue;
            }
            let fault = |p: &mut TreeParts| p.inodes[file as usize].attr.kind = kind;
            assert_eq!(broken(fault), TreeError::Kind(file), "{file} {kind:?}");
        }
    }
}

#[test]
fn every_directory_hangs_on_the_root_by_one_name() {
    let named = |p: &mut TreeParts, name: &[u8], file| {
        let at = entry(p, name);
        p.entries[at].file = FileId(file);
    };
    // Two names, the root as a child, nobody's child, and a ring.
    assert_eq!(broken(|p| named(p, b"hard", 4)), TreeError::Shape(4));
    assert_eq!(broken(|p| named(p, b"p", 0)), TreeError::Shape(0));
    assert_eq!(broken(|p| named(p, b"sub", 5)), TreeError::Shape(4));
    let ring = |p: &mut TreeParts| {
        named(p, b"sub", 2);
        named(p, b"d", 1);
    };
    assert_eq!(broken(ring), TreeError::Shape(2));
}

/// Or a small file could make a tree that takes for ever to check: n inodes with n names each.
#[test]
fn inodes_do_not_share_names_or_attributes() {
    let names = |p: &mut TreeParts| p.inodes[4].data = p.inodes[2].data;
    assert_eq!(broken(names), TreeError::Shared(4));
    let attributes = |p: &mut TreeParts| p.inodes[5].xattrs = p.inodes[1].xattrs;
    assert_eq!(broken(attributes), TreeError::Shared(5));
}

/// Or the bytes of one name could be the names of millions of files.
#[test]
fn names_targets_and_values_have_bytes_of_their_own() {
    let shared = |fault: fn(&mut TreeParts), inode| {
        assert_eq!(broken(fault), TreeError::Shared(inode));
    };
    // Sums would not tell: there is room for all of it.
    let roomy = |p: &mut TreeParts| p.bytes.extend_from_slice(&[b'x'; 64]);
    assert!(
        Tree::new({
            let mut parts = sample();
            roomy(&mut parts);
            parts
        })
        .is_ok()
    );
    shared(
        |p| {
            p.bytes.extend_from_slice(&[b'x'; 64]);
            let (a, hard) = (entry(p, b"a"), entry(p, b"hard"));
            p.entries[hard].name = p.entries[a].name;
        },
        2,
    );
    shared(
        |p| {
            let sub = entry(p, b"sub");
            let name = p.entries[sub].name;
            p.inodes[3].data = NodeData::Symlink {
                target: Span { len: 1, ..name },
            };
        },
        3,
    );
    shared(|p| p.xattrs[1].value = p.xattrs[1].name, 1);
    // What lies behind a run of entries is another's, if the two overlap by one.
    shared(
        |p| {
            p.inodes[4].data = NodeData::Dir {
                entries: Span { start: 5, len: 1 },
            };
        },
        4,
    );
}

/// A chain of directories, each with a name of `len` bytes.
fn chain(depth: u32, len: usize) -> Result<Tree, TreeError> {
    let name = "n".repeat(len);
    let dirs = (1..=depth).map(|below| Node::dir(&[(&name, below)]));
    let nodes: Vec<_> = dirs.chain([Node::dir(&[])]).collect();
    tree(&nodes)
}

#[test]
fn no_path_is_longer_than_the_limit() {
    // 256 names of 255 bytes with the slashes between them.
    let deepest = chain(256, 255).unwrap();
    assert_eq!(deepest.path(FileId(256)).unwrap().len(), PATH_LIMIT);
    assert_eq!(chain(257, 255).unwrap_err(), TreeError::Path(256));
    assert_eq!(chain(32_768, 1).unwrap().len(), 32_769);
    assert_eq!(chain(32_769, 1).unwrap_err(), TreeError::Path(32_768));
}

#[test]
fn a_file_that_nobody_names_is_no_fault() {
    let mut parts = sample();
    parts.inodes.push(Inode {
        attr: attr(NodeKind::File),
        data: NodeData::None,
        xattrs: Span::default(),
    });
    let tree = Tree::new(parts).unwrap();
    assert_eq!(tree.path(FileId(6)), None);
}

/// One change to the tables.
#[derive(Clone, Debug)]
enum Damage {
    Span { which: usize, start: u32, len: u32 },
    File { entry: usize, file: u32 },
    Kind { inode: usize, kind: usize },
    Byte { at: usize, byte: u8 },
    Swap { table: u8, one: usize, other: usize },
    Truncate { table: u8, len: usize },
    Repeat { table: u8, at: usize },
}

fn any_damage() -> impl Strategy<Value = Damage> {
    let at = || 0..12_usize;
    let number = || prop_oneof![4 => 0..12_u32, 1 => any::<u32>()];
    prop_oneof![
        (0..40_usize, number(), number()).prop_map(|(which, start, len)| Damage::Span {
            which,
            start,
            len
        }),
        (at(), number()).prop_map(|(entry, file)| Damage::File { entry, file }),
        (at(), 0..7_usize).prop_map(|(inode, kind)| Damage::Kind { inode, kind }),
        (0..60_usize, any::<u8>()).prop_map(|(at, byte)| Damage::Byte { at, byte }),
        (0..4_u8, at(), at()).prop_map(|(table, one, other)| Damage::Swap { table, one, other }),
        (0..4_u8, at()).prop_map(|(table, len)| Damage::Truncate { table, len }),
        (0..4_u8, at()).prop_map(|(table, at)| Damage::Repeat { table, at }),
    ]
}

fn swap<T>(table: &mut [T], one: usize, other: usize) {
    if !table.is_empty() {
        table.swap(one % table.len(), other % table.len());
    }
}

fn repeat<T: Clone>(table: &mut Vec<T>, at: usize) {
    if !table.is_empty() {
        table.push(table[at % table.len()].clone());
    }
}

fn spans(parts: &mut TreeParts) -> Vec<&mut Span> {
    let inodes = parts.inodes.iter_mut().flat_map(|inode| {
        let data = match &mut inode.data {
            NodeData::Dir { entries } => Some(entries),
            NodeData::Symlink { target } => Some(target),
            NodeData::None => None,
        };
        data.into_iter().chain([&mut inode.xattrs])
    });
    let entries = parts.entries.iter_mut().map(|entry| &mut entry.name);
    let xattrs = parts
        .xattrs
        .iter_mut()
        .flat_map(|x| [&mut x.name, &mut x.value]);
    inodes.chain(entries).chain(xattrs).collect()
}

fn apply(parts: &mut TreeParts, damage: &Damage) {
    const KINDS: [NodeKind; 7] = [
        NodeKind::File,
        NodeKind::Dir,
        NodeKind::Symlink,
        NodeKind::CharDevice,
        NodeKind::BlockDevice,
        NodeKind::Fifo,
        NodeKind::Socket,
    ];
    match *damage {
        Damage::Span { which, start, len } => {
            let mut spans = spans(parts);
            if !spans.is_empty() {
                let count = spans.len();
                *spans[which % count] = Span { start, len };
            }
        }
        Damage::File { entry, file } => {
            if let Some(entry) = parts.entries.get_mut(entry) {
                entry.file = FileId(file);
            }
        }
        Damage::Kind { inode, kind } => {
            if let Some(inode) = parts.inodes.get_mut(inode) {
                inode.attr.kind = KINDS[kind];
            }
        }
        Damage::Byte { at, byte } => {
            if let Some(old) = parts.bytes.get_mut(at) {
                *old = byte;
            }
        }
        Damage::Swap { table, one, other } => match table {
            0 => swap(&mut parts.inodes, one, other),
            1 => swap(&mut parts.entries, one, other),
            2 => swap(&mut parts.xattrs, one, other),
            _ => swap(&mut parts.bytes, one, other),
        },
        Damage::Truncate { table, len } => match table {
            0 => parts.inodes.truncate(len),
            1 => parts.entries.truncate(len),
            2 => parts.xattrs.truncate(len),
            _ => parts.bytes.truncate(len),
        },
        Damage::Repeat { table, at } => match table {
            0 => repeat(&mut parts.inodes, at),
            1 => repeat(&mut parts.entries, at),
            2 => repeat(&mut parts.xattrs, at),
            _ => repeat(&mut parts.bytes, at),
        },
    }
}

/// Asks for everything that a tree can be asked for.
fn use_it(tree: &Tree) {
    let mut reached = 0;
    for (file, inode) in tree.files() {
        let path = tree.path(file);
        // A path leads back to its file: no name is ambiguous, no directory its own ancestor.
        if let Some(path) = &path {
            assert_eq!(tree.resolve(path), Some(file));
            reached += 1;
        }
        assert!(path.is_some() || inode.attr.kind != NodeKind::Dir);
        let names = tree.entries(file).map(|(name, _)| name);
        assert!(names.is_sorted_by(|a, b| a < b));
        for (name, child) in tree.entries(file) {
            assert_eq!(tree.child(file, name), Some(child));
            if tree.inode(child).unwrap().attr.kind == NodeKind::Dir {
                assert_eq!(tree.parent(child).unwrap(), file);
            }
        }
        for (name, value) in tree.xattrs(file) {
            assert_eq!(tree.xattr(file, name).unwrap().as_deref(), Some(value));
        }
        assert_eq!(
            tree.link_target(file).is_some(),
            inode.attr.kind == NodeKind::Symlink
        );
        tree.list(file, 0, &mut |_| ControlFlow::Continue(()))
            .unwrap();
    }
    assert!(reached > 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn damaged_tables_are_refused_or_harmless(
        damages in prop::collection::vec(any_damage(), 1..6),
    ) {
        let mut parts = sample();
        for damage in &damages {
            apply(&mut parts, damage);
        }
        if let Ok(tree) = Tree::new(parts.clone()) {
            prop_assert_eq!(tree.parts(), &parts);
            use_it(&tree);
        }
    }
}

#[test]
fn the_sample_is_harmless() {
    use_it(&Tree::new(sample()).unwrap());
}
