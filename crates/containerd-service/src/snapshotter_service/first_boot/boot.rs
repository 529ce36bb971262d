//! One container's first boot, from the preparation of its snapshot to its removal.

mod device;
mod keep;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use blocks::Digest;
use parking_lot::{Condvar, Mutex, MutexGuard};
use snapshotter::LayerDir;
use tracer::{Allowance, Limits};

use super::ending::{Ending, Watcher};
use super::view::{FirstBootStatus, Outcome};
use layers::recorded::RecordedLayer;
use layers::server::LayerPlace;

pub(crate) use keep::Keeper;

/// Longest recording: a container that reads for so long is no longer booting.
const LONGEST: Duration = Duration::from_secs(120);
/// How often it is looked whether a boot is over: the error of the time that is noted.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Why a recording ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The container is gone.
    Gone,
    /// Its snapshot was committed: it was a step of a build, or the parent of containers.
    Committed,
    /// The recorder is about to end.
    Leaving,
}

impl End {
    /// Returns why there is nothing to keep, if there is not.
    const fn is_no_boot(self) -> Option<&'static str> {
        match self {
            Self::Gone => None,
            Self::Leaving => Some("the snapshotter ended before it was over"),
            Self::Committed => Some("its snapshot was committed: it was no boot"),
        }
    }
}

/// A boot whose layers are mounted with recorders.
#[derive(Debug)]
pub(super) struct Boot {
    /// The container's key: `namespace/number/name`.
    pub(super) key: String,
    /// The chain ID of the whole image.
    top: Digest,
    dir: PathBuf,
    /// Nearest first, as overlayfs has them.
    pub(super) layers: Vec<RecordedLayer>,
    /// The device of the node that records it instead, if its image is a block image.
    pub(super) device: Option<String>,
    ending: Ending,
    pub(super) started: Instant,
    now: Mutex<BootProgress>,
    changed: Condvar,
}

#[derive(Clone, Debug, Default)]
struct BootProgress {
    /// It is over, or it took too long.
    is_booted: bool,
    end: Option<End>,
    /// The result of storing the recording: the image's reference, or the reason for the failure.
    kept: Option<Result<String, String>>,
}

