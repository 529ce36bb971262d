//! The first boot of an image on this node, recorded with no one asking.
//!
//! The first container on an image that the store does not know gets layers that are mounted with
//! a recorder. When the boot is over, which may be known by silence, time, a port or its end, or the
//! container is gone, what was read is kept as the boot images of the layers. The container goes on with these mounts: its
//! overlay cannot be given others.

mod boot;
mod ending;
mod keep;
mod view;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use blocks::Digest;
use parking_lot::Mutex;
use snapshotter::{LayerDir, Snapshot, SnapshotId};

use super::mounts::clear_dead;
use crate::until::Until;
use boot::{Boot, End, Follower};
pub(super) use ending::Ending;
pub(super) use keep::Keeper;
use view::REMEMBERED;
pub(super) use view::{FirstBootStatus, Outcome};

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
    /// Those without a label too, until this.
    pub(super) always: Option<Ending>,
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
    /// Boots whose containers are gone, for those who look.
    past: VecDeque<FirstBootStatus>,
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
        // Recorders are never the node's.
        clear_dead(dir, &BTreeSet::new())
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
        let ending = self.asked_for(snapshot)?;
        let top = layers.first()?.chain_id()?;
        if is_known(&top) {
            return None;
        }
        match self.now.lock().admit(top) {
            Admission::Granted => {}
            Admission::BeingRecorded => return None,
            Admission::Full => {
                let why = format!("{AT_ONCE} other first boots are being recorded");
                self.not_begun(snapshot, ending, why);
                return None;
            }
        }
        // Mounting the layers may wait for a cold disk: without the lock.
        let dir = self.dir.join(snapshot.id.to_string());
        let started = Boot::start(&dir, &snapshot.name, layers, top, ending)
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
                drop(now);
                self.not_begun(snapshot, ending, format!("{error:#}"));
                None
            }
        }
    }

    /// Tells that a boot is not recorded, to those who look, too.
    fn not_begun(&self, snapshot: &Snapshot, ending: Ending, why: String) {
        let container = snapshot.name.clone();
        log::warn!("the first boot of {container} is not recorded: {why}");
        self.now.lock().remember(FirstBootStatus {
            container,
            until: ending.to_string(),
            outcome: Outcome::Failed { why },
        });
    }

    /// Returns when the boot of `snapshot` is over, if it is to be recorded.
    fn asked_for(&self, snapshot: &Snapshot) -> Option<Ending> {
        let name = snapshot.name.rsplit('/').next().unwrap_or_default();
        if snapshot.labels.contains_key(UNPACKED_AS) || name.starts_with(UNPACK_PREFIX) {
            return None;
        }
        let mut labels = LABELS
            .iter()
            .filter_map(|label| snapshot.labels.get(*label));
        let Some(label) = labels.next() else {
            return self.policy.always;
        };
        let until = label.parse::<Until>();
        match until.and_then(|until| Ending::try_from(&until)) {
            Ok(ending) => Some(ending),
            Err(error) => {
                let name = &snapshot.name;
                log::warn!("{name}: yolofs.record={label}: {error:#}");
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

    /// Returns the boots that are or were recorded, those that are not over at the end.
    pub(super) fn status(&self) -> Vec<FirstBootStatus> {
        let now = self.now.lock();
        let mut boots: Vec<_> = now.boots.values().map(Follower::boot).collect();
        boots.sort_by_key(|boot| boot.started);
        let present = boots.into_iter().map(Boot::status);
        now.past.iter().cloned().chain(present).collect()
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

/// Whether a boot may be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// It has a place now.
    Granted,
    /// Another container's boot of the same image is being recorded.
    BeingRecorded,
    /// Too many others are being recorded.
    Full,
}

impl Now {
    /// Finds a place for another boot.
    fn admit(&mut self, top: Digest) -> Admission {
        let over = self.boots.extract_if(|_, follower| follower.is_over());
        let over: Vec<_> = over.map(|(_, follower)| follower.boot().status()).collect();
        for boot in over {
            self.remember(boot);
        }
        let recording = self
            .boots
            .values()
            .map(Follower::boot)
            .filter(|boot| boot.is_recording());
        let tops: Vec<Digest> = recording.map(|boot| boot.top()).collect();
        if tops.contains(&top) || self.starting.contains(&top) {
            return Admission::BeingRecorded;
        }
        if tops.len() + self.starting.len() >= AT_ONCE {
            return Admission::Full;
        }
        self.starting.insert(top);
        Admission::Granted
    }

    /// Remembers what became of a boot; of one container the last, and of all the latest.
    fn remember(&mut self, boot: FirstBootStatus) {
        self.past.retain(|past| past.container != boot.container);
        self.past.push_back(boot);
        let forgotten = self.past.len().saturating_sub(REMEMBERED);
        self.past.drain(..forgotten);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_boots_are_recorded_at_once() {
        let mut now = Now::default();
        let top = |byte| Digest([byte; 32]);
        for byte in 0..8 {
            assert_eq!(now.admit(top(byte)), Admission::Granted);
        }
        assert_eq!(now.admit(top(3)), Admission::BeingRecorded);
        assert_eq!(now.admit(top(8)), Admission::Full);
        now.starting.remove(&top(3));
        assert_eq!(now.admit(top(8)), Admission::Granted);
    }

    #[test]
    fn what_became_of_a_container_is_remembered_once() {
        let mut now = Now::default();
        let boot = |container: String, why: &str| FirstBootStatus {
            container,
            until: "exit".to_owned(),
            outcome: Outcome::Failed {
                why: why.to_owned(),
            },
        };
        for number in 0..=REMEMBERED {
            now.remember(boot(format!("default/{number}/c"), "full"));
        }
        assert_eq!(now.past.len(), REMEMBERED);
        now.remember(boot("default/7/c".to_owned(), "still full"));
        let of_it = now
            .past
            .iter()
            .filter(|past| past.container == "default/7/c");
        let outcomes: Vec<_> = of_it.map(|past| past.outcome.clone()).collect();
        let why = "still full".to_owned();
        assert_eq!(outcomes, [Outcome::Failed { why }]);
    }
}
