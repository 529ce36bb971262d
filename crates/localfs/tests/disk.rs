//! Disk images as sources.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::error::Error;
use std::fs;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use blocks::{BlockSource, FileId, Likeness, Namespace, NodeKind, SourceId, Tree, compare};
use localfs::{DirSource, DiskFormat, LiveTree, LocalError, SourceKind, SourceRoot, scan};
use proptest::prelude::*;

/// A qcow2 header of version 3, its extensions, and the name of a backing file.
fn qcow2(backing: Option<&str>, extensions: &[(u32, &[u8])], features: u64) -> Vec<u8> {
    let mut head = b"QFI\xfb".to_vec();
    let mut put = |number: &[u8]| head.extend_from_slice(number);
    put(&big(3, 4)); // version
    put(&big(0, 12)); // backing file: place and length, filled in below
    put(&[0; 52]);
    put(&big(features, 8));
    put(&big(0, 16)); // compatible and autoclear features
    put(&big(4, 4)); // refcount order
    put(&big(104, 4)); // header length
    for (kind, data) in extensions {
        put(&big((*kind).into(), 4));
        put(&big(data.len() as u64, 4));
        put(data);
        put(&vec![0; data.len().next_multiple_of(8) - data.len()]);
    }
    put(&[0; 8]);
    if let Some(name) = backing {
        let place = head.len() as u64;
        head[8..16].copy_from_slice(&big(place, 8));
        head[16..20].copy_from_slice(&big(name.len() as u64, 4));
        head.extend_from_slice(name.as_bytes());
    }
    head.resize(2000, 0);
    head
}

/// Big-endian, in the last `len` of sixteen bytes.
fn big(number: u64, len: usize) -> Vec<u8> {
    let digits = (0..len)
        .rev()
        .map(|i| number.checked_shr(8 * u32::try_from(i).unwrap()));
    digits
        .map(|d| u8::try_from(d.unwrap_or(0) & 0xff).unwrap())
        .collect()
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn names(tree: &Tree) -> Vec<String> {
    let names = tree
        .entries(FileId::ROOT)
        .map(|(name, _)| String::from_utf8(name.to_vec()));
    names.map(Result::unwrap).collect()
}

fn open_and_scan(path: &Path) -> (SourceRoot, Tree) {
    let root = SourceRoot::open(path).unwrap();
    let scanned = scan(&root, |_| ()).unwrap();
    assert!(scanned.report.is_clean(), "{:?}", scanned.report);
    (root, scanned.tree)
}

/// The error with all its causes, as a person sees it.
fn refusal(path: &Path) -> String {
    let error = SourceRoot::open(path).unwrap_err();
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        said += &format!(": {error}");
        cause = error.source();
    }
    said
}

#[test]
fn a_raw_image_is_a_directory_with_one_file() {
    let dir = dir();
    let path = dir.path().join("disk.raw");
    fs::write(&path, vec![7; 5000]).unwrap();
    fs::write(dir.path().join("neighbour"), b"").unwrap();
    let (root, tree) = open_and_scan(&path);
    let kind = SourceKind::Disk {
        name: "disk.raw".into(),
        format: DiskFormat::Raw,
    };
    assert_eq!(*root.kind(), kind);
    assert_eq!(names(&tree), ["disk.raw"]);
    let label = format!("disk:{}", fs::canonicalize(&path).unwrap().display());
    assert_eq!(root.label().to_str().unwrap(), label);
    assert_eq!(root.id(), SourceId::of_label(label.as_bytes()));
    assert!(root.statfs().unwrap().blocks() > 0);

    let tree = Arc::new(tree);
    let key = tree.key(tree.resolve(b"disk.raw").unwrap()).unwrap();
    let source = DirSource::new(Arc::new(root), tree);
    let mut buf = vec![0; 6000];
    assert_eq!(source.read_at(&key, 0, &mut buf).unwrap(), 5000);
    assert!(buf[..5000].iter().all(|byte| *byte == 7));
}

