//! Layers that are there already: what whoever unpacks them again is told, and whose the directories are.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use snapshotter::{Config, Labels, Mount, PlainLowers, SnapshotError, Snapshotter, Unpacker};

/// Two chain IDs, as containerd writes them.
const BASE: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";
const TOP: &str = "sha256:2222222222222222222222222222222222222222222222222222222222222222";

/// A containerd of some version.
#[derive(Debug)]
struct Containerd {
    is_of_24: bool,
}

impl Unpacker for Containerd {
    fn takes_read_only_for_unpacked(&self) -> bool {
        self.is_of_24
    }
}

struct Rig {
    dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir }
    }

    fn open(&self, is_of_24: bool) -> Snapshotter<PlainLowers> {
        let config = Config {
            root: self.dir.path().join("root"),
            upper: None,
            layers: None,
            unpacker: Some(Arc::new(Containerd { is_of_24 })),
            blocks: None,
        };
        Snapshotter::open(config, PlainLowers).unwrap()
    }

    fn of(&self, number: u64) -> PathBuf {
        let snapshots = self.dir.path().join("root/snapshots");
        snapshots.join(number.to_string())
    }

    fn is_link(&self, number: u64) -> bool {
        let of = fs::symlink_metadata(self.of(number));
        of.unwrap().is_symlink()
    }
}

/// The labels that containerd gives a snapshot to unpack a layer into.
fn unpacks(chain: &str, later_on: Option<&str>) -> Labels {
    let mut labels = HashMap::from([("containerd.io/snapshot.ref".to_owned(), chain.to_owned())]);
    if let Some(parent) = later_on {
        let label = "containerd.io/snapshot/parent-chain-id".to_owned();
        labels.insert(label, parent.to_owned());
    }
    labels
}

fn source(mounts: &[Mount]) -> &Path {
    let [one] = mounts else { panic!("{mounts:?}") };
    Path::new(&one.source)
}

/// Unpacks the two layers in namespace `one`, one after another.
fn unpack_both(snapshotter: &Snapshotter<PlainLowers>) {
    let mounts = snapshotter.prepare("one/1/x", None, unpacks(BASE, None));
    fs::write(source(&mounts.unwrap()).join("base"), "base").unwrap();
    let (base, top) = (format!("one/2/{BASE}"), format!("one/4/{TOP}"));
    snapshotter
        .commit(&base, "one/1/x", unpacks(BASE, None))
        .unwrap();
    snapshotter
        .prepare("one/3/x", Some(&base), unpacks(TOP, Some(BASE)))
        .unwrap();
    let numbers = fs::read_dir(snapshotter.root().join("snapshots")).unwrap();
    assert_eq!(numbers.count(), 2);
    fs::write(snapshotter.root().join("snapshots/2/fs/top"), "top").unwrap();
    snapshotter
        .commit(&top, "one/3/x", unpacks(TOP, Some(BASE)))
        .unwrap();
}

#[test]
fn a_layer_on_the_same_parent_exists() {
    let rig = Rig::new();
    let snapshotter = rig.open(false);
    unpack_both(&snapshotter);
    let exists = |parent: Option<&str>, chain, later_on| {
        let made = snapshotter.prepare("two/1/x", parent, unpacks(chain, later_on));
        matches!(made, Err(SnapshotError::AlreadyExists { .. }))
    };
    assert!(exists(None, BASE, None));
    assert!(exists(Some(&format!("one/2/{BASE}")), TOP, Some(BASE)));
    // containerd looks for what exists by this filter.
    let filter = format!("labels.\"containerd.io/snapshot.ref\"=={TOP},parent==\"one/2/{BASE}\"");
    let found = snapshotter.walk(&[filter]).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].name, format!("one/4/{TOP}"));
    // A container is no layer, and a layer whose directory is lost is none.
    snapshotter
        .prepare("two/2/c", Some(&found[0].name), HashMap::new())
        .unwrap();
    fs::remove_dir_all(rig.of(1)).unwrap();
    assert!(!exists(None, BASE, None));
}

