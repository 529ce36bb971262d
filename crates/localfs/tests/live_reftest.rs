//! A directory is changed at random; after every change all that a [`LiveTree`] says is compared
//! with the directory itself.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod random_dir;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File, Metadata};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use blocks::{BlockSource, FileId, FileKey, Lifetime, Namespace, NodeKind, SourceErrorKind, Tree};
use localfs::{DirSource, LiveTree, SourceRoot, scan};
use proptest::prelude::*;

use random_dir::{Op, any_op, apply, everything};

/// What makes an inode one and the same for the model, independently of the code under test.
type Inode = (u64, Option<SystemTime>);

fn inode(metadata: &Metadata) -> Inode {
    (metadata.ino(), metadata.created().ok())
}

struct Model {
    dir: tempfile::TempDir,
    live: Arc<LiveTree>,
    contents: DirSource,
    ids: HashMap<FileId, Inode>,
    inodes: HashMap<Inode, (FileId, (i64, i64))>,
    /// By which paths the last walk saw which inode.
    seen: Vec<(PathBuf, Inode)>,
    /// Which rights were told under which id.
    told: HashMap<FileId, Rights>,
}

/// A mode and an owner, and whether somebody may do less since.
#[derive(Clone, Copy)]
struct Rights {
    mode: u32,
    owner: (u32, u32),
    revoked: bool,
}

impl Rights {
    fn of(metadata: &Metadata) -> Self {
        Self {
            mode: metadata.mode() & 0o7777,
            owner: (metadata.uid(), metadata.gid()),
            revoked: false,
        }
    }

    /// Whether nothing was taken from anybody since.
    fn hold(self, now: Self) -> bool {
        let kept = (0..9).all(|bit| self.mode >> bit & 1 <= now.mode >> bit & 1);
        !self.revoked && kept && self.mode >> 9 == now.mode >> 9 && self.owner == now.owner
    }
}

impl Model {
    fn new(before: &[Op]) -> (Self, Arc<Tree>) {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for op in before {
            apply(dir.path(), op).unwrap_or_default();
        }
        let root = Arc::new(SourceRoot::open(dir.path()).unwrap());
        let tree = Arc::new(scan(&root, |_| ()).unwrap().tree);
        let ttl = Duration::from_secs(1);
        let live = LiveTree::new(Arc::clone(&root), Arc::clone(&tree), ttl).unwrap();
        assert_eq!(live.lifetime(), Lifetime::For(ttl));
        let live = Arc::new(live);
        let contents = DirSource::new(root, Arc::clone(&live) as _);
        let model = Self {
            dir,
            live,
            contents,
            ids: HashMap::new(),
            inodes: HashMap::new(),
            seen: Vec::new(),
            told: HashMap::new(),
        };
        (model, tree)
    }

    /// Before anything is looked up again: what is where it was is found, and what is said about
    /// an id is never about another file.
    fn check_known(&mut self) {
        let now = everything(self.dir.path());
        let alive: HashMap<Inode, &Metadata> = now.values().map(|m| (inode(m), m)).collect();
        for (path, was) in &self.seen {
            let (file, _) = self.inodes[was];
            match self.live.attr(file) {
                Ok(attr) => {
                    assert_attr(&attr, alive[was], path);
                    if alive[was].is_file() {
                        let now = Rights::of(alive[was]);
                        let told = self.told.insert(file, now);
                        assert!(told.is_none_or(|told| told.hold(now)), "{path:?}");
                    }
                }
                Err(error) if matches!(error.kind(), SourceErrorKind::Stale { .. }) => {
                    let told = self.told.get_mut(&file).unwrap();
                    assert!(!told.hold(Rights::of(alive[was])), "{path:?}");
                    told.revoked = true;
                }
                Err(error) => {
                    assert_eq!(error.kind(), SourceErrorKind::NotFound, "{path:?}");
                    let there = now.get(path).map(inode);
                    assert_ne!(there, Some(*was), "{path:?} is where it was");
                }
            }
        }
    }

    /// Looks everything up and compares it.
    fn walk(&mut self) {
        let now = everything(self.dir.path());
        self.seen.clear();
        // Parents come before what is in them.
        let mut by_path = HashMap::from([(PathBuf::new(), FileId::ROOT)]);
        for (path, metadata) in &now {
            let file = match (path.parent(), path.file_name()) {
                (Some(dir), Some(name)) => {
                    let found = self.live.lookup(by_path[dir], name.as_bytes()).unwrap();
                    found.unwrap_or_else(|| panic!("{path:?} is not found"))
                }
                _ => FileId::ROOT,
            };
            by_path.insert(path.clone(), file);
            let was = self.ids.insert(file, inode(metadata));
            assert!(
                was.is_none_or(|was| was == inode(metadata)),
                "{path:?}: id reused"
            );
            // A regular file may get another id when only its time of change tells that it is
            // another version; everything else keeps its id.
            let changed = (metadata.ctime(), metadata.ctime_nsec());
            let had = self.inodes.insert(inode(metadata), (file, changed));
            let keeps = |(had, then)| had == file || (metadata.is_file() && then != changed);
            assert!(had.is_none_or(keeps), "{path:?}: id changed");
            self.seen.push((path.clone(), inode(metadata)));
            if metadata.is_file() {
                let now = Rights::of(metadata);
                let told = self.told.insert(file, now);
                assert!(told.is_none_or(|told| told.hold(now)), "{path:?}: rights");
            }
            self.check_file(path, file, metadata);
        }
        for (path, metadata) in now.iter().filter(|(_, metadata)| metadata.is_dir()) {
            self.check_list(path, by_path[path], &now, &by_path);
            let parent = path.parent().unwrap_or(Path::new(""));
            assert_eq!(self.live.parent(by_path[path]).unwrap(), by_path[parent]);
            assert_eq!(inode(metadata), self.ids[&by_path[path]]);
        }
        let alive: BTreeSet<FileId> = by_path.values().copied().collect();
        let present: BTreeSet<_> = now.values().map(inode).collect();
        for (file, inode) in &self.ids {
            if alive.contains(file) || present.contains(inode) {
                continue;
            }
            let error = self.live.attr(*file).unwrap_err();
            assert_eq!(error.kind(), SourceErrorKind::NotFound);
        }
    }