#[test]
fn a_directory_has_a_label_too() {
    let dir = dir();
    let root = SourceRoot::open(dir.path().join(".")).unwrap();
    let path = fs::canonicalize(dir.path()).unwrap();
    assert_eq!(
        root.label().to_str().unwrap(),
        format!("dir:{}", path.display())
    );
    assert_eq!(*root.kind(), SourceKind::Tree);
    assert_eq!(root.path(), path);
}

#[test]
fn neighbours_of_an_image_do_not_change_its_tree() {
    let dir = dir();
    let path = dir.path().join("disk.raw");
    fs::write(&path, b"bytes").unwrap();
    let (_, before) = open_and_scan(&path);
    fs::create_dir(dir.path().join("neighbour")).unwrap();
    let (_, after) = open_and_scan(&path);
    assert_eq!(compare(&before, &after, Likeness::SameSource), []);
}

#[test]
fn an_image_is_found_through_a_link_and_called_by_its_own_name() {
    let dir = dir();
    fs::write(dir.path().join("real"), b"bytes").unwrap();
    symlink("real", dir.path().join("link")).unwrap();
    let (_, tree) = open_and_scan(&dir.path().join("link"));
    assert_eq!(names(&tree), ["real"]);
}

#[test]
fn a_chain_in_one_directory_is_served_whole() {
    let dir = dir();
    let put = |name: &str, bytes: Vec<u8>| fs::write(dir.path().join(name), bytes).unwrap();
    put("top", qcow2(Some("./middle"), &[], 0));
    put("middle", qcow2(Some("base"), &[(0xe279_2aca, b"qcow2")], 0));
    put("base", qcow2(None, &[(0x4441_5441, b"base.data")], 4));
    put("base.data", vec![1; 100]);
    put("other", vec![]);
    let (root, tree) = open_and_scan(&dir.path().join("top"));
    assert_eq!(names(&tree), ["base", "base.data", "middle", "top"]);
    assert!(matches!(
        root.kind(),
        SourceKind::Disk {
            format: DiskFormat::Qcow2,
            ..
        }
    ));
    assert!(root.warnings().is_empty());
}

#[test]
fn a_backing_file_that_is_declared_raw_is_not_looked_into() {
    let dir = dir();
    fs::write(
        dir.path().join("top"),
        qcow2(Some("guest"), &[(0xe279_2aca, b"raw")], 0),
    )
    .unwrap();
    // What a guest may write to the start of its disk.
    fs::write(dir.path().join("guest"), qcow2(Some("secret"), &[], 0)).unwrap();
    fs::write(dir.path().join("secret"), b"x").unwrap();
    let (_, tree) = open_and_scan(&dir.path().join("top"));
    assert_eq!(names(&tree), ["guest", "top"]);
}

/// QEMU reads a backing file as it is declared, or as it looks: a vmdk there names any file of the machine.
#[test]
fn a_backing_file_of_a_format_that_names_files_is_refused() {
    let dir = dir();
    let put = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
    let declared: &[(u32, &[u8])] = &[(0xe279_2aca, b"vmdk")];
    put("declared", &qcow2(Some("plain"), declared, 0));
    put("plain", b"x");
    assert!(refusal(&dir.path().join("declared")).contains("is vmdk"));
    let text = b"# Disk DescriptorFile\nversion=1\nRW 8 FLAT \"/etc/shadow\" 0\n";
    for (name, bytes, format) in [
        ("text", &text[..], "vmdk"),
        ("sparse", b"KDMV", "vmdk"),
        ("old", b"COWD", "vmdk"),
        ("qed", b"QED\0", "qed"),
    ] {
        put(name, bytes);
        put("top", &qcow2(Some(name), &[], 0));
        let said = refusal(&dir.path().join("top"));
        assert!(said.contains(&format!("is {format}")), "{name}: {said}");
        // As bytes of a disk they name nothing.
        put("top", &qcow2(Some(name), &[(0xe279_2aca, b"raw")], 0));
        let (_, tree) = open_and_scan(&dir.path().join("top"));
        assert_eq!(names(&tree).len(), 2, "{name}");
    }
}

