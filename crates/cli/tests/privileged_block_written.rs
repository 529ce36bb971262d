//! File systems on devices of the node that are files: they are written to, whoever dies.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_attached;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use block_attached::{attach, kill_worker, until_served, writable};
use lab::service::Service;
use lab::{Lab, fails, noise, ok};

/// An image with an ext4 on a writable layer of its own.
fn formatted(lab: &Lab, name: &str, features: &str) -> PathBuf {
    let image = writable(lab, name, "hybrid", "64M");
    let attached = attach(lab, &image, name, &["--mount", "--writable"]);
    let disk = attached["address"].as_str().unwrap();
    ok(Command::new("mkfs.ext4").args(["-q", "-F", "-O", features, disk]));
    detach(lab, name);
    image
}

fn detach(lab: &Lab, name: &str) {
    ok(lab.yolofs().args(["block", "detach", name]));
}

/// Attaches an image, and mounts the file system in it in a directory.
fn mounted(lab: &Lab, image: &Path, name: &str, dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    let flags = ["--mount", "--writable", "--erofs", dir.to_str().unwrap()];
    let attached = attach(lab, image, name, &flags);
    assert_eq!(attached["served"]["writable"], true, "{attached}");
}

fn write_durably(path: &Path, content: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(content).unwrap();
    file.sync_all().unwrap();
}

/// Checks the file system in an image that nobody has mounted.
fn assert_clean(lab: &Lab, image: &Path, name: &str) {
    let attached = attach(lab, image, name, &["--mount", "--writable"]);
    let disk = attached["address"].as_str().unwrap();
    ok(Command::new("e2fsck").args(["-fn", disk]));
    detach(lab, name);
}

#[test]
fn privileged_block_a_file_system_is_written_to_while_all_that_serves_it_is_replaced() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    for features in ["has_journal", "^has_journal"] {
        let image = formatted(&lab, "vm", features);
        let dir = lab.path("mnt");
        mounted(&lab, &image, "vm", &dir);
        let content = |round: u32| noise(round + 1, 1 << 20);
        // One that is never synced, and is written while nobody serves.
        let mut log = File::create(dir.join("log")).unwrap();
        for round in 0..8 {
            write_durably(&dir.join(format!("file-{round}")), &content(round));
            let mut unsynced = File::create(dir.join(format!("late-{round}"))).unwrap();
            unsynced.write_all(&content(round)).unwrap();
            writeln!(log, "{round}").unwrap();
            match round {
                0..=3 => kill_worker(&lab, "vm"),
                4 | 5 => service.kill_node(),
                _ => {
                    let (node, worker) = (service.pid(), until_served(&lab, "vm", 0));
                    ok(lab.yolofs().arg("upgrade"));
                    service.until_another(node);
                    until_served(&lab, "vm", worker);
                }
            }
            if round % 2 == 1 {
                fs::remove_file(dir.join(format!("file-{}", round - 1))).unwrap();
            }
        }
        let why = fails(1, lab.yolofs().args(["block", "detach", "vm"]));
        assert!(why.contains("in use"), "{why}");
        drop(log);
        let is_right = || {
            for round in 0..8 {
                let file = fs::read(dir.join(format!("file-{round}"))).ok();
                let expected = (round % 2 == 1).then(|| content(round));
                assert!(file == expected, "file {round} differs, {features}");
                let late = fs::read(dir.join(format!("late-{round}"))).unwrap();
                assert!(late == content(round), "late {round} differs, {features}");
            }
            let log = fs::read_to_string(dir.join("log")).unwrap();
            assert_eq!(log.lines().count(), 8);
        };
        is_right();
        detach(&lab, "vm");
        assert_clean(&lab, &image, "vm");
        // What was deleted was discarded.
        let committed = lab::json(lab.yolofs().args(["block", "commit", "--json"]).arg(&image));
        let size = committed["layers"][0]["size"].as_u64().unwrap();
        assert!((12 << 20..14 << 20).contains(&size), "{committed}");
        mounted(&lab, &image, "vm", &dir);
        is_right();
        detach(&lab, "vm");
        ok(lab.yolofs().args(["block", "verify"]).arg(&image));
        fs::remove_dir_all(&image).unwrap();
    }
}

/// What a machine leaves that loses its power: the files of the layer, as they are at some moment.
#[test]
fn privileged_block_a_file_system_that_was_not_unmounted_is_checked_before_it_is_mounted() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let image = formatted(&lab, "vm", "^has_journal");
    let dir = lab.path("mnt");
    mounted(&lab, &image, "vm", &dir);
    fs::create_dir(dir.join("dir")).unwrap();
    write_durably(&dir.join("dir/file"), b"content");
    let copy = lab.path("copy");
    ok(Command::new("cp").arg("-a").args([&image, &copy]));
    let at = lab.path("mnt-copy");
    mounted(&lab, &copy, "copy", &at);
    assert_eq!(fs::read(at.join("dir/file")).unwrap(), b"content");
    write_durably(&at.join("dir/other"), b"content");
    detach(&lab, "copy");
    assert_clean(&lab, &copy, "copy");
    // One that is damaged is not mounted.
    detach(&lab, "vm");
    let attached = attach(&lab, &image, "vm", &["--mount", "--writable"]);
    let disk = attached["address"].as_str().unwrap();
    ok(Command::new("debugfs").args(["-w", "-R", "clri <2>", disk]));
    ok(Command::new("debugfs").args(["-w", "-R", "ssv state 2", disk]));
    detach(&lab, "vm");
    let attach = ["block", "attach", "--mount", "--writable", "--erofs"];
    let mut refused = lab.yolofs();
    refused.args(attach).arg(&dir).arg(&image).arg("vm");
    let why = fails(1, &mut refused);
    assert!(why.contains("e2fsck -p does not repair it"), "{why}");
    assert!(block_attached::device(&lab, "vm").is_null());
}

/// A file system that somebody has mounted elsewhere is the same one when it is attached again: two loop devices of one
/// file would know nothing of each other.
#[test]
fn privileged_block_a_file_has_one_block_device_whoever_mounts_it() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let image = formatted(&lab, "vm", "^has_journal");
    let (dir, elsewhere) = (lab.path("mnt"), lab.make_dir("elsewhere"));
    mounted(&lab, &image, "vm", &dir);
    ok(Command::new("mount").arg("--bind").args([&dir, &elsewhere]));
    let why = fails(1, lab.yolofs().args(["block", "detach", "vm"]));
    assert!(why.contains("in use"), "{why}");
    write_durably(&elsewhere.join("file"), b"content");
    mounted(&lab, &image, "vm", &dir);
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"content");
    let source = |dir: &Path| ok(Command::new("findmnt").args(["-no", "SOURCE"]).arg(dir));
    assert_eq!(source(&dir), source(&elsewhere));
    ok(Command::new("umount").arg(&elsewhere));
    detach(&lab, "vm");
    assert_clean(&lab, &image, "vm");
}

/// Only an ext4 can be written to, and only where that was asked for.
#[test]
fn privileged_block_what_cannot_be_written_to_says_what_can() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let image = writable(&lab, "image", "hybrid", "16M");
    let dir = lab.make_dir("mnt");
    let dir = dir.to_str().unwrap();
    for (flags, why) in [
        (&["--mount"][..], "(--writable)"),
        (&["--mount", "--writable", "--erofs", dir], "to an ext4"),
    ] {
        let mut command = lab.yolofs();
        command.args(["block", "attach"]).args(flags);
        let said = fails(1, command.arg(&image).arg("vm"));
        assert!(said.contains(why), "{said}");
    }
    assert!(block_attached::device(&lab, "vm").is_null());
}
