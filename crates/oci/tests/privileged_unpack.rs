//! Layers made into directories: what comes out is what went in, and nothing gets out.

#![cfg(feature = "privileged")]
#![allow(
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "a test that cannot go on has failed"
)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use oci::unpack::{Devices, Limits, TarError, UnpackError, Unpacked, unpack};
use oci::{LayerBlob, digest_of};
use proptest::prelude::*;
use tar::EntryType;
use tempfile::TempDir;
use testkit::layouts::{gzip, layer, run};

/// A directory with a place to unpack to, and something beside it that must stay as it is.
struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "this test needs root");
        let bench = Self {
            dir: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
        };
        fs::create_dir(bench.path("out")).unwrap();
        fs::create_dir(bench.path("beside")).unwrap();
        fs::write(bench.path("beside/secret"), "secret").unwrap();
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn unpack(&self, tar: &[u8]) -> Result<Unpacked, UnpackError> {
        self.unpack_with(tar, tar, &Limits::default())
    }

    fn unpack_with(
        &self,
        blob: &[u8],
        tar: &[u8],
        limits: &Limits,
    ) -> Result<Unpacked, UnpackError> {
        fs::write(self.path("blob"), blob).unwrap();
        let layer = LayerBlob::from_file(&self.path("blob"), digest_of(tar)).unwrap();
        unpack(&layer, &self.path("out"), limits, &mut |_| {
            ControlFlow::Continue(())
        })
    }

    fn again(&self) {
        fs::remove_dir_all(self.path("out")).unwrap();
        fs::create_dir(self.path("out")).unwrap();
    }
}

/// All that can be said of a tree, by path.
fn describe(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut inodes = BTreeMap::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for path in fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            let meta = fs::symlink_metadata(&path).unwrap();
            let (kind, name) = (
                meta.file_type(),
                path.strip_prefix(root).unwrap().to_owned(),
            );
            let content = if kind.is_file() {
                format!("{:?}", fs::read(&path).unwrap())
            } else if kind.is_symlink() {
                format!("{:?}", fs::read_link(&path).unwrap())
            } else if kind.is_dir() {
                dirs.push(path.clone());
                String::new()
            } else {
                format!("{}", meta.rdev())
            };
            let first = inodes
                .entry(meta.ino())
                .or_insert_with(|| name.clone())
                .clone();
            let linked = if meta.nlink() > 1 && kind.is_file() {
                meta.nlink()
            } else {
                0
            };
            let text = format!(
                "{:o} {}:{} {}.{:09} {linked} {content} {}",
                meta.mode(),
                meta.uid(),
                meta.gid(),
                meta.mtime(),
                meta.mtime_nsec(),
                xattrs(&path)
            );
            found.insert(name, text);
            drop(first);
        }
    }
    found
}

fn xattrs(path: &Path) -> String {
    let output = Command::new("getfattr")
        .args(["-h", "-d", "-m", "-", "-e", "hex", "--absolute-names"])
        .arg(path)
        .output()
        .unwrap();
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .skip(1)
        .collect()
}

fn make_tree(root: &Path) {
    let at = |name: &str| root.join(name);
    let text = |name: &str| at(name).to_str().unwrap().to_owned();
    let deep = format!("{}/{}", "d".repeat(120), "e".repeat(200));
    fs::create_dir_all(at(&deep)).unwrap();
    fs::create_dir(at("etc")).unwrap();
    fs::write(at("etc/a"), "some text").unwrap();
    fs::write(at(&format!("{deep}/long")), vec![7; 100_000]).unwrap();
    fs::write(at("empty"), "").unwrap();
    fs::write(at("name with \n and \u{e9}"), "x").unwrap();
    fs::hard_link(at("etc/a"), at("linked")).unwrap();
    std::os::unix::fs::symlink("/etc/../etc/a", at("symlink")).unwrap();
    fs::write(at("setuid"), "#!").unwrap();
    std::os::unix::fs::chown(at("setuid"), Some(1234), Some(70_000)).unwrap();
    fs::set_permissions(at("setuid"), fs::Permissions::from_mode(0o6751)).unwrap();
    fs::set_permissions(at("etc"), fs::Permissions::from_mode(0o1777)).unwrap();
    run("mknod", &[&text("device"), "c", "1", "3"]);
    run("mkfifo", &[&text("fifo")]);
    run(
        "setfattr",
        &["-n", "user.note", "-v", "0x610a003d0a", &text("etc/a")],
    );
    run("setfattr", &["-n", "user.dir", "-v", "0x01", &text("etc")]);
    run("setcap", &["cap_net_raw+ep", &text("setuid")]);
    run(
        "touch",
        &["-h", "-d", "@1600000000.123456789", &text("symlink")],
    );
    run("touch", &["-d", "@-1.5", &text("empty")]);
    run("touch", &["-d", "@1500000000.000000001", &text("etc")]);
}

