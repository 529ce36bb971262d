//! A mount is the twin of its source, and an overlay on the mount is the twin of one on the
//! source.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::twin::{Times, assert_twins};
use lab::{Lab, busybox_root, noise, ok};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

/// Makes a tree with one of everything that a layer can hold.
fn one_of_everything(root: &Path) {
    busybox_root(root);
    let join = |name: &str| root.join(name);
    fs::write(join("empty"), "").unwrap();
    fs::write(join("etc/shadow"), "secret").unwrap();
    fs::set_permissions(join("etc/shadow"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(join("bin/su"), "suid").unwrap();
    std::os::unix::fs::chown(join("bin/su"), Some(1234), Some(5678)).unwrap();
    fs::set_permissions(join("bin/su"), fs::Permissions::from_mode(0o6755)).unwrap();
    fs::set_permissions(join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    fs::hard_link(join("etc/shadow"), join("etc/shadow-")).unwrap();
    fs::hard_link(join("etc/shadow"), join("usr/third name")).unwrap();
    symlink("nowhere/at/all", join("dangling")).unwrap();
    symlink("/".repeat(4095), join("long link")).unwrap();
    let device = |name: &str, kind, major, minor| {
        mknod(
            &join(name),
            kind,
            Mode::from_bits_truncate(0o620),
            makedev(major, minor),
        )
        .unwrap();
    };
    device("dev/null", SFlag::S_IFCHR, 1, 3);
    device("dev/far", SFlag::S_IFBLK, 4095, 1_048_575);
    device("dev/pipe", SFlag::S_IFIFO, 0, 0);
    drop(std::os::unix::net::UnixListener::bind(join("dev/socket")).unwrap());
    fs::write(join(&"n".repeat(255)), "long name").unwrap();
    fs::write(
        root.join(OsStr::from_bytes(b"not \xff\xfe UTF-8\n")),
        "odd name",
    )
    .unwrap();
    let deep: PathBuf = std::iter::repeat_n("d", 60).collect();
    fs::create_dir_all(root.join(&deep)).unwrap();
    fs::write(root.join(&deep).join("leaf"), noise(5, 5000)).unwrap();
    let sparse = File::create(join("sparse")).unwrap();
    sparse.set_len((5 << 30) + 123).unwrap();
    sparse
        .write_all_at(b"beyond 4 GiB", (4 << 30) + 4090)
        .unwrap();
    for (name, value) in [
        ("user.note", "hello"),
        ("trusted.secret", "\u{0}x"),
        ("user.empty", ""),
    ] {
        set_xattr(&join("etc/config"), name, value.as_bytes());
    }
    // cap_net_raw=ep, as `setcap` would write it: version 2, one permitted capability.
    let mut capability = [0; 20];
    capability[..4].copy_from_slice(&0x0200_0001_u32.to_le_bytes());
    capability[4..8].copy_from_slice(&(1_u32 << 13).to_le_bytes());
    set_xattr(&join("bin/busybox"), "security.capability", &capability);
    let old = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    File::open(join("etc/config"))
        .unwrap()
        .set_modified(old)
        .unwrap();
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    let value = value
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<String>();
    ok(Command::new("setfattr")
        .args(["-n", name, "-v", &format!("0x{value}")])
        .arg(path));
}

#[test]
fn privileged_a_mount_has_one_of_everything() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    one_of_everything(&root);
    for flags in [
        &["--mode", "lower"][..],
        &["--mode", "disk"],
        &["--revalidate", "0.2"],
    ] {
        let mountpoint = lab.mount(&root, "mnt", flags);
        assert_twins(&root, &mountpoint, Times::Compared);
        lab.umount(&mountpoint);
    }
}

#[test]
fn privileged_a_recorded_mount_has_one_of_everything() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    one_of_everything(&root);
    ok(lab
        .bootimg()
        .args(["record", "--name", "all"])
        .arg(&root)
        .args([
            "--",
            "sh",
            "-c",
            "find / -xdev > /dev/null; cat /usr/lib/* /etc/* > /dev/null",
        ]));
    for flags in [
        &["--wait-prewarm"][..],
        &["--no-inject"],
        &["--trust", "--wait-prewarm"],
    ] {
        let mountpoint = lab.mount(&root, "mnt", flags);
        assert_twins(&root, &mountpoint, Times::Compared);
        lab.umount(&mountpoint);
    }
}

#[test]
fn privileged_a_whole_debian_is_identical() {
    let lab = Lab::new();
    let root = lab::debian_root();
    ok(lab
        .bootimg()
        .args(["record", "--name", "debian"])
        .arg(&root)
        .args(["--", "python3", "-c", "import json, ssl, http.client"]));
    let mountpoint = lab.mount(&root, "mnt", &["--boot", "debian", "--wait-prewarm"]);
    assert_twins(&root, &mountpoint, Times::Compared);
    lab.umount(&mountpoint);
}

/// Overlays `layers` (topmost first) with an upper layer of their own, below `name`.
fn overlay(lab: &Lab, name: &str, layers: &[&Path]) -> PathBuf {
    let dir = lab.make_dir(name);
    ok(Command::new("mount")
        .args(["-t", "tmpfs", "tmpfs"])
        .arg(&dir));
    for part in ["upper", "work", "merged"] {
        fs::create_dir(dir.join(part)).unwrap();
    }
    let lower: Vec<_> = layers.iter().map(|layer| layer.to_str().unwrap()).collect();
    let options = format!(
        "lowerdir={},upperdir={dir}/upper,workdir={dir}/work",
        lower.join(":"),
        dir = dir.display()
    );
    ok(Command::new("mount")
        .args(["-t", "overlay", "overlay", "-o", &options])
        .arg(dir.join("merged")));
    // The root's own time is that of the new upper layer.
    File::open(dir.join("merged"))
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH)
        .unwrap();
    dir.join("merged")
}

