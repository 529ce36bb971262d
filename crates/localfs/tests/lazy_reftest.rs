//! Random directories, asked random questions in a random order: each answer of a [`LazyTree`] is
//! that of a scan.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod random_dir;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use blocks::{Attr, BlockSource, FileId, FileKey, Lifetime, Namespace, NodeKind, Tree};
use localfs::{DirSource, LazyTree, SourceRoot, scan};
use proptest::prelude::*;

use random_dir::{any_op, apply};

/// What to ask, of a file that is chosen among those of the scan.
#[derive(Clone, Copy, Debug)]
enum Question {
    Attr,
    Parent,
    /// A name that may be there or not.
    Lookup(u8),
    /// A listing that goes on after so many entries.
    List(usize),
    Target,
    Xattrs,
    Content,
}

fn any_question() -> impl Strategy<Value = (usize, Question)> {
    let question = prop_oneof![
        Just(Question::Attr),
        Just(Question::Parent),
        (0..8_u8).prop_map(Question::Lookup),
        (1..5_usize).prop_map(Question::List),
        Just(Question::Target),
        Just(Question::Xattrs),
        Just(Question::Content),
    ];
    (0..1000_usize, question)
}

struct Pair {
    tree: Arc<Tree>,
    lazy: Arc<LazyTree>,
    contents: [DirSource; 2],
    /// Which file of the scan each id stands for, as it turned out so far.
    same: HashMap<FileId, FileId>,
}

impl Pair {
    fn new(dir: &Path) -> Self {
        let root = Arc::new(SourceRoot::open(dir).unwrap());
        let tree = Arc::new(scan(&root, |_| ()).unwrap().tree);
        let lazy = Arc::new(LazyTree::new(Arc::clone(&root)).unwrap());
        assert_eq!(lazy.lifetime(), Lifetime::Forever);
        assert_eq!(lazy.known_files(), 1);
        let contents = [
            DirSource::new(Arc::clone(&root), Arc::clone(&tree) as _),
            DirSource::new(root, Arc::clone(&lazy) as _),
        ];
        let same = HashMap::from([(FileId::ROOT, FileId::ROOT)]);
        Self {
            tree,
            lazy,
            contents,
            same,
        }
    }

    /// Notes that two ids stand for one file; neither may ever stand for another.
    fn note(&mut self, lazy: FileId, scanned: FileId) {
        let was = self.same.insert(lazy, scanned);
        assert!(was.is_none_or(|was| was == scanned), "two files, one id");
        let ids = self.same.values().filter(|file| **file == scanned).count();
        assert_eq!(ids, 1, "one file, two ids");
        assert_eq!(self.lazy.in_tree(lazy, &self.tree), Some(scanned));
    }

    /// Looks a file up, name by name.
    fn find(&mut self, scanned: FileId) -> FileId {
        let path = self.tree.path(scanned).unwrap();
        let names = path.split(|byte| *byte == b'/').filter(|n| !n.is_empty());
        let (mut at, mut there) = (FileId::ROOT, FileId::ROOT);
        for name in names {
            at = self.lazy.lookup(at, name).unwrap().unwrap();
            there = self.tree.child(there, name).unwrap();
            self.note(at, there);
        }
        assert_eq!(there, scanned);
        at
    }