fn gnu_tar(root: &Path, to: &Path) -> Vec<u8> {
    let args = [
        "--format=posix",
        "--xattrs",
        "--xattrs-include=*",
        "--numeric-owner",
        "-cf",
    ];
    let output = Command::new("tar")
        .args(args)
        .arg(to)
        .arg("-C")
        .arg(root)
        .arg(".")
        .output();
    let output = output.unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    fs::read(to).unwrap()
}

#[test]
fn privileged_what_tar_packed_comes_out_the_same() {
    let bench = Bench::new();
    fs::create_dir(bench.path("tree")).unwrap();
    make_tree(&bench.path("tree"));
    let tar = gnu_tar(&bench.path("tree"), &bench.path("tar"));
    let packed = zstd::encode_all(tar.as_slice(), 3).unwrap();
    for blob in [&tar, &gzip(&tar), &packed] {
        let done = bench.unpack_with(blob, &tar, &Limits::default()).unwrap();
        assert_eq!(describe(&bench.path("out")), describe(&bench.path("tree")));
        assert_eq!((done.entries, done.skipped_xattrs), (13, 0));
        bench.again();
    }
}

/// The older format has no attributes and no nanoseconds, and other headers for long names.
#[test]
fn privileged_long_names_of_the_gnu_format_come_out_the_same() {
    let bench = Bench::new();
    let long = format!("{}/{}", "d".repeat(120), "e".repeat(200));
    let tree = bench.path("tree");
    fs::create_dir_all(tree.join(&long)).unwrap();
    fs::write(tree.join(&long).join("file"), "content").unwrap();
    std::os::unix::fs::symlink(&long, tree.join("link")).unwrap();
    fs::hard_link(tree.join(&long).join("file"), tree.join("hard")).unwrap();
    let mut args = vec!["--no-xattrs", "-cf", "-"];
    args.extend(["--format=gnu", "-C", tree.to_str().unwrap(), "."]);
    let tar = Command::new("tar").args(args).output().unwrap().stdout;
    bench.unpack(&tar).unwrap();
    let names = |root: &Path| describe(root).into_keys().collect::<Vec<_>>();
    let out = bench.path("out");
    assert_eq!(names(&out), names(&tree));
    assert_eq!(fs::read_link(out.join("link")).unwrap(), Path::new(&long));
    assert_eq!(fs::read(out.join("hard")).unwrap(), b"content");
    assert_eq!(fs::metadata(out.join("hard")).unwrap().nlink(), 2);
}

fn entry(name: &str, kind: EntryType, target: &str) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_gnu_mut().unwrap().linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o755);
    header.set_size(if kind.is_file() { 1 } else { 0 });
    for set in [
        tar::Header::set_uid,
        tar::Header::set_gid,
        tar::Header::set_mtime,
    ] {
        set(&mut header, 0);
    }
    if kind.is_character_special() {
        header.set_device_major(0).unwrap();
        header.set_device_minor(0).unwrap();
    }
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    if kind.is_file() {
        bytes.extend([b'x'; 1]);
        bytes.resize(1024, 0);
    }
    bytes
}

const FILE: EntryType = EntryType::Regular;
const DIR: EntryType = EntryType::Directory;
const SYMLINK: EntryType = EntryType::Symlink;
const LINK: EntryType = EntryType::Link;

fn tar_of(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
    let entries = entries.iter();
    entries
        .flat_map(|(name, kind, target)| entry(name, *kind, target))
        .collect()
}

