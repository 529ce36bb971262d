//! What the disk can write while the network still has work, so that a layer below the last one is not
//! waited for after all (docs/tiering.md, "When the disk does not keep up").

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use snapshotter::SnapshotId;
use tiering::lass::{Disk, Promised};

use crate::disk_writes::{DiskWrites, Measuring};
use host::run_dir::RunDir;

/// A layer that tells something of the disk.
const TELLING: u64 = 8 << 20;
/// How often the disk is measured: it is flushed for that.
const AGAIN: Duration = Duration::from_secs(600);

/// The disk of the layers.
#[derive(Debug)]
pub(super) struct Weighing {
    /// The root of the snapshots.
    root: PathBuf,
    run_dir: RunDir,
    /// The start: the zero of the clock of predictions.
    began: Instant,
    now: Mutex<WeighingState>,
}

#[derive(Debug, Default)]
struct WeighingState {
    promised: Promised,
    measuring: Option<(Unpacking, Measuring)>,
    measured: Option<Instant>,
}

/// Who unpacks to the disk while it is measured.
#[derive(Debug, PartialEq, Eq)]
enum Unpacking {
    /// containerd, into this snapshot.
    Layer(SnapshotId),
    /// A `yolofs pull` of this name, several layers at once.
    Pull(String),
}

impl Weighing {
    pub(super) fn new(root: &Path, run_dir: &RunDir) -> Self {
        Self {
            root: root.to_owned(),
            run_dir: run_dir.clone(),
            began: Instant::now(),
            now: Mutex::default(),
        }
    }

    /// Returns the disk's rate in bytes per second, if it is known.
    pub(super) fn bytes_per_second(&self) -> Option<u64> {
        let rate = DiskWrites::below(&self.root)?.rate(&self.run_dir)?;
        Some(rate.bytes_per_second())
    }

    /// Returns the state of the disk for a layer, while `coming` bytes are yet to be written to `blobs`; `None` if
    /// it is unknown.
    pub(super) fn disk(&self, blobs: &Path, coming: u64) -> Option<Disk> {
        let disk = DiskWrites::below(&self.root)?;
        let rate = disk.rate(&self.run_dir)?;
        let promised = self.now.lock().promised.waiting(self.began.elapsed(), rate);
        // It has to write these, too, by the same time.
        let is_same = DiskWrites::below(blobs).is_some_and(|of| of == disk);
        let blobs = if is_same { coming } else { 0 };
        // What was promised is on its way through what the kernel knows of.
        let waiting = promised.max(disk.waiting()).saturating_add(blobs);
        Some(Disk { rate, waiting })
    }

    /// Notifies that a layer of this size goes to the disk.
    pub(super) fn goes_to_disk(&self, id: SnapshotId, bytes: u64) {
        let Some(disk) = DiskWrites::below(&self.root) else {
            return;
        };
        let mut now = self.now.lock();
        if let Some(rate) = disk.rate(&self.run_dir) {
            now.promised.add(self.began.elapsed(), bytes, rate);
        }
        if self.is_due(&now, &disk) && bytes >= TELLING {
            let measuring = disk.measure();
            now.measuring = measuring.map(|measuring| (Unpacking::Layer(id), measuring));
        }
    }

    /// Notifies that a `yolofs pull` is in progress.
    pub(super) fn pulls(&self, pull: &str) {
        let Some(disk) = DiskWrites::below(&self.root) else {
            return;
        };
        let mut now = self.now.lock();
        let pull = Unpacking::Pull(pull.to_owned());
        let is_measured = now.measuring.as_ref().is_some_and(|(of, _)| *of == pull);
        if self.is_due(&now, &disk) && !is_measured {
            now.measuring = disk.measure().map(|measuring| (pull, measuring));
        }
    }

    /// Returns whether the disk is to be measured: it is flushed for that.
    fn is_due(&self, now: &WeighingState, disk: &DiskWrites) -> bool {
        now.measured.is_none_or(|at| at.elapsed() >= AGAIN)
            && !disk.is_known_since(AGAIN, &self.run_dir)
    }

    /// Notifies that a snapshot, perhaps another one, is committed or removed.
    pub(super) fn ended(&self, id: SnapshotId) {
        self.unpacked(&Unpacking::Layer(id));
    }

    /// Notifies that a `yolofs pull` has ended.
    pub(super) fn pulled(&self, pull: &str) {
        self.unpacked(&Unpacking::Pull(pull.to_owned()));
    }

    fn unpacked(&self, who: &Unpacking) {
        let mut now = self.now.lock();
        let Some((_, measuring)) = now.measuring.take_if(|(of, _)| of == who) else {
            return;
        };
        now.measured = Some(Instant::now());
        drop(now);
        let (root, run_dir) = (self.root.clone(), self.run_dir.clone());
        // Nobody waits for it; containerd waits for us.
        let thread = std::thread::Builder::new().name("measuring".to_owned());
        let measured = thread.spawn(move || {
            if let Err(error) = measuring.unpacked(&root, &run_dir) {
                log::warn!("cannot measure the disk: {error:#}");
            }
        });
        if let Err(error) = measured {
            log::warn!("cannot measure the disk: {error}");
        }
    }
}
