//! Scans of real directories.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use blocks::{FileId, NodeKind, Tree};
use localfs::{Reason, Scan, SourceRoot, scan};
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};

fn scan_dir(path: &Path) -> Scan {
    scan(&SourceRoot::open(path).unwrap(), |_| ()).unwrap()
}

/// A directory on a disk: a temporary file system may lack extended attributes.
fn dir_on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn names(tree: &Tree, dir: FileId) -> Vec<&[u8]> {
    tree.entries(dir).map(|(name, _)| name).collect()
}

#[test]
fn attributes_are_those_of_the_disk() {
    let dir = dir_on_disk();
    let file = dir.path().join("file");
    fs::write(&file, b"some bytes").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o4751)).unwrap();
    let early = std::time::UNIX_EPOCH - std::time::Duration::from_nanos(1_500_000_001);
    File::open(&file).unwrap().set_modified(early).unwrap();
    symlink("somewhere/else", dir.path().join("link")).unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    nix::unistd::mkfifo(&dir.path().join("pipe"), Mode::S_IRUSR).unwrap();
    let _socket = UnixListener::bind(dir.path().join("socket")).unwrap();

    let Scan { tree, report } = scan_dir(dir.path());
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(tree.len(), 6);
    for (name, kind) in [
        ("", NodeKind::Dir),
        ("file", NodeKind::File),
        ("link", NodeKind::Symlink),
        ("sub", NodeKind::Dir),
        ("pipe", NodeKind::Fifo),
        ("socket", NodeKind::Socket),
    ] {
        let attr = tree
            .inode(tree.resolve(name.as_bytes()).unwrap())
            .unwrap()
            .attr;
        let want = fs::symlink_metadata(dir.path().join(name)).unwrap();
        assert_eq!(attr.kind, kind);
        assert_eq!(u32::from(attr.perm), want.mode() & 0o7777, "{name}");
        assert_eq!((attr.uid, attr.gid), (want.uid(), want.gid()));
        assert_eq!(u64::from(attr.nlink), want.nlink());
        assert_eq!((attr.size, attr.blocks), (want.size(), want.blocks()));
        assert_eq!(attr.source_inode, want.ino());
        for (got, secs, nanos) in [
            (attr.mtime, want.mtime(), want.mtime_nsec()),
            (attr.ctime, want.ctime(), want.ctime_nsec()),
        ] {
            assert_eq!((got.secs, i64::from(got.nanos)), (secs, nanos), "{name}");
        }
    }
    let file = tree.inode(tree.resolve(b"file").unwrap()).unwrap();
    assert_eq!(
        (file.attr.mtime.secs, file.attr.mtime.nanos),
        (-2, 499_999_999)
    );
    let link = tree.resolve(b"link").unwrap();
    assert_eq!(tree.link_target(link).unwrap(), b"somewhere/else");
}

#[test]
fn a_scan_of_an_unchanged_source_gives_the_same_tree() {
    let dir = dir_on_disk();
    for i in (0..50).rev() {
        let sub = dir.path().join(format!("d{}", i % 7)).join(format!("{i}"));
        fs::create_dir_all(&sub).unwrap();
        fs::write(sub.join("file"), format!("{i}")).unwrap();
    }
    let first = scan_dir(dir.path()).tree;
    let second = scan_dir(dir.path()).tree;
    let names_of = |tree: &Tree| -> Vec<_> { tree.files().map(|(id, _)| tree.path(id)).collect() };
    assert_eq!(names_of(&first), names_of(&second));
    assert_eq!(first.len(), 1 + 7 + 100);
}

#[test]
fn hard_links_are_one_file() {
    let dir = dir_on_disk();
    fs::create_dir(dir.path().join("b")).unwrap();
    fs::write(dir.path().join("a"), b"x").unwrap();
    fs::hard_link(dir.path().join("a"), dir.path().join("b/a2")).unwrap();
    fs::hard_link(dir.path().join("a"), dir.path().join("z")).unwrap();
    let tree = scan_dir(dir.path()).tree;
    let file = tree.resolve(b"a").unwrap();
    assert_eq!(tree.resolve(b"b/a2"), Some(file));
    assert_eq!(tree.resolve(b"z"), Some(file));
    assert_eq!(tree.inode(file).unwrap().attr.nlink, 3);
    assert_eq!(tree.len(), 3);
}

#[test]
fn extended_attributes_of_files_directories_and_the_root() {
    let dir = dir_on_disk();
    fs::write(dir.path().join("f"), b"").unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    let fd = File::open(dir.path()).unwrap();
    let set = |name: &[u8], attribute, value: &[u8]| {
        rawio::xattr::set_at(&fd, name, attribute, value).unwrap();
    };
    set(b"f", c"user.zulu", b"last");
    set(b"f", c"user.alpha", b"");
    set(b"d", c"user.d", &[0, 1, 2]);
    set(b"", c"user.root", b"r");
    let tree = scan_dir(dir.path()).tree;
    let of = |path: &[u8]| -> Vec<(&[u8], &[u8])> {
        tree.xattrs(tree.resolve(path).unwrap())
            .filter(|(name, _)| name.starts_with(b"user."))
            .collect()
    };
    let want: [(&[u8], &[u8]); 2] = [(b"user.alpha", b""), (b"user.zulu", b"last")];
    assert_eq!(of(b"f"), want);
    assert_eq!(of(b"d"), [(b"user.d".as_slice(), [0, 1, 2].as_slice())]);
    assert_eq!(of(b""), [(b"user.root".as_slice(), b"r".as_slice())]);
}