/// Two layers under a real overlay: what the upper one deleted is gone.
#[test]
fn privileged_overlayfs_understands_what_was_deleted() {
    let bench = Bench::new();
    let (low, top) = (bench.path("low"), bench.path("top"));
    bench
        .unpack(&layer(&[
            ("a/gone", b"1"),
            ("a/stays", b"1"),
            ("b/old", b"1"),
            ("c/old", b"1"),
        ]))
        .unwrap();
    fs::rename(bench.path("out"), &low).unwrap();
    fs::create_dir(bench.path("out")).unwrap();
    let upper = tar_of(&[
        ("a/.wh.gone", FILE, ""),
        ("a/.wh.never-was", FILE, ""),
        ("b/.wh..wh..opq", FILE, ""),
        ("b/new", FILE, ""),
        (".wh..wh.plnk", FILE, ""),
        // Deleted and made anew, in both orders.
        (".wh.c", FILE, ""),
        ("c", DIR, ""),
        ("c/new", FILE, ""),
    ]);
    bench.unpack(&upper).unwrap();
    fs::rename(bench.path("out"), &top).unwrap();
    assert!(
        fs::symlink_metadata(top.join("a/gone"))
            .unwrap()
            .file_type()
            .is_char_device()
    );
    let merged = bench.path("beside/merged");
    fs::create_dir(&merged).unwrap();
    let lower = format!("lowerdir={}:{}", top.display(), low.display());
    run(
        "mount",
        &[
            "-t",
            "overlay",
            "-o",
            &lower,
            "overlay",
            merged.to_str().unwrap(),
        ],
    );
    let names = describe(&merged).into_keys().collect::<Vec<_>>();
    run("umount", &[merged.to_str().unwrap()]);
    let names: Vec<_> = names.iter().map(|name| name.to_str().unwrap()).collect();
    assert_eq!(names, ["a", "a/stays", "b", "b/new", "c", "c/new"]);
}

#[test]
fn privileged_a_directory_deleted_after_it_was_made_is_opaque() {
    let bench = Bench::new();
    bench
        .unpack(&tar_of(&[
            ("c", DIR, ""),
            (".wh.c", FILE, ""),
            ("f", FILE, ""),
            (".wh.f", FILE, ""),
        ]))
        .unwrap();
    assert!(xattrs(&bench.path("out/c")).contains("trusted.overlay.opaque=0x79"));
    assert_eq!(fs::read(bench.path("out/f")).unwrap(), b"x");
}

#[test]
fn privileged_what_leads_out_is_refused_or_stays_inside() {
    let bench = Bench::new();
    for bad in [
        [("../beside/new", FILE, ""), ("a", DIR, "")],
        [("a/../../beside/new", FILE, ""), ("a", DIR, "")],
        [("a", SYMLINK, "../beside"), ("a/../../x", FILE, "")],
        [("a", LINK, "../beside/secret"), ("b", DIR, "")],
        [("a", SYMLINK, "/nowhere"), ("a/new", FILE, "")],
        [("a", LINK, "not/there"), ("b", DIR, "")],
        [("a", EntryType::Char, ""), ("b", DIR, "")],
        [("a/.wh.", FILE, ""), ("b", DIR, "")],
        [("a/.wh...", FILE, ""), ("b", DIR, "")],
        [("a", FILE, ""), ("a/b", FILE, "")],
        [("", FILE, ""), ("b", DIR, "")],
        [("a", EntryType::GNUSparse, ""), ("b", DIR, "")],
        [("a", EntryType::new(b'?'), ""), ("b", DIR, "")],
    ] {
        bench.again();
        let error = bench.unpack(&tar_of(&bad));
        assert!(
            matches!(
                error,
                Err(UnpackError::Entry { .. } | UnpackError::Layer { .. })
            ),
            "{bad:?}: {error:?}"
        );
        assert_eq!(fs::read_dir(bench.path("beside")).unwrap().count(), 1);
    }
    // Absolute names and targets mean the layer's own root, as they do for who runs it.
    bench.again();
    let inside = [
        ("/etc", DIR, ""),
        ("conf", SYMLINK, "/etc"),
        ("conf/a", FILE, ""),
        ("/b", LINK, "/etc/a"),
    ];
    bench.unpack(&tar_of(&inside)).unwrap();
    assert_eq!(fs::read(bench.path("out/b")).unwrap(), b"x");
    assert_eq!(fs::read(bench.path("out/etc/a")).unwrap(), b"x");
}

