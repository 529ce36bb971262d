//! A directory is changed at random; after every change all that a [`LiveTree`] says is compared
//! with the directory itself.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File, Metadata, Permissions};
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use blocks::{BlockSource, FileId, FileKey, Lifetime, Namespace, NodeKind, SourceErrorKind, Tree};
use localfs::{DirSource, LiveTree, Paths, SourceRoot, scan};
use proptest::prelude::*;

/// What to do to the directory. Numbers choose among what exists, whatever that is.
#[derive(Clone, Debug)]
enum Op {
    Create { dir: usize, name: u8, len: usize },
    Mkdir { dir: usize, name: u8 },
    Symlink { dir: usize, name: u8, target: u8 },
    Link { file: usize, dir: usize, name: u8 },
    Append { file: usize, len: usize },
    Truncate { file: usize, len: u64 },
    Replace { file: usize, len: usize },
    Rename { from: usize, dir: usize, name: u8 },
    Swap { one: usize, other: usize },
    Remove { at: usize },
    Chmod { at: usize, mode: u32 },
    SetXattr { at: usize, value: Vec<u8> },
}

fn any_op() -> impl Strategy<Value = Op> {
    let at = || 0..1000_usize;
    let name = || 0..6_u8;
    prop_oneof![
        4 => (at(), name(), 0..9000_usize).prop_map(|(dir, name, len)| Op::Create { dir, name, len }),
        3 => (at(), name()).prop_map(|(dir, name)| Op::Mkdir { dir, name }),
        1 => (at(), name(), name()).prop_map(|(dir, name, target)| Op::Symlink { dir, name, target }),
        2 => (at(), at(), name()).prop_map(|(file, dir, name)| Op::Link { file, dir, name }),
        1 => (at(), 1..5000_usize).prop_map(|(file, len)| Op::Append { file, len }),
        1 => (at(), 0..5000_u64).prop_map(|(file, len)| Op::Truncate { file, len }),
        2 => (at(), 0..5000_usize).prop_map(|(file, len)| Op::Replace { file, len }),
        3 => (at(), at(), name()).prop_map(|(from, dir, name)| Op::Rename { from, dir, name }),
        1 => (at(), at()).prop_map(|(one, other)| Op::Swap { one, other }),
        2 => at().prop_map(|at| Op::Remove { at }),
        1 => (at(), 0..0o1000_u32).prop_map(|(at, mode)| Op::Chmod { at, mode: mode | 0o500 }),
        1 => (at(), prop::collection::vec(any::<u8>(), 0..50)).prop_map(|(at, value)| Op::SetXattr { at, value }),
    ]
}

/// Everything in the directory, by its path from there; the root is the empty path.
fn everything(root: &Path) -> BTreeMap<PathBuf, Metadata> {
    let mut all = BTreeMap::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        let metadata = fs::symlink_metadata(root.join(&path)).unwrap();
        if metadata.is_dir() {
            for entry in fs::read_dir(root.join(&path)).unwrap() {
                waiting.push(path.join(entry.unwrap().file_name()));
            }
        }
        all.insert(path, metadata);
    }
    all
}

fn pick(all: &BTreeMap<PathBuf, Metadata>, which: usize, fits: fn(&Metadata) -> bool) -> PathBuf {
    let fitting: Vec<&PathBuf> = all
        .iter()
        .filter(|(_, m)| fits(m))
        .map(|(p, _)| p)
        .collect();
    match fitting.len() {
        0 => PathBuf::from("nothing-of-the-kind"),
        len => fitting[which % len].clone(),
    }
}

/// Changes the directory. What the operating system refuses is no change: that is fine.
fn apply(root: &Path, op: &Op) -> std::io::Result<()> {
    let all = everything(root);
    let any = |which| root.join(pick(&all, which, |_| true));
    let file = |which| root.join(pick(&all, which, Metadata::is_file));
    let new = |dir, name: &u8| {
        root.join(pick(&all, dir, Metadata::is_dir))
            .join(format!("{name}"))
    };
    match op {
        Op::Create { dir, name, len } => File::create_new(new(*dir, name))?.write_all(&data(*len)),
        Op::Mkdir { dir, name } => fs::create_dir(new(*dir, name)),
        Op::Symlink { dir, name, target } => symlink(format!("t/{target}"), new(*dir, name)),
        Op::Link {
            file: of,
            dir,
            name,
        } => fs::hard_link(file(*of), new(*dir, name)),
        Op::Append { file: to, len } => File::options()
            .append(true)
            .open(file(*to))?
            .write_all(&data(*len)),
        Op::Truncate { file: at, len } => {
            File::options().write(true).open(file(*at))?.set_len(*len)
        }
        Op::Replace { file: at, len } => {
            let new = root.join("new");
            fs::write(&new, data(*len))?;
            fs::rename(&new, file(*at)).or_else(|_| fs::remove_file(&new))
        }
        Op::Rename { from, dir, name } => fs::rename(any(*from), new(*dir, name)),
        Op::Swap { one, other } => nix::fcntl::renameat2(
            File::open(root)?,
            &any(*one),
            File::open(root)?,
            &any(*other),
            nix::fcntl::RenameFlags::RENAME_EXCHANGE,
        )
        .map_err(Into::into),
        Op::Remove { at } if any(*at).is_dir() && any(*at) != root.join("") => {
            fs::remove_dir_all(any(*at))
        }
        Op::Remove { at } => fs::remove_file(any(*at)),
        Op::Chmod { at, mode } => fs::set_permissions(file(*at), Permissions::from_mode(*mode)),
        Op::SetXattr { at, value } => {
            let path = any(*at);
            let dir = File::open(path.parent().unwrap())?;
            let name = path.file_name().unwrap().as_bytes();
            rawio::xattr::set_at(dir, name, c"user.random", value)
        }
    }
}

fn data(len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| ((i ^ len) % 251).try_into().unwrap())
        .collect()
}

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
        };
        (model, tree)
    }

    /// Before anything is looked up again: what is where it was is found, and what is said about
    /// an id is never about another file.
    fn check_known(&self) {
        let now = everything(self.dir.path());
        let alive: HashMap<Inode, &Metadata> = now.values().map(|m| (inode(m), m)).collect();
        for (path, was) in &self.seen {
            let (file, _) = self.inodes[was];
            match self.live.attr(file) {
                Ok(attr) => assert_attr(&attr, alive[was], path),
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
