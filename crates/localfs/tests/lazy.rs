//! What the random test of lazy trees cannot bring about.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use blocks::{
    ACCESS_LIST, AttrSource as _, BlockSource as _, FileId, FileKey, Namespace as _,
    SourceErrorKind, Tree,
};
use localfs::{DirSource, LazyTree, SourceRoot, scan};

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn lazy(path: &Path) -> (Arc<LazyTree>, Arc<SourceRoot>) {
    let root = Arc::new(SourceRoot::open(path).unwrap());
    let lazy = LazyTree::new(Arc::clone(&root)).unwrap();
    (Arc::new(lazy), root)
}

fn scanned(root: &SourceRoot) -> Tree {
    scan(root, |_| ()).unwrap().tree
}

fn find(lazy: &LazyTree, path: &str) -> FileId {
    let names = path.split('/');
    names.fold(FileId::ROOT, |dir, name| {
        lazy.lookup(dir, name.as_bytes()).unwrap().unwrap()
    })
}

#[test]
fn only_what_is_asked_for_is_met() {
    let dir = dir();
    for sub in 0..20 {
        let sub = dir.path().join(format!("{sub}/deep"));
        fs::create_dir_all(&sub).unwrap();
        for file in 0..20 {
            fs::write(sub.join(format!("{file}")), b"content").unwrap();
        }
    }
    let (lazy, root) = lazy(dir.path());
    let file = find(&lazy, "7/deep/7");
    let contents = DirSource::new(root, Arc::clone(&lazy) as _);
    let version = lazy.attr(file).unwrap().version();
    let mut buf = [0; 7];
    contents
        .read_at(&FileKey { file, version }, 0, &mut buf)
        .unwrap();
    assert_eq!(&buf, b"content");
    assert_eq!(lazy.known_files(), 4, "the root, 7, 7/deep, and 7/deep/7");
}

#[test]
fn names_of_one_file_that_part_are_two_files() {
    let dir = dir();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("a"), b"old").unwrap();
    for name in ["b", "c"] {
        fs::hard_link(path("a"), path(name)).unwrap();
    }
    let (lazy, root) = lazy(dir.path());
    let a = find(&lazy, "a");
    assert_eq!(find(&lazy, "b"), a);
    assert_eq!(lazy.paths(a).unwrap(), [b"a", b"b"]);
    fs::write(path("new"), b"new").unwrap();
    fs::rename(path("new"), path("a")).unwrap();
    // What `a` was may be followed as what took its place, which is nothing of `c`.
    let c = find(&lazy, "c");
    assert_ne!(c, a);
    let contents = DirSource::new(root, Arc::clone(&lazy) as _);
    let version = lazy.attr(c).unwrap().version();
    let mut buf = [0; 3];
    let key = FileKey { file: c, version };
    contents.read_at(&key, 0, &mut buf).unwrap();
    assert_eq!(&buf, b"old");
}

#[test]
fn what_was_looked_for_in_vain_leaves_nothing_behind() {
    let dir = dir();
    let (lazy, _) = lazy(dir.path());
    for name in 0..10_000 {
        let found = lazy.lookup(FileId::ROOT, format!("{name}").as_bytes());
        assert_eq!(found.unwrap(), None);
    }
    assert_eq!(lazy.known_files(), 1);
    // So a name that appears is found.
    File::create_new(dir.path().join("7")).unwrap();
    assert_eq!(find(&lazy, "7"), FileId(1));
}

