//! Automatic recording of the first boot of an image on this node.
//!
//! The first container of an image that the store does not know gets layers that are mounted with
//! a recorder. When the boot is over (after silence, a time, an open port or the end of the process), or the
//! container is gone, the recordings are stored as the boot images of the layers. The container keeps these mounts:
//! the lower layers of an overlay cannot be changed.
//!
//! This happens in a separate process ([`recorder`]), which outlives the snapshotter: this module is the
//! code of that process, and `hand` is the snapshotter's client of it.

mod asked;
mod boot;
mod ending;
mod hand;
pub mod recorder;
mod talk;
mod view;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use blocks::Digest;
use parking_lot::Mutex;
use snapshotter::SnapshotId;

use super::mounts::clear_dead;
pub(super) use asked::Policy;
pub(super) use boot::Keeper;
use boot::{Boot, End, Follower};
pub(super) use ending::Ending;
pub(super) use hand::FirstBootsHand;
use talk::{Boots, Wanted};
use view::REMEMBERED;
pub use view::{FirstBootStatus, Outcome};

/// What containerd's configuration is expected to call this snapshotter. It only matters to
/// requests that we do not make.
pub(super) const SNAPSHOTTER: &str = "yolofs";

/// Boots that are recorded at once. Each holds the names that it met, and what it did, in memory.
const AT_ONCE: usize = 8;

/// The recordings.
#[derive(Debug)]
struct FirstBoots {
    dir: PathBuf,
    keeper: Arc<Keeper>,
    now: Mutex<FirstBootsState>,
}

#[derive(Debug, Default)]
struct FirstBootsState {
    /// By the container's snapshot, from its preparation to its removal.
    boots: HashMap<SnapshotId, Follower>,
    /// The images whose recorders are being mounted.
    starting: HashSet<Digest>,
    /// Boots whose containers are gone, for status requests.
    past: VecDeque<FirstBootStatus>,
}

impl FirstBoots {
    fn new(root: &Path, keeper: Keeper) -> Self {
        Self {
            dir: root.join("recorded"),
            keeper: Arc::new(keeper),
            now: Mutex::default(),
        }
    }

    /// Clears what a former process left mounted.
    fn start(&self) -> anyhow::Result<()> {
        let dir = &self.dir;
        rawio::private::keep(dir).with_context(|| format!("making {}", dir.display()))?;
        // Recorders are never the node's.
        clear_dead(dir, &BTreeSet::new())
    }

    /// Returns where the layers of a container are recorded; `None` if they are not. Starts to, unless
    /// there is a reason not to.
    fn record(&self, wanted: &Wanted) -> Option<Vec<PathBuf>> {
        let (id, top) = (SnapshotId(wanted.id), wanted.top);
        // Bound first: what a `match` or `if let` looks at is dropped only after its arms, and an arm
        // takes the lock, too.
        let known = self.now.lock().places(id);
        if known.is_some() {
            return known;
        }
        let admission = self.now.lock().admit(top);
        match admission {
            Admission::Granted => {}
            Admission::BeingRecorded => return None,
            Admission::Full => {
                let why = format!("{AT_ONCE} other first boots are being recorded");
                self.not_begun(wanted, why);
                return None;
            }
        }
        // Mounting the layers may wait for a cold disk: without the lock.
        let started = self.begin(wanted);
        let mut now = self.now.lock();
        now.starting.remove(&top);
        match started {
            Ok(follower) => {
                log::info!("recording the first boot of {}", wanted.name);
                let places = follower.boot().places();
                now.boots.insert(id, follower);
                Some(places)
            }
            Err(error) => {
                drop(now);
                self.not_begun(wanted, format!("{error:#}"));
                None
            }
        }
    }

    fn begin(&self, wanted: &Wanted) -> anyhow::Result<Follower> {
        let dir = self.dir.join(wanted.id.to_string());
        let (layers, ending) = (wanted.layers(), wanted.ending()?);
        let mut boot = Boot::start(&dir, &wanted.name, &layers, wanted.top, ending)?;
        boot.device.clone_from(&wanted.device);
        Follower::start(boot, Arc::clone(&self.keeper))
    }

    /// Tells that a boot is not recorded, to those who look, too.
    fn not_begun(&self, wanted: &Wanted, why: String) {
        let container = wanted.name.clone();
        log::warn!("the first boot of {container} is not recorded: {why}");
        self.now.lock().remember(FirstBootStatus {
            container,
            until: wanted.until().to_owned(),
            outcome: Outcome::Failed { why },
        });
    }

    /// Hears that a snapshot is gone, or is a container's no more. If it was recorded its boot is
    /// over, and its mounts go once what was read is kept.
    fn end(&self, id: SnapshotId, end: End) {
        let now = self.now.lock();
        if let Some(follower) = now.boots.get(&id) {
            follower.boot().end(end);
        }
    }

    /// Returns the boots that are or were recorded, those that are not over at the end.
    fn all(&self) -> Boots {
        let now = self.now.lock();
        let mut boots: Vec<_> = now.boots.iter().collect();
        boots.sort_by_key(|(_, follower)| follower.boot().started);
        let present = boots.iter().map(|(_, follower)| follower.boot().status());
        Boots {
            status: now.past.iter().cloned().chain(present).collect(),
            places: boots
                .iter()
                .map(|(id, follower)| (id.0, follower.boot().places()))
                .collect(),
        }
    }

    /// Returns whether no boot is being recorded, and no source of a recording is in use.
    fn are_over(&self) -> bool {
        let now = self.now.lock();
        now.starting.is_empty() && now.boots.values().all(Follower::is_over)
    }

    /// Ends all recordings, and takes their mounts away.
    fn leave(&self) {
        let mut boots = std::mem::take(&mut self.now.lock().boots);
        for follower in boots.values() {
            follower.boot().end(End::Leaving);
        }
        // Keeping a boot and unmounting take a while: without the lock.
        for follower in boots.values_mut() {
            follower.join();
            follower.boot().detach();
        }
        self.now.lock().boots.extend(boots);
    }

    /// Returns how many layers are still in use after [`leave`](Self::leave).
    fn in_use(&self) -> usize {
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
    /// Too many boots are being recorded.
    Full,
}

impl FirstBootsState {
    /// Returns where the layers of a container are recorded; `None` if they are not.
    fn places(&self, id: SnapshotId) -> Option<Vec<PathBuf>> {
        let follower = self.boots.get(&id)?;
        Some(follower.boot().places())
    }

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
        let mut now = FirstBootsState::default();
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
        let mut now = FirstBootsState::default();
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
