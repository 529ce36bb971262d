//! What needs root: other file systems below the source, a mount over it, devices, trusted
//! attributes. Run with `cargo test -p localfs --features privileged`; without root it fails.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use blocks::{BlockSource, EntryRef, FileId, Likeness, Namespace, NodeKind, compare};
use localfs::{DirSource, LazyTree, LiveTree, Note, Reason, SourceRoot, scan};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Gives this thread mounts of its own, which go away with it.
fn own_mounts() {
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).unwrap();
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
}

fn mount_tmpfs(at: &Path) {
    mount(
        Some("none"),
        at,
        Some("tmpfs"),
        MsFlags::empty(),
        None::<&str>,
    )
    .unwrap();
}

fn bind(from: &Path, to: &Path) {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
}

#[test]
fn privileged_other_mounts_are_left_out_and_named() {
    own_mounts();
    let dir = dir();
    for name in ["own", "tmpfs", "bound"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    for name in ["own/file", "bound-file"] {
        fs::write(dir.path().join(name), b"bytes").unwrap();
    }
    mount_tmpfs(&dir.path().join("tmpfs"));
    fs::write(dir.path().join("tmpfs/inside"), b"").unwrap();
    // Of the same file system, and still not part of the source.
    bind(&dir.path().join("own"), &dir.path().join("bound"));
    bind(&dir.path().join("own/file"), &dir.path().join("bound-file"));

    let root = Arc::new(SourceRoot::open(dir.path()).unwrap());
    let scanned = scan(&root, |_| ()).unwrap();
    let note = |path: &str| Note {
        path: path.into(),
        reason: Reason::OtherMount,
    };
    let want = [note("bound-file"), note("bound"), note("tmpfs")];
    assert_eq!(scanned.report.notes(), want);
    let tree = Arc::new(scanned.tree);
    assert!(tree.resolve(b"own/file").is_some());
    for path in ["tmpfs", "bound"] {
        let file = tree.resolve(path.as_bytes()).unwrap();
        assert_eq!(tree.entries(file).len(), 0);
    }
    assert_eq!(tree.resolve(b"bound-file"), None);

    let live = LiveTree::new(Arc::clone(&root), tree, Duration::ZERO).unwrap();
    let lazy = LazyTree::new(root).unwrap();
    let both: [&dyn Namespace; 2] = [&live, &lazy];
    for names in both {
        assert_eq!(names.lookup(FileId::ROOT, b"bound-file").unwrap(), None);
        for path in ["tmpfs", "bound"] {
            let sub = names.lookup(FileId::ROOT, path.as_bytes());
            let sub = sub.unwrap().unwrap();
            assert_eq!(names.lookup(sub, b"inside").unwrap(), None);
            assert_eq!(names.lookup(sub, b"file").unwrap(), None);
            let shown = &mut |entry: EntryRef<'_>| panic!("{entry:?}");
            names.list(sub, 0, shown).unwrap();
        }
    }
}

#[test]
fn privileged_a_mount_over_the_source_does_not_hide_it() {
    own_mounts();
    let dir = dir();
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(dir.path().join("sub/file"), b"beneath").unwrap();
    let root = Arc::new(SourceRoot::open(dir.path()).unwrap());
    let before = scan(&root, |_| ()).unwrap().tree;
    mount_tmpfs(dir.path());
    fs::write(dir.path().join("other"), b"above").unwrap();

    let scanned = scan(&root, |_| ()).unwrap();
    assert!(scanned.report.is_clean(), "{:?}", scanned.report);
    let tree = Arc::new(scanned.tree);
    assert_eq!(compare(&before, &tree, Likeness::SameSource), []);
    let key = tree.key(tree.resolve(b"sub/file").unwrap()).unwrap();
    let live = LiveTree::new(Arc::clone(&root), Arc::clone(&tree), Duration::ZERO).unwrap();
    assert_eq!(live.attr(key.file).unwrap().size, 7);
    assert_eq!(live.lookup(FileId::ROOT, b"other").unwrap(), None);
    let lazy = LazyTree::new(Arc::clone(&root)).unwrap();
    assert_eq!(lazy.lookup(FileId::ROOT, b"other").unwrap(), None);
    let sub = lazy.lookup(FileId::ROOT, b"sub").unwrap().unwrap();
    let file = lazy.lookup(sub, b"file").unwrap().unwrap();
    assert_eq!(lazy.in_tree(file, &tree), Some(key.file));
    let source = DirSource::new(root, tree);
    let mut buf = [0; 16];
    assert_eq!(source.read_at(&key, 0, &mut buf).unwrap(), 7);
    assert_eq!(&buf[..7], b"beneath");
}

#[test]
fn privileged_devices_whiteouts_and_trusted_attributes() {
    let dir = dir();
    let make = |name: &str, kind, device| {
        mknod(&dir.path().join(name), kind, Mode::S_IRUSR, device).unwrap();
    };
    make("null", SFlag::S_IFCHR, makedev(1, 3));
    make("disk", SFlag::S_IFBLK, makedev(259, 70_000));
    make("whiteout", SFlag::S_IFCHR, makedev(0, 0));
    std::os::unix::fs::symlink("x", dir.path().join("link")).unwrap();
    let fd = File::open(dir.path()).unwrap();
    for name in ["null", "link", ""] {
        let attribute = c"trusted.overlay.opaque";
        rawio::xattr::set_at(&fd, name.as_bytes(), attribute, b"y").unwrap();
    }

    let root = Arc::new(SourceRoot::open(dir.path()).unwrap());
    let tree = scan(&root, |_| ()).unwrap().tree;
    let lazy = LazyTree::new(root).unwrap();
    let both: [&dyn Namespace; 2] = [&tree, &lazy];
    for names in both {
        let find = |name: &str| match name {
            "" => FileId::ROOT,
            name => names
                .lookup(FileId::ROOT, name.as_bytes())
                .unwrap()
                .unwrap(),
        };
        for (name, kind, device) in [
            ("null", NodeKind::CharDevice, 0x103),
            ("disk", NodeKind::BlockDevice, 0x1111_0370),
            ("whiteout", NodeKind::CharDevice, 0),
        ] {
            let attr = names.attr(find(name)).unwrap();
            assert_eq!((attr.kind, attr.rdev), (kind, device), "{name}");
        }
        let opaque = b"trusted.overlay.opaque";
        for name in ["null", "link", ""] {
            let value = names.xattr(find(name), opaque).unwrap();
            assert_eq!(value.as_deref(), Some(b"y".as_slice()), "{name:?}");
        }
        assert_eq!(names.xattr(find("disk"), opaque).unwrap(), None);
    }
}

#[test]
fn privileged_a_directory_is_opened_below_what_covers_it() {
    own_mounts();
    let dir = dir();
    let layer = dir.path().join("layer");
    fs::create_dir_all(layer.join("bin")).unwrap();
    fs::write(layer.join("bin/file"), b"plain").unwrap();
    let open = || {
        let root = Arc::new(SourceRoot::open_plain(&layer).unwrap());
        let tree = Arc::new(scan(&root, |_| ()).unwrap().tree);
        let file = tree.resolve(b"bin/file").expect("the plain file");
        let source = DirSource::new(Arc::clone(&root), Arc::clone(&tree) as Arc<_>);
        let mut bytes = [0; 5];
        let read = source.read_at(&tree.key(file).unwrap(), 0, &mut bytes);
        assert_eq!((read.unwrap(), &bytes), (5, b"plain"));
        (root.id(), root.path().to_owned())
    };
    let uncovered = open();
    assert_eq!(uncovered.0, SourceRoot::open(&layer).unwrap().id());
    mount_tmpfs(&layer);
    mount_tmpfs(&layer);
    assert_eq!(open(), uncovered);
    let missing = SourceRoot::open_plain(dir.path().join("missing")).unwrap_err();
    assert!(missing.to_string().contains("missing"), "{missing}");
    assert!(SourceRoot::open_plain(Path::new("/")).is_err());
}
