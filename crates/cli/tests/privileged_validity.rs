//! A source that changed since the recording never yields stale bytes or stale names.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

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

/// Every program that replaces a file leaves its other names as they were.
#[test]
fn privileged_a_file_whose_other_name_is_replaced_or_removed_stays_what_it_is() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    let path = |name: &str| root.join(name);
    let old = noise(5, 30_000);
    for (first, other) in [("a", "b"), ("c", "d"), ("e", "f")] {
        fs::write(path(first), &old).unwrap();
        fs::hard_link(path(first), path(other)).unwrap();
    }
    let mountpoint = lab.mount(&root, "mnt", &["--readahead", "0"]);
    fs::write(path("new"), noise(6, 20_000)).unwrap();
    fs::rename(path("new"), path("a")).unwrap();
    fs::remove_file(path("c")).unwrap();
    // Both names lead to one new file, as after a synchronisation that keeps hard links.
    let new = noise(7, 20_000);
    fs::write(path("new"), &new).unwrap();
    fs::hard_link(path("new"), path("new2")).unwrap();
    fs::rename(path("new"), path("e")).unwrap();
    fs::rename(path("new2"), path("f")).unwrap();
    for _ in 0..3 {
        for name in ["b", "d"] {
            assert!(fs::read(mountpoint.join(name)).unwrap() == old, "{name}");
        }
        let follows = || fs::read(mountpoint.join("f")).is_ok_and(|read| read == new);
        until("the kernel's forgetting the old version", follows);
    }
    lab.umount(&mountpoint);
}

/// A log that grows while it is read, and is then rotated by copy and truncate.
#[test]
fn privileged_a_log_that_grew_under_a_read_is_readable_after_it_is_cut() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    let line = |number: u64| format!("{number:015}\n");
    let flags = ["--revalidate", "0", "--readahead", "0"];
    let mountpoint = lab.mount(&root, "mnt", &flags);
    for turn in 0..3 {
        let name = format!("log{turn}");
        let (log, shown) = (root.join(&name), mountpoint.join(&name));
        let mut writer = fs::File::create(&log).unwrap();
        writer.write_all(line(0).as_bytes()).unwrap();
        // Until the daemon has met another version between two looks of one read.
        let grown = || {
            lab.status(&mountpoint)["served"]["diverted_files"]
                .as_u64()
                .unwrap()
        };
        let before = grown();
        let enough = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                for number in 1.. {
                    let over = enough.load(Relaxed) || number > 10_000_000;
                    if over {
                        break;
                    }
                    writer.write_all(line(number).as_bytes()).unwrap();
                }
            });
            let stop = Stop(&enough);
            until("a read under which the log grows", || {
                for _ in 0..200 {
                    // The file may change at every look; what is read is what was written.
                    let mut read = vec![0; 4096];
                    let open = fs::File::open(&shown);
                    let len = open.and_then(|open| open.read_at(&mut read, 0));
                    let Ok(len) = len else { continue };
                    read.truncate(len);
                    for (found, number) in read.chunks_exact(16).zip(0..) {
                        assert_eq!(found, line(number).as_bytes(), "turn {turn}");
                    }
                    assert!(!read.contains(&0), "turn {turn}: zeros");
                }
                grown() > before
            });
            drop(stop);
        });
        // copytruncate, as logrotate does it.
        fs::copy(&log, log.with_extension("1")).unwrap();
        writer.set_len(0).unwrap();
        writer.seek(SeekFrom::Start(0)).unwrap();
        writer.write_all(line(0).as_bytes()).unwrap();
        until("reading the log that was cut", || {
            fs::read(&shown).is_ok_and(|read| read == line(0).as_bytes())
        });
        // For good, not only once.
        for _ in 0..100 {
            assert_eq!(fs::read(&shown).unwrap(), line(0).as_bytes());
        }
    }
    lab.umount(&mountpoint);
}

/// Ends the work of another thread, however this one ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// A file system that keeps whole seconds: ext3 with small inodes.
struct Coarse(PathBuf);

impl Coarse {
    fn new(lab: &Lab) -> Self {
        let (image, at) = (lab.path("disk.ext3"), lab.make_dir("coarse"));
        fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        let mut mkfs = std::process::Command::new("mkfs.ext3");
        ok(mkfs.args(["-q", "-I", "128"]).arg(&image));
        let mut mount = std::process::Command::new("mount");
        ok(mount.args(["-o", "loop"]).args([&image, &at]));
        Self(at)
    }
}

impl Drop for Coarse {
    fn drop(&mut self) {
        // Nothing is left to be told; the loop device goes with its mount.
        let mut umount = std::process::Command::new("umount");
        let _unmounted = umount.arg("--lazy").arg(&self.0).status();
    }
}

/// Writes `data` over a file whose version is `same`. Returns whether that left no trace.
fn writes_unseen(path: &Path, data: &[u8]) -> bool {
    let version = || {
        let found = fs::metadata(path).unwrap();
        let times = (
            found.mtime(),
            found.mtime_nsec(),
            found.ctime(),
            found.ctime_nsec(),
        );
        (found.len(), found.ino(), times)
    };
    let before = version();
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(data, 0).unwrap();
    version() == before
}

#[test]
fn privileged_a_write_in_the_second_of_the_last_read_is_seen() {
    for flags in [&[][..], &["--revalidate", "0"]] {
        let lab = Lab::new();
        let disk = Coarse::new(&lab);
        let root = disk.0.join("root");
        fs::create_dir(&root).unwrap();
        let path = root.join("file");
        // The second may be over before all is done: then again, in another one.
        let hidden = (0..40).any(|turn| {
            fs::write(&path, noise(turn, 10_000)).unwrap();
            let mountpoint = lab.mount(&root, &format!("mnt{turn}"), flags);
            let shown = mountpoint.join("file");
            assert_eq!(fs::read(&shown).unwrap(), noise(turn, 10_000), "{flags:?}");
            let hidden = writes_unseen(&path, &noise(turn + 100, 10_000));
            if hidden {
                until("the write that left no trace", || {
                    fs::read(&shown).is_ok_and(|read| read == noise(turn + 100, 10_000))
                });
            }
            lab.umount(&mountpoint);
            hidden
        });
        assert!(
            hidden,
            "no write was ever hidden: what is tested cannot be seen here"
        );
    }
}

#[test]
fn privileged_damaged_boot_images_cost_speed_and_no_more() {
    let lab = Lab::new();
    let root = recorded(&lab);
    // Flip a byte in the middle of every file of the store that is large enough to hold data.
    let mut flipped = 0;
    for path in files_below(&lab.store()) {
        let len = path.symlink_metadata().unwrap().len();
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
