//! The model: a tree of plain maps and byte strings.

use std::collections::BTreeMap;

use blocks::testing::{Node, attr};
use blocks::{ACCESS_LIST, Attr, NodeKind};
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

/// What a change does to the rights on a file.
#[derive(Clone, Debug)]
pub(crate) enum Rights {
    /// Nothing.
    Same,
    /// These bits of the mode are set.
    More(u16),
    /// These bits of the mode are cleared.
    Less(u16),
    Owner(u32),
    Group(u32),
    AccessList(Vec<u8>),
    Xattr(Vec<u8>, Vec<u8>),
    /// They are as they were at the scan.
    Back,
    /// The file is one of another kind.
    Kind(NodeKind),
}

pub(crate) fn any_rights() -> impl Strategy<Value = Rights> {
    let value = || prop::collection::vec(any::<u8>(), 0..9);
    prop_oneof![
        6 => Just(Rights::Same),
        2 => (0..0o1000_u16).prop_map(Rights::More),
        1 => (0..0o10000_u16).prop_map(Rights::More),
        1 => (0..0o10000_u16).prop_map(Rights::Less),
        1 => (0..3_u32).prop_map(Rights::Owner),
        1 => (0..3_u32).prop_map(Rights::Group),
        1 => value().prop_map(Rights::AccessList),
        1 => (any_name(), value()).prop_map(|(name, value)| Rights::Xattr(name, value)),
        2 => Just(Rights::Back),
        1 => prop::sample::select(vec![NodeKind::Dir, NodeKind::Symlink, NodeKind::BlockDevice])
            .prop_map(Rights::Kind),
    ]
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

/// A file as it is at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct State {
    pub(crate) attr: Attr,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) content: Content,
}

impl State {
    pub(crate) fn change_rights(&mut self, rights: &Rights, scanned: &Self) {
        let attr = &mut self.attr;
        match rights {
            Rights::Same => (),
            Rights::More(bits) => attr.perm |= bits,
            Rights::Less(bits) => attr.perm &= !bits,
            Rights::Owner(uid) => attr.uid = *uid,
            Rights::Group(gid) => attr.gid = *gid,
            Rights::AccessList(list) => {
                self.xattrs.insert(ACCESS_LIST.to_vec(), list.clone());
            }
            Rights::Xattr(name, value) => {
                self.xattrs.insert(name.clone(), value.clone());
            }
            Rights::Back => {
                let Attr { perm, uid, gid, .. } = scanned.attr;
                (attr.perm, attr.uid, attr.gid) = (perm, uid, gid);
                self.xattrs.clone_from(&scanned.xattrs);
            }
            Rights::Kind(kind) => attr.kind = *kind,
        }
    }

    /// Whether a user of the kind (0 the owner, 1 of the group, 2 any other) may read, write or run
    /// it; in that order.
    fn may(&self, user: u32) -> [bool; 3] {
        let bits = self.attr.perm >> ((2 - user) * 3);
        [4, 2, 1].map(|bit| bits & bit != 0)
    }

    /// Whether each user may do with `later` what that user may do with this.
    fn gives_no_more_than(&self, later: &Self, what: impl Fn([bool; 3]) -> Vec<bool>) -> bool {
        let same_people = self.attr.uid == later.attr.uid && self.attr.gid == later.attr.gid;
        same_people
            && (0..3).all(|user| {
                let (had, has) = (what(self.may(user)), what(later.may(user)));
                had.into_iter().zip(has).all(|(had, has)| !had || has)
            })
    }

    /// Whether content of `later` may be given to whoever has this open.
    pub(crate) fn is_followed_by(&self, later: &Self) -> bool {
        later.attr.kind == NodeKind::File
            && self.gives_no_more_than(later, |may| may.to_vec())
            && self.attr.perm >> 9 == later.attr.perm >> 9
            && self.xattrs == later.xattrs
    }

    /// Whether all who may pass this directory may pass `later`.
    pub(crate) fn is_passed_like(&self, later: &Self) -> bool {
        let list = |state: &Self| state.xattrs.get(ACCESS_LIST).cloned();
        later.attr.kind == NodeKind::Dir
            && self.gives_no_more_than(later, |[_, _, pass]| vec![pass])
            && list(self) == list(later)
    }
}

/// One file of the model.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) names: BTreeMap<Vec<u8>, usize>,
    pub(crate) parent: usize,
    pub(crate) target: Vec<u8>,
    /// As it was when the tree was scanned.
    pub(crate) scanned: State,
    /// As the source has it.
    pub(crate) now: State,
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
        let kinds = self.files.iter().map(|file| file.scanned.attr.kind);
        let of_kind = kinds.enumerate().filter(|(_, found)| *found == kind);
        of_kind.map(|(index, _)| index).collect()
    }

    /// The same tree as the crates under test have it.
    pub(crate) fn nodes(&self) -> Vec<Node> {
        let node = |file: &File| Node {
            attr: file.scanned.attr,
            names: file
                .names
                .iter()
                .map(|(name, file)| (name.clone(), u32::try_from(*file).unwrap()))
                .collect(),
            target: file.target.clone(),
            xattrs: file.scanned.xattrs.clone().into_iter().collect(),
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
                file.scanned.attr.size = content.len as u64;
                file.scanned.content = *content;
                file
            }
        };
        file.parent = dir;
        file.scanned.attr.perm = spec.perm;
        file.scanned.xattrs.clone_from(&spec.xattrs);
        file.now = file.scanned.clone();
        self.files[dir].names.insert(spec.name.clone(), index);
        self.files.push(file);
    }
}

impl File {
    fn new(kind: NodeKind, index: usize) -> Self {
        let mut attr = attr(kind);
        attr.source_inode = 5000 + index as u64;
        let scanned = State {
            attr,
            xattrs: BTreeMap::new(),
            content: Content { len: 0, seed: 0 },
        };
        Self {
            names: BTreeMap::new(),
            parent: 0,
            target: Vec::new(),
            now: scanned.clone(),
            scanned,
        }
    }
}
