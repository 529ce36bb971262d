//! Layers that are unpacked one on the other: on plain directories, whatever serves them to containers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use snapshotter::{Config, Labels, LayerDir, Lowers, Mount, Snapshot, SnapshotId, Snapshotter};

/// Two chain IDs, as containerd writes them.
const BASE: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";
const TOP: &str = "sha256:2222222222222222222222222222222222222222222222222222222222222222";

/// Serves each layer in a directory beside its own, and counts how often it is asked where.
#[derive(Debug, Default)]
struct Beside {
    asked: Arc<AtomicUsize>,
}

impl Lowers for Beside {
    fn places(&self, _snapshot: &Snapshot, layers: &[LayerDir]) -> Vec<Option<PathBuf>> {
        self.asked.fetch_add(1, Relaxed);
        let beside = layers.iter().map(|layer| {
            let place = layer.dir.with_file_name("served");
            std::fs::create_dir_all(&place).unwrap();
            Some(place)
        });
        beside.collect()
    }

    fn committed(&self, _layer: &LayerDir) {}

    fn removed(&self, _id: SnapshotId) {}
}

fn on_served(mounts: &[Mount]) -> bool {
    let [overlay] = mounts else {
        panic!("{mounts:?}")
    };
    let lower = |option: &&String| option.starts_with("lowerdir=");
    let lower = overlay.options.iter().find(lower).unwrap();
    lower.contains("/served")
}

#[test]
fn a_layer_is_unpacked_on_plain_directories_and_nobody_is_asked_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let config = Config {
        root: dir.path().join("root"),
        upper: None,
        layers: None,
        unpacker: None,
        blocks: None,
    };
    let lowers = Beside {
        asked: Arc::clone(&asked),
    };
    let snapshotter = Snapshotter::open(config, lowers).unwrap();
    let base = format!("ns/2/{BASE}");
    let unpack = |key: &str, parent, labels| snapshotter.prepare(key, parent, labels).unwrap();
    let key = format!("ns/1/extract-1 {BASE}");
    unpack(&key, None, Labels::new());
    snapshotter.commit(&base, &key, Labels::new()).unwrap();

    // By its key, as containerd 1 does it, and by its label.
    let mounts = unpack(
        &format!("ns/3/extract-2 {TOP}"),
        Some(&base),
        HashMap::new(),
    );
    assert!(!on_served(&mounts), "{mounts:?}");
    let label = ("containerd.io/snapshot.ref".to_owned(), TOP.to_owned());
    let mounts = unpack("ns/4/x", Some(&base), HashMap::from([label]));
    assert!(!on_served(&mounts), "{mounts:?}");
    assert_eq!(asked.load(Relaxed), 0);

    let mounts = unpack("ns/5/container", Some(&base), HashMap::new());
    assert!(on_served(&mounts), "{mounts:?}");
    assert_eq!(asked.load(Relaxed), 1);
}
