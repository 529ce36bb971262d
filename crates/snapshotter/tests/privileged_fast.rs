//! Layers on the fast place: how they get there, and what becomes of them.

#![cfg(feature = "privileged")]

mod fast_rig;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::Path;

use fast_rig::{Rig, is_on_fast, prepare, take, used};
use snapshotter::{SnapshotError, Taken};

#[test]
fn privileged_a_layer_goes_there_before_it_is_begun_and_not_after() {
    let rig = Rig::new();
    let snapshotter = rig.open();
    prepare(&snapshotter, "a", None);
    chown(rig.fs(1), Some(7), Some(8)).unwrap();
    assert_eq!(take(&snapshotter, 1, 400_000), Taken::Fast);
    assert_eq!(
        take(&snapshotter, 1, 1),
        Taken::Begun,
        "it is there already"
    );
    assert_eq!(used(&snapshotter), 400_000);
    let owner = fs::metadata(rig.fs(1)).unwrap();
    assert_eq!((owner.uid(), owner.gid(), owner.mode()), (7, 8, 0o40755));
    fs::write(rig.fs(1).join("file"), vec![1; 5000]).unwrap();
    snapshotter.commit("layer-a", "a", HashMap::new()).unwrap();
    let bytes = snapshotter.usage("layer-a").unwrap().bytes;
    assert!((5000..50_000).contains(&bytes), "{bytes}");
    assert_eq!(used(&snapshotter), bytes, "what was foreseen is corrected");

    prepare(&snapshotter, "b", Some("layer-a"));
    fs::write(rig.fs(2).join("begun"), "x").unwrap();
    assert_eq!(take(&snapshotter, 2, 1), Taken::Begun);
    assert!(!is_on_fast(&rig, 2) && rig.fs(2).join("begun").exists());
    assert_eq!(used(&snapshotter), bytes);

    prepare(&snapshotter, "c", Some("layer-a"));
    assert_eq!(take(&snapshotter, 3, 1 << 20), Taken::Full);
    assert!(!is_on_fast(&rig, 3));
    assert_eq!(rig.numbers()[1], ["1"], "nothing is left of attempts");
    assert!(
        fs::read_dir(rig.path("root/turning"))
            .unwrap()
            .next()
            .is_none()
    );
}

#[test]
fn privileged_what_goes_is_deleted_in_both_places() {
    let rig = Rig::new();
    let snapshotter = rig.open();
    for (id, key) in [(1, "a"), (2, "b")] {
        prepare(&snapshotter, key, None);
        assert_eq!(take(&snapshotter, id, 1000), Taken::Fast);
        fs::write(rig.fs(id).join("file"), key).unwrap();
    }
    snapshotter.commit("layer-a", "a", HashMap::new()).unwrap();
    snapshotter.remove("b").unwrap();
    snapshotter.cleanup().unwrap();
    assert_eq!(rig.numbers(), [["1"], ["1"]]);
    drop(snapshotter);
    // A start without the option knows the layer, and the place when the layer goes.
    let snapshotter = rig.open_with(None);
    assert!(snapshotter.fast_layers().is_none());
    assert_eq!(fs::read(rig.fs(1).join("file")).unwrap(), b"a");
    snapshotter
        .view("v", Some("layer-a"), HashMap::new())
        .unwrap();
    snapshotter.remove("v").unwrap();
    snapshotter.remove("layer-a").unwrap();
    snapshotter.cleanup().unwrap();
    assert_eq!(rig.numbers(), [[""; 0], [""; 0]]);
}

#[test]
fn privileged_a_start_finds_what_a_crash_left() {
    let rig = Rig::new();
    let snapshotter = rig.open();
    for (id, key) in [(1, "a"), (2, "b"), (3, "c")] {
        prepare(&snapshotter, key, None);
        assert_eq!(take(&snapshotter, id, 1000), Taken::Fast);
        fs::write(rig.fs(id).join("file"), key).unwrap();
    }
    snapshotter.commit("layer-a", "a", HashMap::new()).unwrap();
    snapshotter.commit("layer-c", "c", HashMap::new()).unwrap();
    drop(snapshotter);
    // Killed between the placement and the commit of b; a place was made and no link led to it; and
    // the directory of c is lost.
    fs::create_dir_all(rig.path("fast/snapshots/77/fs")).unwrap();
    fs::remove_dir_all(rig.path("fast/snapshots/3")).unwrap();
    let snapshotter = rig.open();
    assert_eq!(rig.numbers(), [vec!["1", "2", "3"], vec!["1", "2"]]);
    snapshotter.commit("layer-b", "b", HashMap::new()).unwrap();
    assert_eq!(fs::read(rig.fs(2).join("file")).unwrap(), b"b");
    let mounts = snapshotter.prepare("web", Some("layer-b"), HashMap::new());
    assert!(
        mounts.unwrap()[0]
            .options
            .iter()
            .any(|option| { option.strip_prefix("lowerdir=").map(Path::new) == Some(&rig.fs(2)) })
    );
    let lost = snapshotter.prepare("on-c", Some("layer-c"), HashMap::new());
    assert!(matches!(lost, Err(SnapshotError::Lost { .. })), "{lost:?}");
    snapshotter.remove("layer-c").unwrap();
    snapshotter.cleanup().unwrap();
    assert_eq!(
        rig.numbers()[0],
        ["1", "2", "78"],
        "no number is used twice"
    );
    assert_eq!(snapshotter.fast_layers().unwrap().usage().layers, 2);
}