#[test]
fn privileged_links_to_other_layers_say_so() {
    let bench = Bench::new();
    let error = bench
        .unpack(&tar_of(&[("a", LINK, "etc/passwd")]))
        .unwrap_err();
    let UnpackError::Entry { name, source, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(name, "a");
    assert!(matches!(source, TarError::HardLink { target } if target == "etc/passwd"));
}

#[test]
fn privileged_limits_hold_and_damage_is_noticed() {
    let bench = Bench::new();
    let tar = layer(&[("a", b"1"), ("b", b"2")]);
    let few = Limits {
        entries: 1,
        ..Limits::default()
    };
    assert!(
        bench
            .unpack_with(&tar, &tar, &few)
            .unwrap_err()
            .to_string()
            .contains("\"b\"")
    );
    bench.again();
    let bomb = layer(&[("zeros", &vec![0; 8 << 20])]);
    let small = Limits {
        bytes: 1 << 20,
        ..Limits::default()
    };
    for blob in [gzip(&bomb), zstd::encode_all(bomb.as_slice(), 3).unwrap()] {
        let error = bench.unpack_with(&blob, &bomb, &small).unwrap_err();
        assert!(matches!(error, UnpackError::Entry { .. }), "{error:?}");
        assert!(fs::metadata(bench.path("out/zeros")).unwrap().len() <= 1 << 20);
        bench.again();
    }
    let other = layer(&[("a", b"1"), ("b", b"3")]);
    let error = bench
        .unpack_with(&other, &tar, &Limits::default())
        .unwrap_err();
    assert!(matches!(error, UnpackError::Damaged { .. }), "{error:?}");
    bench.again();
    let no_devices = Limits {
        devices: Devices::Refused,
        ..Limits::default()
    };
    fs::create_dir(bench.path("tree")).unwrap();
    run(
        "mknod",
        &[bench.path("tree/null").to_str().unwrap(), "c", "1", "3"],
    );
    let devices = gnu_tar(&bench.path("tree"), &bench.path("tar"));
    let error = bench
        .unpack_with(&devices, &devices, &no_devices)
        .unwrap_err();
    assert!(
        matches!(
            error,
            UnpackError::Entry {
                source: TarError::Device,
                ..
            }
        ),
        "{error:?}"
    );
}

/// Returns a tar with one empty file, so deep in directories that no entry is about.
fn one_deep(levels: usize) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    header.set_mode(0o644);
    let name = "d/".repeat(levels) + "file";
    tar.append_data(&mut header, name, &b""[..]).unwrap();
    tar.into_inner().unwrap()
}

/// What a few bytes ask for is counted where it is made, on a disk as in memory.
#[test]
fn privileged_directories_without_entries_and_attributes_are_counted() {
    let bench = Bench::new();
    let refused = |tar: &[u8], limits: &Limits, why: &str| {
        let error = bench.unpack_with(tar, tar, limits).unwrap_err();
        let (UnpackError::Entry { source, .. } | UnpackError::Layer { source, .. }) = error else {
            panic!("{error:?}");
        };
        assert!(source.to_string().contains(why), "{source}");
        let made = describe(&bench.path("out")).len();
        bench.again();
        made
    };
    let few = Limits {
        implied: 40,
        ..Limits::default()
    };
    let why = "more directories without entries than allowed";
    assert_eq!(refused(&one_deep(50), &few, why), 41);
    assert!(
        bench
            .unpack_with(&one_deep(40), &one_deep(40), &few)
            .is_ok()
    );
    bench.again();
    let entries = Limits {
        entries: 40,
        ..Limits::default()
    };
    // The file is one, too.
    assert_eq!(refused(&one_deep(50), &entries, "more entries than"), 40);
    let deep = "more levels of directories than allowed";
    assert_eq!(refused(&one_deep(512), &Limits::default(), deep), 0);
    let memory = Limits {
        memory: 10_000,
        ..Limits::default()
    };
    assert!(refused(&one_deep(500), &memory, "more to remember than allowed") < 100);
    let names = Limits {
        names: 1000,
        ..Limits::default()
    };
    let mut tar = tar::Builder::new(Vec::new());
    let value = "v".repeat(900);
    let value = value.as_bytes();
    for name in ["a", "b"] {
        tar.append_pax_extensions([("SCHILY.xattr.user.x", value)])
            .unwrap();
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        tar.append_data(&mut header, name, &b""[..]).unwrap();
    }
    let tar = tar.into_inner().unwrap();
    refused(&tar, &names, "more bytes of names and attributes than");
}