    fn ask(&mut self, scanned: FileId, question: Question) {
        let file = self.find(scanned);
        let tree = Arc::clone(&self.tree);
        let kind = tree.inode(scanned).unwrap().attr.kind;
        match question {
            Question::Attr => {
                let (attr, want) = (self.lazy.attr(file).unwrap(), tree.attr(scanned).unwrap());
                // The scan itself read the links, after it had looked at them.
                let atime = want.atime;
                assert_eq!(Attr { atime, ..attr }, want);
            }
            Question::Parent if kind == NodeKind::Dir => {
                let parent = self.lazy.parent(file).unwrap();
                assert_eq!(self.same[&parent], tree.parent(scanned).unwrap());
            }
            Question::Parent => (),
            Question::Lookup(name) => {
                let name = format!("{name}");
                let found = self.lazy.lookup(file, name.as_bytes()).unwrap();
                let child = tree.child(scanned, name.as_bytes());
                assert_eq!(found.is_some(), child.is_some());
                if let (Some(found), Some(child)) = (found, child) {
                    self.note(found, child);
                }
            }
            Question::List(step) => self.list(file, scanned, step),
            Question::Target => {
                let target = self.lazy.target(file);
                assert_eq!(target.ok(), tree.target(scanned).ok());
            }
            Question::Xattrs => self.xattrs(file, scanned),
            Question::Content if kind == NodeKind::File => self.content(file, scanned),
            Question::Content => (),
        }
    }

    fn list(&mut self, dir: FileId, scanned: FileId, step: usize) {
        let mut listed = BTreeMap::new();
        let mut cursor = 0;
        loop {
            let mut shown = 0;
            let from = cursor;
            let mut visit = |entry: blocks::EntryRef<'_>| {
                shown += 1;
                cursor = entry.next;
                let entry = (entry.name.to_vec(), (entry.file, entry.kind));
                assert!(listed.insert(entry.0, entry.1).is_none(), "shown twice");
                if shown == step {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            self.lazy.list(dir, from, &mut visit).unwrap();
            if shown == 0 {
                break;
            }
        }
        let tree = Arc::clone(&self.tree);
        let names: Vec<_> = tree.entries(scanned).collect();
        assert_eq!(listed.len(), names.len());
        for (name, child) in names {
            let (file, kind) = listed[name];
            assert_eq!(kind, tree.inode(child).unwrap().attr.kind);
            self.note(file, child);
        }
    }

    fn xattrs(&self, file: FileId, scanned: FileId) {
        let split = |names: Vec<u8>| -> BTreeSet<Vec<u8>> {
            names.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
        };
        let names = split(self.lazy.xattr_names(file).unwrap());
        assert_eq!(names, split(self.tree.xattr_names(scanned).unwrap()));
        for name in names.iter().map(Vec::as_slice).chain([&b"user.none"[..]]) {
            assert_eq!(
                self.lazy.xattr(file, name).unwrap(),
                self.tree.xattr(scanned, name).unwrap()
            );
        }
    }

    fn content(&self, file: FileId, scanned: FileId) {
        let read = |source: &DirSource, file| {
            let version = self.tree.key(scanned).unwrap().version;
            let mut buf = vec![0; usize::try_from(version.size).unwrap() + 10];
            let len = source.read_at(&FileKey { file, version }, 0, &mut buf);
            buf.truncate(len.unwrap());
            buf
        };
        assert_eq!(
            read(&self.contents[1], file),
            read(&self.contents[0], scanned)
        );
    }

    /// Everything that there is to know, in one go.
    fn ask_all(&mut self) {
        let tree = Arc::clone(&self.tree);
        for (scanned, _) in tree.files() {
            for question in [
                Question::Attr,
                Question::Parent,
                Question::List(3),
                Question::Target,
                Question::Xattrs,
                Question::Content,
            ] {
                self.ask(scanned, question);
            }
            let file = self.find(scanned);
            let path = self.lazy.path(file).unwrap();
            assert_eq!(tree.resolve(&path), Some(scanned));
        }
        assert_eq!(
            self.lazy.known_files(),
            tree.len(),
            "nothing is left behind"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_is_that_of_a_scan(
        made in prop::collection::vec(any_op(), 0..60),
        questions in prop::collection::vec(any_question(), 0..60),
    ) {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for op in &made {
            apply(dir.path(), op).unwrap_or_default();
        }
        let mut pair = Pair::new(dir.path());
        let files = pair.tree.len();
        for (which, question) in questions {
            let scanned = FileId(u32::try_from(which % files).unwrap());
            pair.ask(scanned, question);
        }
        pair.ask_all();
    }
}
