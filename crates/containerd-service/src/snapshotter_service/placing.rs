//! `--layers-fast`: which layers are unpacked on the fast place (docs/tiering.md).
//!
//! containerd prepares a layer's snapshot before it has the layer, so the snapshot is on the disk
//! first. When containerd opens the layer's blob to unpack it, it waits at a `Gate` while the
//! snapshotter checks which parts of the pull are missing; a layer that the pull waits for then goes to the
//! fast place, and so does one that the disk cannot write in time. Where the kernel has no such gate, the
//! placement uses the sizes in the manifest.

mod content;
mod download;
mod gate;
mod weighing;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use blocks::Digest;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use snapshotter::{Adopted, FastLayers, SnapshotId, Taken, Unpack, Unpacks};
use tiering::lass::{Part, Placement, PullId, Pulls, place, weigh};

use super::layers_fast::LayersBy;
use crate::placement::sizes::{archive_bytes, archive_of, room_for};
use content::{Content, PulledImage};
use download::Foreseen;
use gate::Gate;
use host::interrupt::Interrupt;
use host::run_dir::RunDir;
use weighing::Weighing;

/// Layers that are watched at once; more are not placed.
const WAITING_MAX: usize = 1024;
/// A pull of which nothing was heard for so long hangs, or died and left its snapshots.
const HANGS: Duration = Duration::from_secs(600);
/// A pull of ours says six times in that time that it goes on: one that does not was killed.
const SILENT: Duration = Duration::from_secs(60);

/// Places layers. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct Placing(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    blobs: PathBuf,
    content: Mutex<Content>,
    gate: Option<Gate>,
    weighing: Weighing,
    layers: OnceLock<Weak<FastLayers>>,
    now: Mutex<PlacingState>,
}

#[derive(Debug, Default)]
struct PlacingState {
    pulls: Pulls,
    /// Layers that containerd has not begun to unpack.
    waiting: HashMap<SnapshotId, Layer>,
    /// Which layer of a pull was foreseen to be downloaded last, and of which layers.
    foreseen: HashMap<PullId, Foreseen>,
    placed: Placed,
    /// Layers that are to be unpacked, or are being.
    unpacking: HashSet<SnapshotId>,
    /// The time of the last event of any of them; at first, the start.
    heard: Option<Instant>,
    /// The time of the last event of pulls that unpack elsewhere, by the name of the pull.
    pulls_of_ours: HashMap<String, Instant>,
}

/// A layer of a pull.
#[derive(Clone, Debug)]
struct Layer {
    image: Arc<PulledImage>,
    index: usize,
    unpack: Unpack,
}

/// How many layers went where, and how many pulls went as foreseen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// Layers on the fast place: those that a pull waited for or would have, or whose part is unknown.
    pub fast: u64,
    /// Of these, layers that were unpacked while others were downloaded, but the disk would not have
    /// been done with them when that ended.
    #[serde(default)]
    pub late: u64,
    /// Layers that were unpacked while others were downloaded, on the disk.
    pub disk: u64,
    /// Layers for which the fast place was full.
    pub full: u64,
    /// Layers of unknown images; on the disk.
    pub unknown: u64,
    /// Pulls whose last layer was predicted from the manifest.
    pub foreseen: u64,
    /// Pulls of which another one was.
    pub not_foreseen: u64,
}

impl Placing {
    /// Returns one that places nothing before it is started.
    ///
    /// Layers are on the disk of `root` if they are not on the fast place.
    pub fn new(containerd_root: &Path, by: LayersBy, root: &Path, run_dir: &RunDir) -> Self {
        let content = Content::below(containerd_root);
        let gate = (by == LayersBy::Seen).then(|| {
            Gate::new().inspect_err(|error| {
                log::warn!(
                    "predicting layers from the manifest: the kernel lacks fanotify permission events ({error})"
                );
            })
        });
        Self(Arc::new(Shared {
            blobs: content.blobs().to_owned(),
            content: Mutex::new(content),
            gate: gate.and_then(Result::ok),
            weighing: Weighing::new(root, run_dir),
            layers: OnceLock::new(),
            now: Mutex::default(),
        }))
    }

