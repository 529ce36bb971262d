//! The model: a tree of plain maps and byte strings.

use std::collections::BTreeMap;

use blocks::testing::{Node, attr};
use blocks::{Attr, NodeKind, Version};
use proptest::prelude::*;
use proptest::sample::Index;

/// A file to add to a tree that has some already.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// Which directory it goes into.
    dir: Index,
    name: Vec<u8>,
    what: What,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    perm: u16,
}

#[derive(Clone, Debug)]
enum What {
    Dir,
    File(Content),
    Link(Vec<u8>),
    Fifo,
    /// One more name for a file that is there already.
    HardLink(Index),
}

/// The content of a file, in short: `len` bytes that depend on `seed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) len: usize,
    pub(crate) seed: u8,
}

impl Content {
    pub(crate) fn bytes(self) -> Vec<u8> {
        (0..self.len)
            .map(|at| u8::try_from((at / 7 + at / 4096 * 3) % 251).unwrap() ^ self.seed)
            .collect()
    }
}

pub(crate) fn any_content() -> impl Strategy<Value = Content> {
    let len = prop_oneof![Just(0), Just(4096), 1..20_000_usize];
    (len, any::<u8>()).prop_map(|(len, seed)| Content { len, seed })
}

/// Names of all sorts, often the same ones, so that look-ups find something.
pub(crate) fn any_name() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("not in names", |byte| !matches!(byte, 0 | b'/'));
    let odd = prop::collection::vec(byte, 1..=255)
        .prop_filter("not for us to name", |name| name != b"." && name != b"..");
    prop_oneof![
        3 => prop::sample::select(vec![b"a".to_vec(), b"b".to_vec(), b"lib.so".to_vec()]),
        1 => odd,
    ]
}

pub(crate) fn any_spec() -> impl Strategy<Value = Spec> {
    let what = prop_oneof![
        2 => Just(What::Dir),
        4 => any_content().prop_map(What::File),
        1 => prop::collection::vec(1..=255_u8, 1..300).prop_map(What::Link),
        1 => Just(What::Fifo),
        1 => any::<Index>().prop_map(What::HardLink),
    ];
    let xattr = (any_name(), prop::collection::vec(any::<u8>(), 0..50));
    let xattrs = prop::collection::btree_map(xattr.0, xattr.1, 0..3);
    (any::<Index>(), any_name(), what, xattrs, 0..0o10000_u16).prop_map(
        |(dir, name, what, xattrs, perm)| Spec {
            dir,
            name,
            what,
            xattrs,
            perm,
        },
    )
}

/// One file of the model.
#[derive(Clone, Debug)]
pub(crate) struct File {
    /// Attributes as they were when the tree was scanned.
    pub(crate) attr: Attr,
    pub(crate) names: BTreeMap<Vec<u8>, usize>,
    pub(crate) parent: usize,
    pub(crate) target: Vec<u8>,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What it held when the tree was scanned.
    pub(crate) scanned: Content,
    /// What it holds now, and in which version, if it changed.
    pub(crate) changed: Option<(Content, Version)>,
}

/// The files, the root first.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) files: Vec<File>,
}

impl Model {
    pub(crate) fn new(specs: &[Spec]) -> Self {
        let mut model = Self {
            files: vec![File::new(NodeKind::Dir, 0)],
        };
        for spec in specs {
            model.add(spec);
        }
        model
    }

    pub(crate) fn of_kind(&self, kind: NodeKind) -> Vec<usize> {
        let kinds = self.files.iter().map(|file| file.attr.kind);
        let of_kind = kinds.enumerate().filter(|(_, found)| *found == kind);
        of_kind.map(|(index, _)| index).collect()
    }

    /// The same tree as the crates under test have it.
    pub(crate) fn nodes(&self) -> Vec<Node> {
        let node = |file: &File| Node {
            attr: file.attr,
            names: file
                .names
                .iter()
                .map(|(name, file)| (name.clone(), u32::try_from(*file).unwrap()))
                .collect(),
            target: file.target.clone(),
            xattrs: file.xattrs.clone().into_iter().collect(),
        };
        self.files.iter().map(node).collect()
    }

    fn add(&mut self, spec: &Spec) {
        let dirs = self.of_kind(NodeKind::Dir);
        let dir = *spec.dir.get(&dirs);
        if self.files[dir].names.contains_key(&spec.name) {
            return;
        }
        let index = self.files.len();
        let mut file = match &spec.what {
            What::HardLink(which) => {
                let files = self.of_kind(NodeKind::File);
                if !files.is_empty() {
                    let linked = *which.get(&files);
                    self.files[dir].names.insert(spec.name.clone(), linked);
                }
                return;
            }
            What::Dir => File::new(NodeKind::Dir, index),
            What::Fifo => File::new(NodeKind::Fifo, index),
            What::Link(target) => {
                let mut file = File::new(NodeKind::Symlink, index);
                file.target.clone_from(target);
                file
            }
            What::File(content) => {
                let mut file = File::new(NodeKind::File, index);
                file.attr.size = content.len as u64;
                file.scanned = *content;
                file
            }
        };
        file.parent = dir;
        file.attr.perm = spec.perm;
        file.xattrs.clone_from(&spec.xattrs);
        self.files[dir].names.insert(spec.name.clone(), index);
        self.files.push(file);
    }
}

impl File {
    fn new(kind: NodeKind, index: usize) -> Self {
        let mut attr = attr(kind);
        attr.source_inode = 5000 + index as u64;
        Self {
            attr,
            names: BTreeMap::new(),
            parent: 0,
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            scanned: Content { len: 0, seed: 0 },
            changed: None,
        }
    }
}