impl Boot {
    /// Mounts the layers below `dir`.
    pub(super) fn start(
        dir: &Path,
        key: &str,
        layers: &[LayerDir],
        top: Digest,
        ending: Ending,
    ) -> anyhow::Result<Self> {
        let allowance = Arc::new(Allowance::new(Limits::OF_A_CONTAINER));
        let layers = layers.iter().map(|layer| {
            let target = dir.join(layer.id.to_string());
            std::fs::create_dir_all(&target)
                .with_context(|| format!("making {}", target.display()))?;
            let place = LayerPlace {
                // Only for people who read a log: the diff ID is not known yet.
                layer: layer.chain_id().unwrap_or(top),
                source: layer.dir.clone(),
                target,
                label: format!("recorded:{key}"),
            };
            RecordedLayer::start(&place, &allowance)
        });
        Ok(Self {
            key: key.to_owned(),
            top,
            dir: dir.to_owned(),
            layers: layers.collect::<anyhow::Result<_>>()?,
            device: None,
            ending,
            started: Instant::now(),
            now: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    pub(super) const fn top(&self) -> Digest {
        self.top
    }

    /// Returns where the layers are mounted.
    pub(super) fn places(&self) -> Vec<PathBuf> {
        let layers = self.layers.iter();
        layers.map(|layer| layer.place().target.clone()).collect()
    }

    pub(super) fn is_recording(&self) -> bool {
        let now = self.now.lock();
        !now.is_booted && now.end.is_none()
    }

    pub(super) fn end(&self, end: End) {
        self.now.lock().end.get_or_insert(end);
        self.changed.notify_all();
    }

    /// Returns whether content was read: a root that is only prepared looks names up.
    fn has_read(&self) -> bool {
        self.layers.iter().any(RecordedLayer::has_read)
    }

    /// Returns the time of the last request.
    pub(super) fn last_event(&self) -> Option<Instant> {
        let layers = self.layers.iter();
        layers.filter_map(RecordedLayer::last_event).max()
    }

    /// Returns how many of the layers are in use.
    pub(super) fn in_use(&self) -> usize {
        self.layers.iter().filter(|layer| !layer.is_over()).count()
    }

    /// Has the boot kept when it is over, and takes the mounts away when the container is gone.
    fn follow(&self, keeper: &Keeper) {
        let watcher = Watcher::new(&keeper.containerd, &self.key);
        let kept = match &self.device {
            Some(device) => self.follow_device(device, watcher, keeper),
            None => self.follow_layers(watcher, keeper),
        };
        if let Ok(image) = &kept {
            log::info!("the next boot of {image} is fast");
        }
        self.now.lock().kept = Some(kept);
        if self.wait_end() != End::Leaving {
            self.detach();
        }
    }

    fn follow_layers(&self, watcher: Watcher<'_>, keeper: &Keeper) -> Result<String, String> {
        let end = self.wait_booted(watcher);
        if let Some(why) = end.and_then(End::is_no_boot) {
            return Err(why.to_owned());
        }
        if !self.has_read() {
            return Err("nothing was read".to_owned());
        }
        keeper.keep(self).map_err(|error| {
            log::warn!("the first boot of {} is not kept: {error:#}", self.key);
            format!("{error:#}")
        })
    }

    /// Waits until it is over, or takes too long, or the container is gone.
    fn wait_booted(&self, mut watcher: Watcher<'_>) -> Option<End> {
        let longest = match self.ending {
            Ending::After(time) => time.max(LONGEST),
            _ => LONGEST,
        };
        let mut first_read = None;
        let mut now = self.now.lock();
        while now.end.is_none() && !now.is_booted {
            // Without the lock: containerd may be asked.
            let is_over = MutexGuard::unlocked(&mut now, || {
                let last_event = self.last_event().filter(|_| self.has_read());
                first_read = first_read.or(last_event);
                watcher.sees_end(self.ending, first_read, last_event)
            });
            now.is_booted = is_over || self.started.elapsed() >= longest;
            if !now.is_booted && now.end.is_none() {
                self.changed.wait_for(&mut now, LOOK_EVERY);
            }
        }
        now.end
    }

    /// Returns its status.
    pub(super) fn status(&self) -> FirstBootStatus {
        let kept = self.now.lock().kept.clone();
        let outcome = match kept {
            None => Outcome::Recording,
            Some(Ok(image)) => Outcome::Recorded { image },
            Some(Err(why)) => Outcome::Failed { why },
        };
        FirstBootStatus {
            container: self.key.clone(),
            until: self.ending.to_string(),
            outcome,
        }
    }

    /// Waits as long as the container lives: how long that is, is not ours to say.
    fn wait_end(&self) -> End {
        let mut now = self.now.lock();
        loop {
            match now.end {
                Some(end) => return end,
                None => self.changed.wait(&mut now),
            }
        }
    }

    /// Unmounts the layers; those in use are served until their users end.
    pub(super) fn detach(&self) {
        for layer in &self.layers {
            let target = &layer.place().target;
            if let Err(error) = layer.detach() {
                log::warn!("{error:#}");
            } else if let Err(error) = std::fs::remove_dir(target) {
                log::debug!("{}: {error}", target.display());
            }
        }
        if let Err(error) = std::fs::remove_dir(&self.dir) {
            log::debug!("{}: {error}", self.dir.display());
        }
    }
}

/// A boot, and the thread that follows it.
#[derive(Debug)]
pub(super) struct Follower {
    boot: Arc<Boot>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    pub(super) fn start(boot: Boot, keeper: Arc<Keeper>) -> anyhow::Result<Self> {
        let boot = Arc::new(boot);
        let followed = Arc::clone(&boot);
        let thread = std::thread::Builder::new()
            .name("first-boot".to_owned())
            .spawn(move || followed.follow(&keeper))
            .context("starting the thread that follows it")?;
        Ok(Self {
            boot,
            thread: Some(thread),
        })
    }

    pub(super) fn boot(&self) -> &Boot {
        &self.boot
    }

    /// Returns whether the container is gone and all work is done.
    pub(super) fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished) && self.boot.in_use() == 0
    }

    pub(super) fn join(&mut self) {
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            log::warn!("the recording of {} died", self.boot.key);
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.boot.end(End::Leaving);
        self.join();
    }
}