    /// Begins to place layers, until the interrupt.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(
        &self,
        layers: &Arc<FastLayers>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<JoinHandle<()>> {
        let _first = self.0.layers.set(Arc::downgrade(layers));
        self.0.now.lock().heard = Some(Instant::now());
        // While the gate is open: who waits there waits for the thread below.
        self.0.content.lock().look();
        let (shared, interrupt) = (Arc::clone(&self.0), interrupt.clone());
        std::thread::Builder::new()
            .name("placing".to_owned())
            .spawn(move || {
                if let Some(gate) = &shared.gate {
                    gate.guard(&interrupt, |blob, file| shared.opened(blob, file));
                }
            })
            .context("starting the thread that places layers")
    }

    /// Returns the placements so far.
    pub fn placed(&self) -> Placed {
        self.0.now.lock().placed
    }

    /// Returns whether layers are pulled, or were less than this long ago.
    pub fn is_busy(&self, within: Duration) -> bool {
        let mut now = self.0.now.lock();
        now.pulls_of_ours
            .retain(|_, heard| heard.elapsed() < SILENT);
        let quiet = now.heard.map_or(Duration::ZERO, |at| at.elapsed());
        is_busy(now.unpacking.len() + now.pulls_of_ours.len(), quiet, within)
    }

    /// Notifies that a `yolofs pull` is in progress.
    pub fn pulls(&self, pull: &str) {
        let mut now = self.0.now.lock();
        now.heard = Some(Instant::now());
        if now.pulls_of_ours.len() < WAITING_MAX {
            now.pulls_of_ours.insert(pull.to_owned(), Instant::now());
        }
        drop(now);
        self.0.weighing.pulls(pull);
    }

    /// Notifies that a `yolofs pull` has ended.
    pub fn pulled(&self, pull: &str) {
        let mut now = self.0.now.lock();
        now.heard = Some(Instant::now());
        now.pulls_of_ours.remove(pull);
        drop(now);
        self.0.weighing.pulled(pull);
    }

    /// Returns how many bytes the disk writes in a second, if that is known.
    pub fn disk_bytes_per_second(&self) -> Option<u64> {
        self.0.weighing.bytes_per_second()
    }

    /// Returns by what layers are placed.
    pub fn by(&self) -> LayersBy {
        match self.0.gate {
            Some(_) => LayersBy::Seen,
            None => LayersBy::Foreseen,
        }
    }
}

impl Unpacks for Placing {
    fn begins(&self, unpack: Unpack) {
        self.0.begins(unpack);
    }

    fn adopted(&self, place: Adopted) {
        let mut now = self.0.now.lock();
        now.heard = Some(Instant::now());
        match place {
            Adopted::Fast => now.placed.fast += 1,
            Adopted::Disk => now.placed.disk += 1,
        }
    }

    fn ended(&self, id: SnapshotId) {
        let mut now = self.0.now.lock();
        now.waiting.remove(&id);
        if now.unpacking.remove(&id) {
            now.heard = Some(Instant::now());
        }
        self.0.open_if_idle(&now);
        drop(now);
        self.0.weighing.ended(id);
    }
}

impl Shared {
    fn begins(&self, unpack: Unpack) {
        let found = self.content.lock().find(&unpack.chain);
        let mut now = self.now.lock();
        now.heard = Some(Instant::now());
        if now.unpacking.len() < WAITING_MAX {
            now.unpacking.insert(unpack.id);
        }
        let Some((image, index)) = found.filter(|_| now.waiting.len() < WAITING_MAX) else {
            now.placed.unknown += 1;
            return;
        };
        let layer = Layer {
            image,
            index,
            unpack,
        };
        self.foresee(&mut now, &layer);
        let id = layer.unpack.id;
        now.waiting.insert(id, layer.clone());
        let closed = self.gate.as_ref().map(|gate| gate.close(&self.blobs));
        if matches!(closed, Some(Ok(()))) {
            return;
        }
        now.waiting.remove(&id);
        let foreseen = now.foreseen.get(&layer.image.pull);
        let part = foreseen.map_or(Part::Unknown, |of| of.predicted.part(layer.index));
        let bytes = archive_of(layer.image.layers[layer.index].size);
        self.put(&mut now, &layer, part, bytes, bytes);
    }

