//! A snapshotter with a fast place for layers, both in a directory of their own.

#![allow(
    clippy::allow_attributes,
    reason = "what is unused differs from test to test"
)]
#![allow(dead_code, reason = "each test binary uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use blocks::Digest;
use snapshotter::{
    Adopted, Config, FastConfig, FastPlace, PlainLowers, SnapshotId, Snapshotter, Taken, Unpack,
    Unpacks,
};
use tempfile::TempDir;

pub(crate) const LAYER: Digest = Digest([7; 32]);

/// Leaves everything to the test.
#[derive(Debug)]
pub(crate) struct Nobody;

impl Unpacks for Nobody {
    fn begins(&self, _unpack: Unpack) {}

    fn adopted(&self, _place: Adopted) {}

    fn ended(&self, _id: SnapshotId) {}
}

/// A root and a fast place.
pub(crate) struct Rig(pub(crate) TempDir);

impl Rig {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn open_with(&self, layers: Option<FastConfig>) -> Snapshotter<PlainLowers> {
        let config = Config {
            root: self.path("root"),
            upper: None,
            layers,
            unpacker: None,
            blocks: None,
        };
        Snapshotter::open(config, PlainLowers).unwrap()
    }

    pub(crate) fn open(&self) -> Snapshotter<PlainLowers> {
        self.open_with(Some(self.place("fast")))
    }

    pub(crate) fn place(&self, name: &str) -> FastConfig {
        FastConfig {
            place: FastPlace::Directory(self.path(name)),
            max_bytes: 1 << 20,
            unpacks: Arc::new(Nobody),
        }
    }

    pub(crate) fn fs(&self, id: u64) -> PathBuf {
        self.path(&format!("root/snapshots/{id}/fs"))
    }

    /// The layers in both places.
    pub(crate) fn numbers(&self) -> [Vec<String>; 2] {
        ["root/snapshots", "fast/snapshots"].map(|dir| {
            let entries = fs::read_dir(self.path(dir)).unwrap();
            let mut names: Vec<_> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        })
    }
}

pub(crate) fn prepare(snapshotter: &Snapshotter<PlainLowers>, key: &str, parent: Option<&str>) {
    let labels = HashMap::from([(
        "containerd.io/snapshot.ref".to_owned(),
        Digest([9; 32]).to_string(),
    )]);
    snapshotter.prepare(key, parent, labels).unwrap();
}

pub(crate) fn take(snapshotter: &Snapshotter<PlainLowers>, id: u64, bytes: u64) -> Taken {
    let fast = snapshotter.fast_layers().unwrap();
    fast.take(SnapshotId(id), &LAYER, bytes).unwrap()
}

pub(crate) fn used(snapshotter: &Snapshotter<PlainLowers>) -> u64 {
    snapshotter.fast_layers().unwrap().usage().used_bytes
}

pub(crate) fn is_on_fast(rig: &Rig, id: u64) -> bool {
    rig.path(&format!("root/snapshots/{id}")).is_symlink()
}
