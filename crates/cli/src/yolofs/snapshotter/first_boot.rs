//! The first boot of an image on this node, recorded with no one asking.
//!
//! The first container on an image that the store does not know gets layers that are mounted with
//! a recorder. When nothing was read from them for a while, or the container is gone, what was
//! read is kept as the boot images of the layers. The container goes on with these mounts: its
//! overlay cannot be given others.

mod keep;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use blocks::Digest;
use parking_lot::{Condvar, Mutex};
use snapshotter::{LayerDir, Snapshot, SnapshotId};

use super::mounts::clear_dead;
use crate::layers::{LayerPlace, RecordedLayer};
use crate::until::Until;
pub(super) use keep::Keeper;

/// What `yolofs.record` is called: containerd hands only labels with its prefix to a snapshotter.
const LABELS: [&str; 2] = ["containerd.io/snapshot/yolofs.record", "yolofs.record"];
/// containerd unpacks a layer into a snapshot with this label, or with such a key.
const UNPACKED_AS: &str = "containerd.io/snapshot.ref";
const UNPACK_PREFIX: &str = "extract-";
/// Boots that are recorded at once. Each holds the names of all files of its layers in memory.
const AT_ONCE: usize = 8;
/// Longest recording: a container that reads for so long is no longer booting.
const LONGEST: Duration = Duration::from_secs(120);

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
    boots: Mutex<HashMap<SnapshotId, Running>>,
}

#[derive(Debug)]
struct Running {
    boot: Arc<Boot>,
    thread: Option<JoinHandle<()>>,
}

/// One container's first boot.
#[derive(Debug)]
pub(super) struct Boot {
    /// The container's key: `namespace/number/name`.
    key: String,
    /// The chain ID of the whole image.
    top: Digest,
    /// Nearest first, as overlayfs has them.
    layers: Vec<RecordedLayer>,
    quiet: Duration,
    started: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Recording,
    /// The container is gone.
    Gone,
    /// So are we, soon.
    Leaving,
    Done,
}