    /// Hears that a blob is being opened: whoever is going to unpack it waits for us.
    fn opened(&self, blob: Digest, file: &File) {
        let mut now = self.now.lock();
        let is_of = |layer: &Layer| layer.image.layers[layer.index].digest == blob;
        let waiting = now.waiting.values().filter(|layer| is_of(layer)).cloned();
        for layer in waiting.collect::<Vec<_>>() {
            now.waiting.remove(&layer.unpack.id);
            now.heard = Some(Instant::now());
            let bytes = archive_bytes(file);
            let part = self.part(&mut now, &layer, bytes);
            self.put(&mut now, &layer, part, bytes, room_for(bytes));
        }
        self.open_if_idle(&now);
    }

    /// Nobody has to wait at the gate while no layer does.
    fn open_if_idle(&self, now: &PlacingState) {
        if let Some(gate) = self.gate.as_ref().filter(|_| now.waiting.is_empty()) {
            gate.open(&self.blobs);
        }
    }

    /// Classifies a layer of so many bytes that is about to be unpacked.
    fn part(&self, now: &mut PlacingState, layer: &Layer, bytes: u64) -> Part {
        let pull = layer.image.pull;
        let missing = self.missing(layer);
        let blobs = missing.iter().map(|at| layer.image.layers[*at].digest);
        if let Err(full) = now.pulls.begin(pull, blobs) {
            log::warn!("too many pulls: a layer is placed without the others of its image: {full}");
        }
        let part = now.pulls.first_file(Some(pull));
        if missing.is_empty() {
            now.pulls.end(pull);
            self.compare(now, &layer.image);
        }
        let left = self.left(now, layer, &missing);
        let disk = left.and_then(|left| self.weighing.disk(&self.blobs, left.bytes));
        log::debug!(
            "layer {} of {bytes} bytes: {part:?}, {disk:?}, {left:?}",
            layer.index
        );
        weigh(part, bytes, disk.as_ref(), left.as_ref())
    }

    /// Places a layer whose archive has `bytes`, and whose files will take `on_fast` there.
    fn put(&self, now: &mut PlacingState, layer: &Layer, part: Part, bytes: u64, on_fast: u64) {
        let Some(fast) = self.layers.get().and_then(Weak::upgrade) else {
            now.placed.unknown += 1;
            return;
        };
        let usage = fast.usage();
        let room = usage.max_bytes.saturating_sub(usage.used_bytes);
        let placed = &mut now.placed;
        let taken = match place(part, on_fast, room) {
            Placement::Slow => Ok(Taken::Full),
            Placement::Fast => fast.take(layer.unpack.id, &layer.unpack.chain, on_fast),
        };
        match taken {
            _ if part == Part::Below => placed.disk += 1,
            Ok(Taken::Fast) => {
                placed.fast += 1;
                placed.late += u64::from(part == Part::Late);
                return;
            }
            Ok(Taken::Full) => placed.full += 1,
            Ok(Taken::Begun) => placed.unknown += 1,
            Err(error) => {
                log::warn!("unpacking a layer on the disk: {error}");
                placed.full += 1;
            }
        }
        self.weighing.goes_to_disk(layer.unpack.id, bytes);
    }
}

/// Whether so many layers are being pulled, of which nothing was heard for a while, or were `within`
/// a time.
fn is_busy(unpacking: usize, quiet: Duration, within: Duration) -> bool {
    match unpacking {
        0 => quiet < within,
        _ => quiet < within.max(HANGS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_that_hangs_holds_up_nobody_for_ever() {
        let [second, minute] = [1, 60].map(Duration::from_secs);
        assert!(is_busy(0, second, minute) && !is_busy(0, minute, minute));
        assert!(!is_busy(0, second, Duration::ZERO));
        assert!(is_busy(1, minute, second) && !is_busy(1, HANGS, second));
        assert!(
            is_busy(1, HANGS, HANGS * 2),
            "who wants to wait longer does"
        );
    }
}
