//! What the random test of live trees cannot bring about.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::{self, File, Permissions};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use blocks::{ACCESS_LIST, FileId, Namespace, NodeKind, SourceErrorKind, Tree};
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

/// A kernel goes by what it was told under an id, and so does whoever has the file open.
#[test]
fn who_may_do_less_with_a_file_is_not_served_by_its_old_id() {
    let mode = |mode| Permissions::from_mode(mode);
    let is_stale = |live: &LiveTree, file| {
        let error = live.attr(file).unwrap_err();
        matches!(error.kind(), SourceErrorKind::Stale { .. })
    };
    for (was, now) in [(0o644, 0o600), (0o755, 0o654), (0o644, 0o4644)] {
        let dir = dir();
        let path = dir.path().join("f");
        fs::write(&path, b"old").unwrap();
        fs::set_permissions(&path, mode(was)).unwrap();
        let (live, _) = live(dir.path());
        let old = live.lookup(FileId::ROOT, b"f").unwrap().unwrap();
        assert!(live.attr(old).is_ok());
        // In place, with another size: no kernel needs another id to see that.
        fs::write(&path, b"a secret").unwrap();
        assert_eq!(live.attr(old).unwrap().size, 8);
        fs::set_permissions(&path, mode(now)).unwrap();
        assert!(is_stale(&live, old), "{was:o} to {now:o}");
        let new = live.lookup(FileId::ROOT, b"f").unwrap().unwrap();
        assert_ne!(new, old);
        assert_eq!(u32::from(live.attr(new).unwrap().perm), now);
        // For good: somebody may have got the file open by the old id meanwhile.
        fs::set_permissions(&path, mode(was)).unwrap();
        assert!(is_stale(&live, old));
    }
}

#[test]
fn more_rights_need_no_other_id() {
    let dir = dir();
    let path = dir.path().join("f");
    fs::write(&path, b"old").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let (live, _) = live(dir.path());
    let file = live.lookup(FileId::ROOT, b"f").unwrap().unwrap();
    for mode in [0o640, 0o644, 0o755] {
        fs::write(&path, vec![7; mode as usize]).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        assert_eq!(u32::from(live.attr(file).unwrap().perm), mode);
        assert_eq!(live.lookup(FileId::ROOT, b"f").unwrap(), Some(file));
    }
    // What was given on the way is taken.
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    assert!(live.attr(file).is_err());
}

/// An access list in which one user has these rights, and everybody else may read.
fn give_list(dir: &Path, user: u32, rights: u16) {
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 6, u32::MAX),
        (0x02, rights, user),
        (0x04, 4, u32::MAX),
        (0x10, 7, u32::MAX),
        (0x20, 4, u32::MAX),
    ];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, number) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(number.to_le_bytes());
    }
    let dir = File::open(dir).unwrap();
    let name = std::ffi::CString::new(ACCESS_LIST).unwrap();
    rawio::xattr::set_at(&dir, b"f", &name, &list).unwrap();
}

#[test]
fn an_access_list_that_was_told_holds_or_the_id_does_not() {
    let dir = dir();
    let path = dir.path().join("f");
    fs::write(&path, b"old").unwrap();
    give_list(dir.path(), 1000, 4);
    let (live, _) = live(dir.path());
    let lookup = || live.lookup(FileId::ROOT, b"f").unwrap().unwrap();
    let unasked = lookup();
    // Nobody was told the list: nobody goes by it.
    give_list(dir.path(), 1000, 6);
    assert!(live.attr(unasked).is_ok());
    let file = lookup();
    assert!(live.xattr(file, ACCESS_LIST).unwrap().is_some());
    fs::write(&path, b"changed, with the same list").unwrap();
    assert!(live.attr(file).is_ok());
    assert_eq!(lookup(), file);
    fs::write(&path, b"a secret").unwrap();
    give_list(dir.path(), 1000, 0);
    let error = live.attr(file).unwrap_err();
    assert!(matches!(error.kind(), SourceErrorKind::Stale { .. }));
    let new = lookup();
    assert_ne!(new, file);
    // A look-up notices as well, without a question before it.
    assert!(live.xattr(new, ACCESS_LIST).unwrap().is_some());
    fs::write(&path, b"a longer secret").unwrap();
    give_list(dir.path(), 1000, 1);
    assert_ne!(lookup(), new);
    assert!(live.attr(new).is_err());
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
