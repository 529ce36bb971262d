//! The first boot of an image on this node, recorded with no one asking.
//!
//! The first container on an image that the store does not know gets layers that are mounted with
//! a recorder. When nothing was read from them for a while, or the container is gone, what was
//! read is kept as the boot images of the layers. The container goes on with these mounts: its
//! overlay cannot be given others.

mod boot;
mod keep;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use blocks::Digest;
use parking_lot::Mutex;
use snapshotter::{LayerDir, Snapshot, SnapshotId};

use super::mounts::clear_dead;
use crate::until::Until;
use boot::{Boot, End, Follower};
pub(super) use keep::Keeper;

/// What `yolofs.record` is called: containerd hands only labels with its prefix to a snapshotter.
const LABELS: [&str; 2] = ["containerd.io/snapshot/yolofs.record", "yolofs.record"];
/// containerd unpacks a layer into a snapshot with this label, or with such a key.
const UNPACKED_AS: &str = "containerd.io/snapshot.ref";
const UNPACK_PREFIX: &str = "extract-";
/// Boots that are recorded at once. Each holds the names that it met, and what it did, in memory.
const AT_ONCE: usize = 8;

/// Which first boots are recorded, and until when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    /// Those without a label too; until nothing was read for so long.
    pub(super) always: Option<Duration>,
}

/// The recordings.
#[derive(Debug)]
pub(super) struct FirstBoots {
    policy: Policy,
    dir: PathBuf,
    keeper: Arc<Keeper>,
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    /// By the container's snapshot, from its preparation to its removal.
    boots: HashMap<SnapshotId, Follower>,
    /// The images whose recorders are being mounted.
    starting: HashSet<Digest>,
}

impl FirstBoots {
    pub(super) fn new(policy: Policy, root: &Path, keeper: Keeper) -> Self {
        Self {
            policy,
            dir: root.join("recorded"),
            keeper: Arc::new(keeper),
            now: Mutex::default(),
        }
    }

    /// Clears what a former process left mounted.
    pub(super) fn start(&self) -> anyhow::Result<()> {
        let dir = &self.dir;
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        clear_dead(dir)
    }

    /// Returns where the layers of a container are recorded; `None` if they are not. Starts to,
    /// if it is the first of its image and the policy or a label asks for it.
    pub(super) fn places(
        &self,
        snapshot: &Snapshot,
        layers: &[LayerDir],
        is_known: impl FnOnce(&Digest) -> bool,
    ) -> Option<Vec<Option<PathBuf>>> {
        if let Some(follower) = self.now.lock().boots.get(&snapshot.id) {
            return Some(follower.boot().places());
        }
        let quiet = self.asked_for(snapshot)?;
        let top = layers.first()?.chain_id()?;
        if is_known(&top) || !self.now.lock().admits(top) {
            return None;
        }
        // Mounting the layers may wait for a cold disk: without the lock.
        let dir = self.dir.join(snapshot.id.to_string());
        let started = Boot::start(&dir, &snapshot.name, layers, top, quiet)
            .and_then(|boot| Follower::start(boot, Arc::clone(&self.keeper)));
        let mut now = self.now.lock();
        now.starting.remove(&top);
        match started {
            Ok(follower) => {
                log::info!("recording the first boot of {}", snapshot.name);
                let places = follower.boot().places();
                now.boots.insert(snapshot.id, follower);
                Some(places)
            }
            Err(error) => {
                let name = &snapshot.name;
                log::warn!("the first boot of {name} is not recorded: {error:#}");
                None
            }
        }
    }

    /// Returns after how much quiet the boot of `snapshot` is over, if it is to be recorded.
    fn asked_for(&self, snapshot: &Snapshot) -> Option<Duration> {
        let name = snapshot.name.rsplit('/').next().unwrap_or_default();
        if snapshot.labels.contains_key(UNPACKED_AS) || name.starts_with(UNPACK_PREFIX) {
            return None;
        }
        let label = LABELS.iter().find_map(|label| snapshot.labels.get(*label));
        match label.map(|label| (label, label.parse())) {
            None => self.policy.always,
            Some((_, Ok(Until::Quiet(quiet)))) => Some(quiet),
            Some((label, _)) => {
                let name = &snapshot.name;
                log::warn!("{name}: yolofs.record={label} is not quiet:SECS");
                self.policy.always
            }
        }
    }

    /// Hears that a snapshot is gone. If it was recorded its boot is over, and its mounts go once
    /// what was read is kept.
    pub(super) fn removed(&self, id: SnapshotId) {
        if let Some(follower) = self.now.lock().boots.get(&id) {
            follower.boot().end(End::Gone);
        }
    }

    /// Ends all recordings, and takes their mounts away.
    pub(super) fn leave(&self) {
        let mut now = self.now.lock();
        for follower in now.boots.values() {
            follower.boot().end(End::Leaving);
        }
        for follower in now.boots.values_mut() {
            follower.join();
            follower.boot().detach();
        }
    }

    /// Returns how many layers are still in use after [`leave`](Self::leave).
    pub(super) fn in_use(&self) -> usize {
        let now = self.now.lock();
        now.boots
            .values()
            .map(|follower| follower.boot().in_use())
            .sum()
    }
}

impl Now {
    /// Returns whether another boot may be recorded, and takes a place for it.
    fn admits(&mut self, top: Digest) -> bool {
        self.boots.retain(|_, follower| !follower.is_over());
        let recording = self
            .boots
            .values()
            .map(Follower::boot)
            .filter(|boot| boot.is_recording());
        let tops: Vec<Digest> = recording.map(|boot| boot.top()).collect();
        if tops.contains(&top) || tops.len() + self.starting.len() >= AT_ONCE {
            return false;
        }
        self.starting.insert(top)
    }
}
