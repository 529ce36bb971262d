//! A source that changed since the recording never yields stale bytes or stale names.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod lab;

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use lab::{Lab, busybox_root, fails, json, noise, ok, until};

fn recorded(lab: &Lab) -> PathBuf {
    let root = lab.make_dir("root");
    busybox_root(&root);
    ok(lab
        .bootimg()
        .args(["record", "--name", "boot"])
        .arg(&root)
        .args(["--", "sh", "-c", "cat /usr/lib/part0* > /dev/null"]));
    root
}

/// Every file of the mount is what the source has, now.
fn assert_same(source: &Path, mountpoint: &Path) {
    ok(std::process::Command::new("diff")
        .arg("-r")
        .arg("--no-dereference")
        .args([source, mountpoint]));
}

/// One way in which a source changes behind our back.
type Change = fn(&Path);

const CHANGES: [(&str, Change); 7] = [
    ("longer", |root| {
        let mut data = fs::read(root.join("usr/lib/part01")).unwrap();
        data.extend_from_slice(b"more");
        fs::write(root.join("usr/lib/part01"), data).unwrap();
    }),
    ("same size, other bytes", |root| {
        fs::write(root.join("usr/lib/part01"), noise(99, 30_000)).unwrap();
    }),
    ("same size and mtime, other bytes", |root| {
        let path = root.join("usr/lib/part01");
        let mtime = fs::metadata(&path).unwrap().modified().unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&noise(98, 30_000), 0).unwrap();
        file.set_modified(mtime).unwrap();
    }),
    ("replaced", |root| {
        fs::write(root.join("usr/lib/new"), noise(97, 30_000)).unwrap();
        fs::rename(root.join("usr/lib/new"), root.join("usr/lib/part01")).unwrap();
    }),
    ("removed", |root| {
        fs::remove_file(root.join("usr/lib/part01")).unwrap();
    }),
    ("added", |root| {
        fs::write(root.join("usr/lib/part00a"), b"new").unwrap();
    }),
    ("a directory instead of a file", |root| {
        fs::remove_file(root.join("usr/lib/part01")).unwrap();
        fs::create_dir(root.join("usr/lib/part01")).unwrap();
    }),
];

#[test]
fn privileged_changes_before_the_mount_fall_through() {
    for (name, change) in CHANGES {
        let lab = Lab::new();
        let root = recorded(&lab);
        change(&root);
        let mountpoint = lab.mount(&root, "mnt", &["--boot", "boot", "--wait-prewarm"]);
        assert_same(&root, &mountpoint);
        let status = lab.status(&mountpoint);
        let stale = status["boot"]["stale_files"].as_u64().unwrap();
        assert_eq!(stale, u64::from(name != "added"), "{name}: {status}");
        // The rest keeps its speed: nine of ten recorded files are served without the source.
        assert!(
            status["boot"]["injected_pages"].as_u64().unwrap() >= 9 * 8,
            "{name}: {status}"
        );
        lab.umount(&mountpoint);
    }
}

#[test]
fn privileged_changes_under_a_mount_are_seen_with_revalidate() {
    for (name, change) in CHANGES {
        let lab = Lab::new();
        let root = recorded(&lab);
        let flags = ["--boot", "boot", "--wait-prewarm", "--revalidate", "0"];
        let mountpoint = lab.mount(&root, "mnt", &flags);
        assert_same(&root, &mountpoint);
        println!("{name}:");
        change(&root);
        assert_same(&root, &mountpoint);
        lab.umount(&mountpoint);
    }
}

#[test]
fn privileged_a_file_that_changes_under_a_mount_is_followed() {
    let lab = Lab::new();
    let root = recorded(&lab);
    let flags = ["--boot", "boot", "--no-inject", "--readahead", "0"];
    let mountpoint = lab.mount(&root, "mnt", &flags);
    let new = noise(77, 30_000);
    // The kernel has the first page of the old version; then the files change.
    let served = fs::File::open(mountpoint.join("usr/lib/part15")).unwrap();
    served.read_exact_at(&mut [0; 10], 0).unwrap();
    for name in ["usr/lib/part15", "usr/lib/part16"] {
        fs::write(root.join(name), &new).unwrap();
        // The first read makes the daemon notice, and the kernel is told to forget the rest.
        let read = || fs::read(mountpoint.join(name)).unwrap();
        until("the kernel's forgetting the old version", || read() == new);
    }
    let status = lab.status(&mountpoint);
    assert_eq!(status["served"]["diverted_files"], 2, "{status}");
    drop(served);
    lab.umount(&mountpoint);
}

#[test]
fn privileged_damaged_boot_images_cost_speed_and_no_more() {
    let lab = Lab::new();
    let root = recorded(&lab);
    // Flip a byte in the middle of every file of the store that is large enough to hold data.
    let mut flipped = 0;
    for path in files_below(&lab.store()) {
        let len = fs::metadata(&path).unwrap().len();
        if len > 64 << 10 {
            let file = fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, len / 2).unwrap();
            file.write_all_at(&[byte[0] ^ 0x40], len / 2).unwrap();
            flipped += 1;
        }
    }
    assert!(
        flipped > 0,
        "nothing in the store was large enough to damage"
    );
    let why = fails(4, lab.bootimg().args(["verify", "boot"]));
    assert!(why.contains("damage") || !why.is_empty(), "{why}");
    let mountpoint = lab.mount(&root, "mnt", &["--boot", "boot", "--wait-prewarm"]);
    assert_same(&root, &mountpoint);
    assert!(lab.status(&mountpoint)["boot"]["damaged"].as_u64().unwrap() > 0);
    lab.umount(&mountpoint);
}

#[test]
fn privileged_verify_tells_a_changed_source() {
    let lab = Lab::new();
    let root = recorded(&lab);
    json(
        lab.bootimg()
            .args(["verify", "--json", "boot", "--against"])
            .arg(&root),
    );
    fs::write(root.join("usr/lib/part02"), b"short").unwrap();
    let output = lab::output(
        lab.bootimg()
            .args(["verify", "--json", "boot", "--against"])
            .arg(&root),
    );
    assert_eq!(output.status.code(), Some(4));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("usr/lib/part02"), "{shown}");
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut waiting = vec![dir.to_path_buf()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files
}