impl FirstBoots {
    pub(super) fn new(policy: Policy, root: &Path, keeper: Keeper) -> Self {
        Self {
            policy,
            dir: root.join("recorded"),
            keeper: Arc::new(keeper),
            boots: Mutex::default(),
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
        is_known: bool,
    ) -> Option<Vec<Option<PathBuf>>> {
        let mut boots = self.boots.lock();
        if let Some(running) = boots.get(&snapshot.id) {
            return Some(running.boot.places());
        }
        let quiet = self.asked_for(snapshot)?;
        let top = layers.first()?.chain_id()?;
        let recording = boots
            .values()
            .filter(|r| *r.boot.state.lock() == State::Recording);
        let (mut count, mut same) = (0, false);
        for running in recording {
            count += 1;
            same |= running.boot.top == top;
        }
        if is_known || same || count >= AT_ONCE {
            return None;
        }
        match self.record(snapshot, layers, top, quiet) {
            Ok(running) => {
                let places = running.boot.places();
                boots.insert(snapshot.id, running);
                Some(places)
            }
            Err(error) => {
                log::warn!(
                    "the first boot of {} is not recorded: {error:#}",
                    snapshot.name
                );
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
                log::warn!("{}: yolofs.record={label} is not quiet:SECS", snapshot.name);
                self.policy.always
            }
        }
    }

    fn record(
        &self,
        snapshot: &Snapshot,
        layers: &[LayerDir],
        top: Digest,
        quiet: Duration,
    ) -> anyhow::Result<Running> {
        let dir = self.dir.join(snapshot.id.to_string());
        let layers = layers.iter().map(|layer| {
            let target = dir.join(layer.id.to_string());
            std::fs::create_dir_all(&target)
                .with_context(|| format!("making {}", target.display()))?;
            RecordedLayer::start(&LayerPlace {
                // Only for people who read a log: the diff ID is not known yet.
                layer: layer.chain_id().unwrap_or(top),
                source: layer.dir.clone(),
                target,
                label: format!("recorded:{}", snapshot.name),
            })
        });
        let boot = Arc::new(Boot {
            key: snapshot.name.clone(),
            top,
            layers: layers.collect::<anyhow::Result<_>>()?,
            quiet,
            started: Instant::now(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let (keeper, followed) = (Arc::clone(&self.keeper), Arc::clone(&boot));
        let thread = std::thread::Builder::new()
            .name("first-boot".to_owned())
            .spawn(move || followed.follow(&keeper))
            .context("starting the thread that follows it")?;
        log::info!("recording the first boot of {}", snapshot.name);
        Ok(Running {
            boot,
            thread: Some(thread),
        })
    }

    /// Hears that a snapshot is gone; if it was recorded, its boot is over, and so are its mounts
    /// once what was read is kept.
    pub(super) fn removed(&self, id: SnapshotId) {
        if let Some(running) = self.boots.lock().remove(&id) {
            running.boot.end(State::Gone);
        }
    }

    /// Ends all recordings, and takes their mounts away.
    pub(super) fn leave(&self) {
        for running in self.boots.lock().values_mut() {
            running.boot.end(State::Leaving);
            if let Some(thread) = running.thread.take()
                && thread.join().is_err()
            {
                log::warn!("the recording of {} died", running.boot.key);
            }
            running.boot.detach();
        }
    }

    /// Returns how many layers are still in use after [`leave`](Self::leave).
    pub(super) fn in_use(&self) -> usize {
        let boots = self.boots.lock();
        let layers = boots.values().flat_map(|running| &running.boot.layers);
        layers.filter(|layer| !layer.is_over()).count()
    }
}

impl Boot {
    fn places(&self) -> Vec<Option<PathBuf>> {
        let layers = self.layers.iter();
        layers
            .map(|layer| Some(layer.place().target.clone()))
            .collect()
    }

    fn end(&self, state: State) {
        let mut now = self.state.lock();
        if *now == State::Recording {
            *now = state;
        }
        drop(now);
        self.changed.notify_all();
    }

    /// Returns when something was read last.
    fn last_event(&self) -> Option<Instant> {
        self.layers
            .iter()
            .filter_map(RecordedLayer::last_event)
            .max()
    }

    /// Waits for the end of the boot, and has it kept.
    fn follow(&self, keeper: &Keeper) {
        let state = self.wait();
        if state != State::Leaving && self.last_event().is_some() {
            match keeper.keep(self) {
                Ok(stack) => log::info!("the next boot of {stack} is fast"),
                Err(error) => log::warn!("the first boot of {} is not kept: {error:#}", self.key),
            }
        }
        if state == State::Gone {
            self.detach();
        }
    }

    /// Waits until nothing was read for a while, or the container is gone, or it takes too long.
    fn wait(&self) -> State {
        let mut state = self.state.lock();
        while *state == State::Recording {
            let last = self.last_event();
            let quiet = last.map(|last| last + self.quiet);
            let end = self.started + LONGEST;
            let next = quiet.map_or(end, |quiet| quiet.min(end));
            if Instant::now() >= next {
                *state = State::Done;
                break;
            }
            // Before the first event nothing says when the quiet may begin.
            let look = last.map_or_else(|| end.min(Instant::now() + self.quiet), |_| next);
            self.changed.wait_until(&mut state, look);
        }
        *state
    }

    fn detach(&self) {
        for layer in &self.layers {
            if let Err(error) = layer.detach() {
                log::warn!("{error:#}");
            } else if let Err(error) = std::fs::remove_dir(&layer.place().target) {
                log::debug!("{}: {error}", layer.place().target.display());
            }
        }
        if let Some(dir) = self.layers.first().and_then(|l| l.place().target.parent()) {
            // Not empty if a layer stayed.
            drop(std::fs::remove_dir(dir));
        }
    }
}