/// QEMU ends with the extensions where the name of the backing file begins.
#[test]
fn an_extension_behind_the_name_of_the_backing_file_declares_nothing() {
    let dir = dir();
    let mut top = qcow2(None, &[(0x1234_5678, b"")], 0);
    // The name is read as a kind, the length behind it as none; "raw" follows.
    top[8..16].copy_from_slice(&big(112, 8));
    top[16..20].copy_from_slice(&big(4, 4));
    top[112..120].copy_from_slice(b"base\0\0\0\0");
    top[120..124].copy_from_slice(&big(0xe279_2aca, 4));
    top[124..128].copy_from_slice(&big(3, 4));
    top[128..131].copy_from_slice(b"raw");
    fs::write(dir.path().join("top"), top).unwrap();
    fs::write(dir.path().join("base"), qcow2(Some("/secret"), &[], 0)).unwrap();
    let (root, tree) = open_and_scan(&dir.path().join("top"));
    assert_eq!(names(&tree), ["base", "top"]);
    assert_eq!(root.warnings().len(), 1, "the chain goes on");
}

#[test]
fn an_absolute_backing_file_is_a_warning() {
    let dir = dir();
    fs::write(dir.path().join("top"), qcow2(Some("/images/base"), &[], 0)).unwrap();
    let (root, tree) = open_and_scan(&dir.path().join("top"));
    assert_eq!(names(&tree), ["top"]);
    assert_eq!(root.warnings().len(), 1);
    assert!(
        root.warnings()[0].contains("\"/images/base\""),
        "{:?}",
        root.warnings()
    );
}

#[test]
fn what_cannot_be_served_is_said() {
    let dir = dir();
    let put = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
    let cases: [(&str, Vec<u8>, &str); 8] = [
        ("up", qcow2(Some("../base"), &[], 0), "qemu-img rebase -u"),
        (
            "sub",
            qcow2(Some("sub/base"), &[], 0),
            "not in its own directory",
        ),
        (
            "proto",
            qcow2(Some("nbd:host:10809"), &[], 0),
            "not in its own directory",
        ),
        ("loop", qcow2(Some("loop"), &[], 0), "a loop"),
        (
            "missing",
            qcow2(Some("nothing"), &[], 0),
            "\"nothing\", which \"missing\" is based on",
        ),
        (
            "damaged",
            qcow2(Some("x"), &[], 0)[..30].to_vec(),
            "its header is damaged",
        ),
        ("data", qcow2(None, &[], 4), "its header is damaged"),
        (
            "version",
            [&b"QFI\xfb"[..], &big(9, 4)].concat(),
            "its version is 9",
        ),
    ];
    for (name, bytes, words) in cases {
        put(name, &bytes);
        let said = refusal(&dir.path().join(name));
        assert!(said.contains(words), "{name}: {said}");
    }
}

#[test]
fn chains_are_followed_so_far_and_no_further() {
    let dir = dir();
    for i in 0..80 {
        let bytes = qcow2(Some(&format!("{}", i + 1)), &[], 0);
        fs::write(dir.path().join(format!("{i}")), bytes).unwrap();
    }
    fs::write(dir.path().join("80"), b"raw").unwrap();
    assert!(refusal(&dir.path().join("0")).contains("longer than 64 files"));
    let (_, tree) = open_and_scan(&dir.path().join("20"));
    assert_eq!(tree.entries(FileId::ROOT).len(), 61);
}

#[test]
fn links_in_a_chain_are_not_followed() {
    let dir = dir();
    let outside = tempfile::NamedTempFile::new().unwrap();
    fs::write(dir.path().join("top"), qcow2(Some("base"), &[], 0)).unwrap();
    symlink(outside.path(), dir.path().join("base")).unwrap();
    let error = SourceRoot::open(dir.path().join("top")).unwrap_err();
    assert!(matches!(error, LocalError::Backing { .. }), "{error:?}");
}