/// Attributes that would lead overlayfs astray stay out.
#[test]
fn privileged_attributes_of_overlayfs_are_left_out() {
    let bench = Bench::new();
    let record = |key: &str, value: &str| {
        let len = key.len() + value.len() + 5; // two digits, a space, '=' and the newline
        format!("{len} {key}={value}\n")
    };
    let records = record("SCHILY.xattr.trusted.overlay.redirect", "/x")
        + &record("SCHILY.xattr.user.overlay.opaque", "y")
        + &record("SCHILY.xattr.user.fine", "y");
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(EntryType::XHeader);
    header.set_size(records.len() as u64);
    header.set_cksum();
    tar.append(&header, records.as_bytes()).unwrap();
    let mut tar = tar.into_inner().unwrap();
    tar.truncate(tar.len() - 1024);
    tar.extend(entry("d", DIR, ""));
    let done = bench.unpack(&tar).unwrap();
    assert_eq!(done.skipped_xattrs, 2);
    assert_eq!(xattrs(&bench.path("out/d")), "user.fine=0x79");
}

#[test]
fn privileged_a_tar_cut_short_or_cancelled_is_an_error() {
    let bench = Bench::new();
    let tar = layer(&[("a", &[1; 2000]), ("b", b"2")]);
    for len in (0..tar.len()).step_by(100) {
        let error = bench.unpack_with(&tar[..len], &tar, &Limits::default());
        assert!(error.is_err(), "{len}");
        bench.again();
    }
    fs::write(bench.path("blob"), &tar).unwrap();
    let blob = LayerBlob::from_file(&bench.path("blob"), digest_of(&tar)).unwrap();
    let mut cancel = |_| ControlFlow::Break(());
    let error = unpack(&blob, &bench.path("out"), &Limits::default(), &mut cancel).unwrap_err();
    assert!(matches!(error, UnpackError::Cancelled), "{error:?}");
}

/// Names and targets that try everything, and meet each other.
fn hostile_entry() -> impl Strategy<Value = (String, EntryType, String)> {
    let part = prop::sample::select(vec![
        "a",
        "b",
        "..",
        ".",
        "",
        "/",
        ".wh.a",
        ".wh..wh..opq",
        "beside",
        "secret",
    ]);
    let path = prop::collection::vec(part, 1..5).prop_map(|parts| parts.join("/"));
    let kind = prop::sample::select(vec![
        FILE,
        DIR,
        SYMLINK,
        LINK,
        EntryType::Char,
        EntryType::Fifo,
    ]);
    (path.clone(), kind, path)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn privileged_nothing_gets_out(entries in prop::collection::vec(hostile_entry(), 1..12), flip in 0_usize..4096) {
        let bench = Bench::new();
        let before = describe(&bench.path("beside"));
        let entries: Vec<_> = entries.iter().map(|(name, kind, target)| (name.as_str(), *kind, target.as_str())).collect();
        let mut tar = tar_of(&entries);
        // Whether it works does not matter here.
        let _result = bench.unpack(&tar);
        prop_assert_eq!(describe(&bench.path("beside")), before.clone());
        bench.again();
        let place = flip % tar.len();
        tar[place] ^= 0x41;
        let _result = bench.unpack(&tar);
        prop_assert_eq!(describe(&bench.path("beside")), before);
        File::open(bench.path("out")).unwrap();
    }
}