#[test]
fn a_large_directory_is_listed_in_pieces_each_name_once() {
    const NAMES: usize = 10_000;
    let dir = dir();
    for name in 0..NAMES {
        File::create_new(dir.path().join(format!("{name}"))).unwrap();
    }
    let (lazy, root) = lazy(dir.path());
    let list = || {
        let mut ids = Vec::new();
        let mut names = BTreeSet::new();
        let mut cursor = 0;
        loop {
            let (from, before) = (cursor, names.len());
            let mut visit = |entry: blocks::EntryRef<'_>| {
                cursor = entry.next;
                ids.push((entry.next, entry.file));
                assert!(names.insert(entry.name.to_vec()), "shown twice");
                if names.len() == before + 97 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            lazy.list(FileId::ROOT, from, &mut visit).unwrap();
            if names.len() == before {
                return (ids, names);
            }
        }
    };
    let (ids, names) = list();
    let tree = scanned(&root);
    let want: BTreeSet<_> = tree
        .entries(FileId::ROOT)
        .map(|(name, _)| name.to_vec())
        .collect();
    assert_eq!(names, want);
    // The same cursors and ids again, and nothing that piles up.
    assert_eq!(list().0, ids);
    assert_eq!(lazy.known_files(), NAMES + 1);
}

#[test]
fn what_changed_since_is_not_in_the_scan() {
    let dir = dir();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("d")).unwrap();
    for name in ["same", "written", "replaced", "removed", "kind", "d/f"] {
        fs::write(path(name), name).unwrap();
    }
    let (lazy, root) = lazy(dir.path());
    let names = ["same", "written", "replaced", "removed", "kind", "d/f", "d"];
    let met = names.map(|name| find(&lazy, name));
    let (contents, key) = {
        let version = lazy.attr(met[1]).unwrap().version();
        let contents = DirSource::new(Arc::clone(&root), Arc::clone(&lazy) as _);
        (
            contents,
            FileKey {
                file: met[1],
                version,
            },
        )
    };
    let mut written = File::options().append(true).open(path("written")).unwrap();
    written.write_all(b"more").unwrap();
    fs::write(path("new"), "other").unwrap();
    fs::rename(path("new"), path("replaced")).unwrap();
    fs::remove_file(path("removed")).unwrap();
    fs::remove_file(path("kind")).unwrap();
    fs::create_dir(path("kind")).unwrap();
    fs::write(path("d/g"), "beside").unwrap();

    let tree = scanned(&root);
    let found = met.map(|file| lazy.in_tree(file, &tree));
    let there = |name: &str| tree.resolve(name.as_bytes());
    let want = [
        there("same"),
        None,
        None,
        None,
        None,
        there("d/f"),
        there("d"),
    ];
    assert_eq!(found, want);
    assert_eq!(lazy.in_tree(FileId(99), &tree), None);
    // What was said once is said again; where the content is read the change comes out.
    assert_eq!(lazy.attr(met[1]).unwrap().size, 7);
    let stale = contents.read_at(&key, 0, &mut [0; 8]).unwrap_err();
    let now = tree.key(there("written").unwrap()).unwrap().version;
    assert_eq!(stale.kind(), SourceErrorKind::Stale { now });
    let gone = lazy.list(met[4], 0, &mut |_| ControlFlow::Continue(()));
    assert!(gone.is_ok(), "a file has no entries, whatever is there now");
}

#[test]
fn a_directory_that_vanishes_is_gone_and_the_others_are_not() {
    let dir = dir();
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    let (lazy, _) = lazy(dir.path());
    let (a, b) = (find(&lazy, "a"), find(&lazy, "a/b"));
    fs::remove_dir(dir.path().join("a/b")).unwrap();
    let listed = lazy.list(b, 0, &mut |_| ControlFlow::Continue(()));
    assert_eq!(listed.unwrap_err().kind(), SourceErrorKind::NotFound);
    let found = lazy.lookup(b, b"c").unwrap_err();
    assert_eq!(found.kind(), SourceErrorKind::NotFound);
    assert_eq!(lazy.lookup(a, b"c").unwrap(), None);
    let mut left = 0;
    let count = &mut |_: blocks::EntryRef<'_>| {
        left += 1;
        ControlFlow::Continue(())
    };
    lazy.list(a, 0, count).unwrap();
    assert_eq!(left, 0);
}

