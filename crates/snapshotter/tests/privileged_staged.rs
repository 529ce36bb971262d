//! Layers that somebody else unpacks: how snapshots adopt them, and what becomes of what nobody holds.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fast_rig;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use blocks::Digest;
use fast_rig::{Rig, is_on_fast, used};
use snapshotter::{
    Labels, PlainLowers, STAGED_LABEL, SnapshotError, Snapshotter, Staged, StagedName,
};

fn labels(name: &str) -> Labels {
    let chain = Digest([9; 32]).to_string();
    HashMap::from([
        ("containerd.io/snapshot.ref".to_owned(), chain),
        (STAGED_LABEL.to_owned(), name.to_owned()),
    ])
}

/// Where layers are staged, on the disk and on the fast place. Who asks the snapshotter for it has it clean
/// up in the background, where a test makes what nobody holds.
fn staging(rig: &Rig) -> (PathBuf, PathBuf) {
    (rig.path("root/staged"), rig.path("fast/staged"))
}

/// A layer of one file, staged.
fn staged(at: &Path, content: &str) -> Staged {
    let staged = Staged::make(at).unwrap();
    fs::write(staged.fs().join("file"), content).unwrap();
    staged
}

fn names(dir: PathBuf) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

fn prepare(
    snapshotter: &Snapshotter<PlainLowers>,
    key: &str,
    parent: Option<&str>,
    name: &str,
) -> Result<(), SnapshotError> {
    snapshotter.prepare(key, parent, labels(name)).map(drop)
}

#[test]
fn privileged_a_snapshot_adopts_what_was_staged() {
    let rig = Rig::new();
    let snapshotter = rig.open();
    let places = snapshotter.staging();
    let on_disk = staged(&places.disk, "disk");
    let inode = fs::metadata(on_disk.fs().join("file")).unwrap().ino();
    prepare(&snapshotter, "a", None, on_disk.name().as_str()).unwrap();
    drop(on_disk);
    assert_eq!(fs::read(rig.fs(1).join("file")).unwrap(), b"disk");
    assert_eq!(fs::metadata(rig.fs(1).join("file")).unwrap().ino(), inode);
    assert!(rig.path("root/snapshots/1/work").is_dir() && !is_on_fast(&rig, 1));
    snapshotter.commit("layer-a", "a", HashMap::new()).unwrap();

    let fast = snapshotter.fast_layers().unwrap();
    let on_fast = staged(&places.fast.unwrap(), "fast");
    assert!(fast.book_staged(on_fast.name(), 300_000).unwrap());
    prepare(&snapshotter, "b", Some("layer-a"), on_fast.name().as_str()).unwrap();
    assert_eq!(used(&snapshotter), 300_000);
    drop(on_fast);
    assert!(is_on_fast(&rig, 2));
    assert_eq!(fs::read(rig.fs(2).join("file")).unwrap(), b"fast");
    snapshotter.commit("layer-b", "b", HashMap::new()).unwrap();
    let bytes = snapshotter.usage("layer-b").unwrap().bytes;
    assert_eq!(used(&snapshotter), bytes, "what was foreseen is corrected");
    let lowers = snapshotter
        .view("v", Some("layer-b"), HashMap::new())
        .unwrap();
    let options = lowers[0].options.join(",");
    assert!(options.contains("/snapshots/2/fs:"), "{options}");

    snapshotter.cleanup().unwrap();
    assert_eq!(rig.numbers(), [vec!["1", "2", "3"], vec!["2"]]);
    for dir in ["root/staged", "fast/staged"] {
        assert_eq!(names(rig.path(dir)), [""; 0], "{dir}");
    }
}

