//! What the random test of live trees cannot bring about.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use blocks::{FileId, Namespace, NodeKind, SourceErrorKind, Tree};
use localfs::{LiveTree, SourceRoot, scan};

fn live(path: &Path) -> (LiveTree, Arc<Tree>) {
    let root = Arc::new(SourceRoot::open(path).unwrap());
    let tree = Arc::new(scan(&root, |_| ()).unwrap().tree);
    let live = LiveTree::new(root, Arc::clone(&tree), Duration::ZERO).unwrap();
    (live, tree)
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn a_file_that_took_an_inode_over_since_the_scan_is_a_new_file() {
    let dir = dir();
    let path = dir.path().join("f");
    // Most file systems give the number away again at once.
    for _ in 0..10 {
        fs::write(&path, b"old").unwrap();
        let (live, tree) = live(dir.path());
        let old = tree.resolve(b"f").unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"new").unwrap();
        let new = live.lookup(FileId::ROOT, b"f").unwrap().unwrap();
        assert_ne!(new, old);
        assert_eq!(
            live.attr(old).unwrap_err().kind(),
            SourceErrorKind::NotFound
        );
        assert_eq!(live.attr(new).unwrap().size, 3);
    }
}

#[test]
fn names_that_cannot_be_are_not_there() {
    let dir = dir();
    fs::write(dir.path().join("f"), b"").unwrap();
    let (live, tree) = live(dir.path());
    for name in [&b""[..], b".", b"..", b"f/", b"f\0", &[b'n'; 256]] {
        assert_eq!(live.lookup(FileId::ROOT, name).unwrap(), None, "{name:?}");
    }
    let file = tree.resolve(b"f").unwrap();
    let unknown = FileId(99);
    for gone in [
        live.lookup(file, b"x").unwrap_err(),
        live.lookup(unknown, b"x").unwrap_err(),
        live.attr(unknown).unwrap_err(),
        live.parent(file).unwrap_err(),
    ] {
        assert_eq!(gone.kind(), SourceErrorKind::NotFound);
    }
    assert_eq!(live.xattr(file, b"").unwrap(), None);
}

#[test]
fn links_are_not_followed_out_of_the_source() {
    let outside = dir();
    fs::write(outside.path().join("secret"), b"x").unwrap();
    let dir = dir();
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/f"), b"").unwrap();
    let (live, tree) = live(dir.path());
    let sub = tree.resolve(b"d").unwrap();
    fs::rename(dir.path().join("d"), dir.path().join("e")).unwrap();
    std::os::unix::fs::symlink(outside.path(), dir.path().join("d")).unwrap();
    let error = live.lookup(sub, b"secret").unwrap_err();
    assert_eq!(error.kind(), SourceErrorKind::NotFound);
    let link = live.lookup(FileId::ROOT, b"d").unwrap().unwrap();
    assert_eq!(live.attr(link).unwrap().kind, NodeKind::Symlink);
    // Met under its new name, it is the directory it was.
    assert_eq!(live.lookup(FileId::ROOT, b"e").unwrap(), Some(sub));
    assert_eq!(live.lookup(sub, b"f").unwrap(), tree.resolve(b"d/f"));
}

#[test]
fn a_large_directory_is_listed_in_pieces() {
    const NAMES: usize = 20_000;
    let dir = tempfile::tempdir().unwrap();
    for i in 0..NAMES {
        File::create_new(dir.path().join(format!("{i}"))).unwrap();
    }
    let (live, tree) = live(dir.path());
    let mut seen = vec![false; NAMES];
    let mut cursor = 0;
    loop {
        let (from, mut count) = (cursor, 0);
        live.list(FileId::ROOT, from, &mut |entry| {
            let name = std::str::from_utf8(entry.name).unwrap();
            assert_eq!(tree.child(FileId::ROOT, entry.name), Some(entry.file));
            assert!(!std::mem::replace(
                &mut seen[name.parse::<usize>().unwrap()],
                true
            ));
            cursor = entry.next;
            count += 1;
            if count == 100 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .unwrap();
        // A file system above adds two for `.` and `..`, and the sum is a file offset.
        assert!(i64::try_from(cursor + 2).is_ok());
        if count == 0 {
            break;
        }
    }
    assert!(seen.iter().all(|seen| *seen));
}