#[test]
fn names_of_any_bytes_and_full_length() {
    let dir = dir_on_disk();
    let long = [b'n'; 255];
    for name in [&b"\xff\xfe not utf-8"[..], b"new\nline", &long] {
        fs::write(dir.path().join(OsStr::from_bytes(name)), b"").unwrap();
    }
    let tree = scan_dir(dir.path()).tree;
    let want: [&[u8]; 3] = [b"new\nline", &long, b"\xff\xfe not utf-8"];
    assert_eq!(names(&tree, FileId::ROOT), want);
}

#[test]
fn links_are_never_followed() {
    let outside = dir_on_disk();
    fs::write(outside.path().join("secret"), b"x").unwrap();
    let dir = dir_on_disk();
    symlink(outside.path(), dir.path().join("out")).unwrap();
    symlink(".", dir.path().join("self")).unwrap();
    let tree = scan_dir(dir.path()).tree;
    assert_eq!(tree.len(), 3);
    assert_eq!(tree.resolve(b"out/secret"), None);
}

#[test]
fn a_tree_deeper_than_any_path_is_walked_to_the_bottom_and_back() {
    const DEPTH: usize = 3000;
    let dir = dir_on_disk();
    let mut at = File::open(dir.path()).unwrap();
    for level in 0..DEPTH {
        mkdirat(&at, "deep", Mode::S_IRWXU).unwrap();
        // Visited after the way back up from all that is below.
        mkdirat(&at, "side", Mode::S_IRWXU).unwrap();
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        if level % 500 == 0 {
            let side = openat(&at, "side", flags, Mode::empty()).unwrap();
            mkdirat(&side, "inner", Mode::S_IRWXU).unwrap();
        }
        at = openat(&at, "deep", flags, Mode::empty()).unwrap().into();
    }
    let Scan { tree, report } = scan_dir(dir.path());
    assert!(report.is_clean(), "{:?}", report.notes());
    assert_eq!(tree.len(), 1 + 2 * DEPTH + DEPTH / 500);
    let bottom = tree.resolve(&b"deep/".repeat(DEPTH)).unwrap();
    assert_eq!(tree.path(bottom).unwrap().len(), DEPTH * 5 - 1);
}

/// Of four files, because links are made faster than files, and ext4 takes 65 000 for each.
#[test]
fn a_hundred_thousand_names_in_one_directory() {
    let dir = tempfile::tempdir().unwrap();
    let name = |i: usize| dir.path().join(format!("{i:06}"));
    for i in 0..4 {
        fs::write(name(i), b"").unwrap();
    }
    for i in 4..100_000 {
        fs::hard_link(name(i % 4), name(i)).unwrap();
    }
    let tree = scan_dir(dir.path()).tree;
    assert_eq!(tree.entries(FileId::ROOT).len(), 100_000);
    assert_eq!(tree.child(FileId::ROOT, b"077777"), Some(FileId(2)));
    assert_eq!(tree.len(), 5);
}

#[test]
fn progress_is_told_after_every_directory() {
    let dir = dir_on_disk();
    for i in 0..5 {
        fs::create_dir(dir.path().join(format!("{i}"))).unwrap();
        fs::write(dir.path().join(format!("{i}/f")), b"").unwrap();
    }
    let mut told = Vec::new();
    scan(&SourceRoot::open(dir.path()).unwrap(), |p| {
        told.push(p.files);
    })
    .unwrap();
    assert_eq!(told, [6, 7, 8, 9, 10, 11]);
}

/// What lies below is left out and named, and all else is served.
#[test]
fn a_path_longer_than_a_tree_can_hold_is_left_out() {
    let dir = dir_on_disk();
    let mut at = File::open(dir.path()).unwrap();
    let name = "n".repeat(255);
    for _ in 0..258 {
        mkdirat(&at, name.as_str(), Mode::S_IRWXU).unwrap();
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        at = openat(&at, name.as_str(), flags, Mode::empty())
            .unwrap()
            .into();
    }
    fs::write(dir.path().join("beside"), b"").unwrap();
    let Scan { tree, report } = scan_dir(dir.path());
    assert_eq!(tree.len(), 1 + 256 + 1);
    assert!(tree.resolve(b"beside").is_some());
    let notes: Vec<_> = report.notes().iter().map(|note| note.reason).collect();
    assert_eq!(notes, [Reason::NotServable]);
    assert_eq!(report.notes()[0].path.len(), 257 * 256 - 1);
}