    fn check_file(&self, path: &Path, file: FileId, metadata: &Metadata) {
        let attr = self.live.attr(file).unwrap();
        assert_attr(&attr, metadata, path);
        let full = self.dir.path().join(path);
        let by_path = self.live.path(file).unwrap();
        let there = self.dir.path().join(std::ffi::OsStr::from_bytes(&by_path));
        assert_eq!(
            inode(&fs::symlink_metadata(there).unwrap()),
            inode(metadata)
        );
        match attr.kind {
            NodeKind::Symlink => {
                let target = fs::read_link(&full).unwrap();
                assert_eq!(
                    self.live.target(file).unwrap(),
                    target.as_os_str().as_bytes()
                );
            }
            NodeKind::File => {
                let want = fs::read(&full).unwrap();
                let mut buf = vec![0; want.len() + 10];
                let key = FileKey {
                    file,
                    version: attr.version(),
                };
                let read = self.contents.read_at(&key, 0, &mut buf).unwrap();
                assert_eq!(&buf[..read], want, "{path:?}");
            }
            _ => (),
        }
        let parent = File::open(full.parent().unwrap()).unwrap();
        let name = full.file_name().unwrap().as_bytes();
        let want = rawio::xattr::get_at(&parent, name, b"user.random").unwrap();
        assert_eq!(self.live.xattr(file, b"user.random").unwrap(), want);
        let names = self.live.xattr_names(file).unwrap();
        let listed = names.split(|b| *b == 0).any(|name| name == b"user.random");
        assert_eq!(listed, want.is_some());
    }

    fn check_list(
        &self,
        path: &Path,
        dir: FileId,
        now: &BTreeMap<PathBuf, Metadata>,
        by_path: &HashMap<PathBuf, FileId>,
    ) {
        let mut listed = BTreeSet::new();
        let mut cursor = 0;
        // Two at a time: every cursor is one from which a listing goes on.
        loop {
            let from = cursor;
            let mut shown = 0;
            let mut visit = |entry: blocks::EntryRef<'_>| {
                shown += 1;
                cursor = entry.next;
                listed.insert((
                    path.join(std::ffi::OsStr::from_bytes(entry.name)),
                    entry.file,
                ));
                if shown == 2 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            self.live.list(dir, from, &mut visit).unwrap();
            if shown == 0 {
                break;
            }
        }
        let inside = now.keys().filter(|p| p.parent() == Some(path));
        let want: BTreeSet<_> = inside.map(|p| (p.clone(), by_path[p])).collect();
        assert_eq!(listed, want, "{path:?}");
        for name in 0..6_u8 {
            let child = path.join(format!("{name}"));
            let found = self.live.lookup(dir, format!("{name}").as_bytes()).unwrap();
            assert_eq!(found, by_path.get(&child).copied(), "{child:?}");
        }
    }
}

fn assert_attr(attr: &blocks::Attr, want: &Metadata, path: &Path) {
    assert_eq!(attr.source_inode, want.ino(), "{path:?}");
    assert_eq!(
        (attr.size, attr.blocks),
        (want.size(), want.blocks()),
        "{path:?}"
    );
    assert_eq!(u32::from(attr.perm), want.mode() & 0o7777, "{path:?}");
    assert_eq!(u64::from(attr.nlink), want.nlink(), "{path:?}");
    let time = |t: blocks::Timestamp| (t.secs, i64::from(t.nanos));
    assert_eq!(
        time(attr.mtime),
        (want.mtime(), want.mtime_nsec()),
        "{path:?}"
    );
    assert_eq!(
        time(attr.ctime),
        (want.ctime(), want.ctime_nsec()),
        "{path:?}"
    );
    assert_eq!(attr.kind == NodeKind::Dir, want.is_dir(), "{path:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_is_what_the_directory_says(
        before in prop::collection::vec(any_op(), 0..40),
        changes in prop::collection::vec((any_op(), any::<bool>()), 1..40),
    ) {
        let (mut model, tree) = Model::new(&before);
        for (file, _) in tree.files() {
            let path = tree.path(file).unwrap();
            prop_assert_eq!(tree.resolve(&path), Some(file));
            prop_assert_eq!(model.live.path(file), Some(path));
        }
        // Half of the time, the first question comes after the first change.
        if changes.len() % 2 == 0 {
            model.walk();
            for (path, inode) in &model.seen {
                let id = tree.resolve(path.as_os_str().as_bytes()).unwrap();
                prop_assert_eq!(model.inodes[inode].0, id);
            }
        }
        for (op, look) in &changes {
            apply(model.dir.path(), op).unwrap_or_default();
            model.check_known();
            if *look {
                model.walk();
            }
        }
        model.walk();
    }
}