#[test]
fn privileged_only_what_somebody_holds_is_adopted() {
    let rig = Rig::new();
    let snapshotter = rig.open();
    let (disk, _) = staging(&rig);
    let refused = |name: &str| {
        let error = prepare(&snapshotter, "key", None, name).unwrap_err();
        assert!(matches!(error, SnapshotError::NotStaged { .. }), "{error}");
    };
    let held = staged(&disk, "held");
    fs::create_dir_all(rig.path("root/staged/elsewhere/fs")).unwrap();
    let not_held = "0123456789abcdef0123456789abcdef";
    fs::create_dir_all(rig.path("root/staged").join(not_held).join("fs")).unwrap();
    let link = "f".repeat(32);
    symlink(rig.path("root/staged/elsewhere"), disk.join(&link)).unwrap();
    for name in [
        "",
        "elsewhere",
        "../snapshots/1",
        "..",
        not_held,
        &link,
        &"e".repeat(32),
        &held.name().as_str().to_uppercase(),
        &format!("{}/.", held.name().as_str()),
    ] {
        refused(name);
    }
    assert_eq!(rig.numbers(), [[""; 0], [""; 0]]);
    // One whose content is a link somewhere else.
    let lying = Staged::make(&disk).unwrap();
    fs::remove_dir(lying.fs()).unwrap();
    symlink("/", lying.fs()).unwrap();
    refused(lying.name().as_str());
    // A view adopts nothing, and a key that is taken leaves what is staged where it is.
    prepare(&snapshotter, "key", None, held.name().as_str()).unwrap();
    let second = staged(&disk, "second");
    let error = prepare(&snapshotter, "key", None, second.name().as_str()).unwrap_err();
    assert!(
        matches!(error, SnapshotError::AlreadyExists { .. }),
        "{error}"
    );
    assert!(second.fs().join("file").exists());
}

#[test]
fn privileged_what_nobody_holds_is_deleted() {
    let rig = Rig::new();
    let snapshotter = rig.open();
    let (disk, fast) = staging(&rig);
    let held = [staged(&disk, "held"), staged(&fast, "held")];
    let orphan = |at: &Path, digit: &str| {
        let dir = at.join(digit.repeat(32));
        fs::create_dir_all(dir.join("fs/deep/down")).unwrap();
        dir
    };
    let orphans = [orphan(&disk, "a"), orphan(&fast, "b")];
    let other = disk.join("not-ours");
    fs::create_dir(&other).unwrap();
    let layers = snapshotter.fast_layers().unwrap();
    assert!(layers.book_staged(held[1].name(), 1000).unwrap());
    snapshotter.cleanup().unwrap();
    assert!(orphans.iter().all(|dir| !dir.exists()));
    assert!(held.iter().all(|held| held.fs().exists()) && other.exists());
    assert_eq!(used(&snapshotter), 1000);
    // The room of one that goes is free again.
    drop(held);
    snapshotter.cleanup().unwrap();
    assert_eq!(used(&snapshotter), 0);
    assert_eq!(names(disk.clone()), ["not-ours"]);
    // A start does the same, without the fast place's option, too, if a layer tells of it.
    let kept = staged(&fast, "kept");
    prepare(&snapshotter, "a", None, kept.name().as_str()).unwrap();
    drop(snapshotter);
    let orphans = [orphan(&disk, "a"), orphan(&fast, "b")];
    let snapshotter = rig.open_with(None);
    assert!(orphans.iter().all(|dir| !dir.exists()));
    drop(snapshotter);
}

#[test]
fn privileged_the_bound_of_the_fast_place_holds_for_all() {
    let rig = Rig::new();
    let snapshotter = rig.open();
    let fast = snapshotter.staging().fast.unwrap();
    let layers = snapshotter.fast_layers().unwrap();
    let (one, other) = (staged(&fast, "1"), staged(&fast, "2"));
    assert!(layers.book_staged(one.name(), 600 << 10).unwrap());
    assert!(!layers.book_staged(other.name(), 500 << 10).unwrap());
    assert!(layers.book_staged(other.name(), 400 << 10).unwrap());
    // It grows, as long as there is room for all; what it has stays if there is none.
    assert!(layers.book_staged(one.name(), 624 << 10).unwrap());
    assert!(!layers.book_staged(one.name(), 625 << 10).unwrap());
    assert_eq!(used(&snapshotter), 1 << 20);
    // Nobody books for what is not there.
    let nobody = StagedName::parse(&"c".repeat(32)).unwrap();
    let error = layers.book_staged(&nobody, 1).unwrap_err();
    assert!(matches!(error, SnapshotError::NotStaged { .. }), "{error}");
}

/// Whoever cleans up finds a directory that is made and not locked yet, and deletes it.
#[test]
fn privileged_directories_are_staged_while_others_are_cleaned_up() {
    let rig = Rig::new();
    let snapshotter = rig.open();
    let disk = snapshotter.staging().disk;
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(SeqCst) {
                snapshotter.cleanup().unwrap();
            }
        });
        let made: Vec<_> = (0..300).map(|_| Staged::make(&disk)).collect();
        ended.store(true, SeqCst);
        for staged in made {
            assert!(staged.unwrap().fs().is_dir());
        }
    });
}