#[test]
fn what_is_no_source_is_refused() {
    let dir = dir();
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
    let error = SourceRoot::open(&pipe).unwrap_err();
    assert!(matches!(error, LocalError::NotASource { .. }));
    let error = SourceRoot::open("/dev/null").unwrap_err();
    assert!(matches!(error, LocalError::NotASource { .. }));
    let error = SourceRoot::open(dir.path().join("nothing")).unwrap_err();
    assert!(matches!(error, LocalError::Open { .. }));
}

#[test]
fn a_live_disk_shows_its_chain_and_nothing_else() {
    let dir = dir();
    fs::write(dir.path().join("top"), qcow2(Some("base"), &[], 0)).unwrap();
    fs::write(dir.path().join("base"), b"raw").unwrap();
    fs::write(dir.path().join("other"), b"").unwrap();
    let (root, tree) = open_and_scan(&dir.path().join("top"));
    let root = Arc::new(root);
    let tree = Arc::new(tree);
    let live = LiveTree::new(Arc::clone(&root), Arc::clone(&tree), Duration::ZERO).unwrap();
    let mut shown = Vec::new();
    let mut cursor = 0;
    for _ in 0..3 {
        live.list(FileId::ROOT, cursor, &mut |entry| {
            shown.push(entry.name.to_vec());
            cursor = entry.next;
            ControlFlow::Break(())
        })
        .unwrap();
    }
    assert_eq!(shown, [b"base".to_vec(), b"top".to_vec()]);
    assert_eq!(live.lookup(FileId::ROOT, b"other").unwrap(), None);
    let base = live.lookup(FileId::ROOT, b"base").unwrap();
    assert_eq!(base, tree.resolve(b"base"));
    let attr = live.attr(FileId::ROOT).unwrap();
    assert_eq!(attr, tree.inode(FileId::ROOT).unwrap().attr);
    assert_eq!(attr.kind, NodeKind::Dir);
    let file = fs::File::options()
        .write(true)
        .open(dir.path().join("base"))
        .unwrap();
    file.write_all_at(b"written", 0).unwrap();
    assert_eq!(live.attr(base.unwrap()).unwrap().size, 7);
    fs::remove_file(dir.path().join("base")).unwrap();
    assert!(live.attr(base.unwrap()).is_err());
    assert_eq!(live.lookup(FileId::ROOT, b"base").unwrap(), None);
}

proptest! {
    /// A header is a stranger's bytes.
    #[test]
    fn damaged_headers_never_panic(
        changes in prop::collection::vec((0..200_usize, any::<u8>()), 1..20),
        len in 0..300_usize,
    ) {
        let mut head = qcow2(Some("base"), &[(0xe279_2aca, b"raw"), (0x4441_5441, b"data")], 4);
        for (at, byte) in changes {
            head[at] = byte;
        }
        head.truncate(len.max(4));
        head[..4].copy_from_slice(b"QFI\xfb");
        let dir = dir();
        fs::write(dir.path().join("image"), &head).unwrap();
        if let Ok(root) = SourceRoot::open(dir.path().join("image")) {
            let tree = scan(&root, |_| ()).unwrap().tree;
            prop_assert_eq!(names(&tree), ["image"]);
        }
    }
}

#[test]
fn a_source_is_resumed_by_its_descriptor_and_label() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    fs::write(path.join("disk.raw"), [7; 4096]).unwrap();
    for given in [path.clone(), path.join("disk.raw")] {
        let opened = SourceRoot::open(&given).unwrap();
        let fd = opened.as_fd();
        let label = SourceRoot::label_of(fd, &given).unwrap();
        assert_eq!(label, opened.label());
        let again = fd.try_clone_to_owned().unwrap();
        let again = SourceRoot::resume(again, label.as_bytes()).unwrap();
        assert_eq!((again.kind(), again.path()), (opened.kind(), opened.path()));
        assert_eq!(again.id(), opened.id());
        let elsewhere = SourceRoot::label_of(fd, &path.join("a/b/c")).unwrap_err();
        assert!(elsewhere.to_string().contains("symbolic links"));
    }
    for label in [&b""[..], b"dir", b"file:/x", b"disk:/"] {
        let fd = fs::File::open(&path).unwrap().into();
        assert!(SourceRoot::resume(fd, label).is_err());
    }
}