#[test]
fn layers_are_counted_as_far_as_they_are_on_one_another() {
    let rig = Rig::new();
    let snapshotter = rig.open(false);
    let count = |chains: &[&str]| {
        let chains: Vec<_> = chains.iter().map(|chain| (*chain).to_owned()).collect();
        snapshotter.count_known(&chains)
    };
    assert_eq!(count(&[BASE, TOP]), 0);
    unpack_both(&snapshotter);
    let other = "sha256:3333333333333333333333333333333333333333333333333333333333333333";
    assert_eq!(count(&[BASE, TOP]), 2);
    assert_eq!(count(&[BASE, TOP, other]), 2);
    assert_eq!(count(&[BASE, other, TOP]), 1);
    assert_eq!(count(&[TOP]), 0, "it is not the lowest");
    let base = format!("one/2/{BASE}");
    let labels = || unpacks(other, Some(BASE));
    snapshotter
        .prepare("one/5/x", Some(&base), labels())
        .unwrap();
    snapshotter
        .commit(&format!("one/6/{other}"), "one/5/x", labels())
        .unwrap();
    assert_eq!(count(&[BASE, other]), 2);
    assert_eq!(count(&[BASE, TOP, other]), 2, "it is on another one");
    fs::remove_dir_all(rig.of(2)).unwrap();
    assert_eq!(count(&[BASE, TOP]), 1, "its directory is lost");
    fs::remove_dir_all(rig.of(1)).unwrap();
    assert_eq!(count(&[BASE, TOP]), 0);
}

#[test]
fn who_does_not_know_the_answer_unpacks_again() {
    let rig = Rig::new();
    let snapshotter = rig.open(false);
    unpack_both(&snapshotter);
    let mounts = snapshotter
        .prepare("two/1/x", None, unpacks(TOP, Some(BASE)))
        .unwrap();
    assert_eq!(mounts[0].fs_type, "overlay", "a place to unpack into");
    assert!(!rig.is_link(3));
    // The name says another chain than the label, which any client may change.
    let liar = unpacks(BASE, None);
    let other = "sha256:3333333333333333333333333333333333333333333333333333333333333333";
    snapshotter
        .commit(&format!("two/2/{other}"), "two/1/x", liar)
        .unwrap();
    snapshotter
        .prepare("two/3/x", None, unpacks(other, None))
        .unwrap();
}

#[test]
fn a_layer_that_is_stacked_later_shares_a_directory() {
    let rig = Rig::new();
    let snapshotter = rig.open(true);
    unpack_both(&snapshotter);
    let mounts = snapshotter
        .prepare("two/1/x", None, unpacks(TOP, Some(BASE)))
        .unwrap();
    assert!(mounts[0].options.contains(&"ro".to_owned()), "{mounts:?}");
    assert_eq!(fs::read(source(&mounts).join("top")).unwrap(), b"top");
    assert!(rig.is_link(3));
    let (base, top) = (format!("one/2/{BASE}"), format!("two/2/{TOP}"));
    let labels = unpacks(TOP, Some(BASE));
    snapshotter
        .commit_on(&top, "two/1/x", Some(&base), labels.clone())
        .unwrap();
    assert_eq!(
        snapshotter.usage(&top).unwrap().bytes,
        0,
        "it is the other's"
    );
    // One that shares what is shared, and one that is given up.
    snapshotter
        .prepare("three/1/x", None, labels.clone())
        .unwrap();
    snapshotter
        .commit_on(
            &format!("three/2/{TOP}"),
            "three/1/x",
            Some(&base),
            labels.clone(),
        )
        .unwrap();
    snapshotter.prepare("four/1/x", None, labels).unwrap();
    snapshotter.remove("four/1/x").unwrap();
    // Whoever made it removes it: it stays as long as others have it.
    snapshotter.remove(&format!("one/4/{TOP}")).unwrap();
    snapshotter.cleanup().unwrap();
    let view = snapshotter
        .view("two/3/v", Some(&top), HashMap::new())
        .unwrap();
    let options = view[0].options.join(",");
    let lower = rig.of(3).join("fs");
    assert!(options.contains(lower.to_str().unwrap()), "{options}");
    assert_eq!(fs::read(lower.join("top")).unwrap(), b"top");
    assert!(!rig.of(5).exists(), "given up");
    drop(snapshotter);
    // Another process finds it so.
    let snapshotter = rig.open(true);
    snapshotter.cleanup().unwrap();
    assert_eq!(fs::read(lower.join("top")).unwrap(), b"top");
    snapshotter.remove("two/3/v").unwrap();
    snapshotter.remove(&top).unwrap();
    snapshotter.cleanup().unwrap();
    assert!(rig.of(2).exists() && !rig.of(3).exists());
    snapshotter.remove(&format!("three/2/{TOP}")).unwrap();
    snapshotter.cleanup().unwrap();
    assert!(!rig.of(2).exists(), "nobody has it any more");
    assert_eq!(fs::read(rig.of(1).join("fs/base")).unwrap(), b"base");
}