/// Makes a layer that hides parts of [`one_of_everything`]: a whiteout for a file, one for a
/// directory, and an opaque directory.
fn hiding_layer(root: &Path) {
    fs::create_dir_all(root.join("etc")).unwrap();
    fs::create_dir_all(root.join("usr/lib")).unwrap();
    let whiteout = |name: &str| {
        mknod(
            &root.join(name),
            SFlag::S_IFCHR,
            Mode::empty(),
            makedev(0, 0),
        )
        .unwrap();
    };
    whiteout("empty");
    whiteout("d");
    set_xattr(&root.join("usr/lib"), "trusted.overlay.opaque", b"y");
    fs::write(root.join("usr/lib/only"), "this one shows").unwrap();
    fs::write(root.join("etc/config"), "answer = 43\n").unwrap();
}

#[test]
fn privileged_an_overlay_on_the_mount_is_the_twin_of_one_on_the_source() {
    let lab = Lab::new();
    let (base, hiding) = (lab.make_dir("base"), lab.make_dir("hiding"));
    one_of_everything(&base);
    hiding_layer(&hiding);
    let mounts = [lab.mount(&hiding, "m1", &[]), lab.mount(&base, "m2", &[])];
    let plain = overlay(&lab, "plain", &[&hiding, &base]);
    let served = overlay(&lab, "served", &[&mounts[0], &mounts[1]]);
    assert!(
        !served.join("empty").exists() && !served.join("d").exists(),
        "whiteouts hide"
    );
    assert_eq!(
        fs::read_dir(served.join("usr/lib")).unwrap().count(),
        1,
        "opaque directories hide"
    );
    assert_twins(&plain, &served, Times::Modified);
    for merged in [&plain, &served] {
        change(merged);
    }
    assert_twins(&plain, &served, Times::Ignored);
    assert_eq!(
        fs::read_to_string(served.join("etc/config")).unwrap(),
        "answer = 43\nmore\n"
    );
    for merged in [&plain, &served] {
        ok(Command::new("umount").arg(merged));
        ok(Command::new("umount").arg(merged.parent().unwrap()));
    }
    assert_twins(&base, &mounts[1], Times::Compared);
}

/// What containers do to their root: copy-ups by writing, by attributes and by renaming, removals
/// and replacements.
fn change(root: &Path) {
    let join = |name: &str| root.join(name);
    let mut config = fs::read_to_string(join("etc/config")).unwrap();
    config.push_str("more\n");
    fs::write(join("etc/config"), config).unwrap();
    File::options()
        .write(true)
        .open(join("bin/busybox"))
        .unwrap()
        .write_all_at(b"x", 100)
        .unwrap();
    fs::set_permissions(join("bin/su"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::rename(join("dangling"), join("renamed link")).unwrap();
    fs::rename(join("usr/third name"), join("etc/third")).unwrap();
    fs::remove_file(join("etc/shadow-")).unwrap();
    fs::remove_dir_all(join("usr/lib")).unwrap();
    fs::create_dir(join("usr/lib")).unwrap();
    fs::write(join("usr/lib/new"), noise(9, 9000)).unwrap();
    fs::write(join("d"), "a file where a directory was").unwrap();
    set_xattr(&join("bin/cat"), "trusted.new", b"1");
}