#[test]
fn names_that_cannot_be_and_files_that_were_never_met() {
    let dir = dir();
    fs::write(dir.path().join("f"), b"").unwrap();
    let (lazy, _) = lazy(dir.path());
    for name in [&b""[..], b".", b"..", b"f/", b"f\0", &[b'n'; 256]] {
        assert_eq!(lazy.lookup(FileId::ROOT, name).unwrap(), None, "{name:?}");
    }
    let file = find(&lazy, "f");
    assert_eq!(lazy.lookup(file, b"x").unwrap(), None, "no directory");
    let unknown = FileId(99);
    for error in [
        lazy.lookup(unknown, b"x").unwrap_err(),
        lazy.attr(unknown).unwrap_err(),
        lazy.parent(unknown).unwrap_err(),
        lazy.target(file).unwrap_err(),
        lazy.target(unknown).unwrap_err(),
        lazy.xattr_names(unknown).unwrap_err(),
    ] {
        assert_eq!(error.kind(), SourceErrorKind::NotFound);
    }
    for name in [&b""[..], b"nul\0", &[b'n'; 256]] {
        assert_eq!(lazy.xattr(file, name).unwrap(), None);
    }
}

#[test]
fn an_access_list_stays_what_it_was_when_it_was_asked_for() {
    let dir = dir();
    let path = dir.path().join("f");
    fs::write(&path, b"").unwrap();
    let (lazy, root) = lazy(dir.path());
    let file = find(&lazy, "f");
    assert_eq!(lazy.xattr(file, ACCESS_LIST).unwrap(), None);
    // The owner, a user, the group, the mask and others, who all may read.
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, number) in [
        (1_u16, u32::MAX),
        (2, 1000),
        (4, u32::MAX),
        (16, u32::MAX),
        (32, u32::MAX),
    ] {
        list.extend(tag.to_le_bytes());
        list.extend(4_u16.to_le_bytes());
        list.extend(number.to_le_bytes());
    }
    let name = std::ffi::CString::new(ACCESS_LIST).unwrap();
    let at = File::open(dir.path()).unwrap();
    rawio::xattr::set_at(&at, b"f", &name, &list).unwrap();
    assert_eq!(lazy.xattr(file, ACCESS_LIST).unwrap(), None);
    // Who compares what was told with what there is sees the difference.
    let source = DirSource::new(root, lazy as _);
    let now = source.all_attrs(file).unwrap();
    let found = now.xattrs.iter().find(|(name, _)| name == ACCESS_LIST);
    assert_eq!(found.unwrap().1, list);
}

#[test]
fn threads_that_ask_at_once_get_the_same_ids() {
    let dir = dir();
    for name in 0..200 {
        File::create_new(dir.path().join(format!("{name}"))).unwrap();
    }
    let (lazy, _) = lazy(dir.path());
    let ask = || {
        let names = (0..200).map(|name| find(&lazy, &format!("{name}")));
        names.collect::<Vec<_>>()
    };
    let all = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.collect::<Vec<_>>()
    });
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
    assert_eq!(lazy.known_files(), 201);
}

#[test]
fn of_a_disk_image_the_files_of_its_chain_are_shown() {
    let dir = dir();
    fs::write(dir.path().join("disk.raw"), vec![0; 4096]).unwrap();
    fs::write(dir.path().join("beside"), b"").unwrap();
    let (lazy, root) = lazy(&dir.path().join("disk.raw"));
    let tree = scanned(&root);
    let disk = find(&lazy, "disk.raw");
    assert_eq!(lazy.lookup(FileId::ROOT, b"beside").unwrap(), None);
    assert_eq!(lazy.in_tree(disk, &tree), tree.resolve(b"disk.raw"));
    let attr = lazy.attr(FileId::ROOT).unwrap();
    assert_eq!(attr, tree.inode(FileId::ROOT).unwrap().attr);
    let mut listed = Vec::new();
    let mut visit = |entry: blocks::EntryRef<'_>| {
        listed.push((entry.name.to_vec(), entry.file, entry.next));
        ControlFlow::Continue(())
    };
    lazy.list(FileId::ROOT, 0, &mut visit).unwrap();
    assert_eq!(listed, [(b"disk.raw".to_vec(), disk, 1)]);
}
