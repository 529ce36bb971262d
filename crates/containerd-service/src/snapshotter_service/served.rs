//! Committed layers, served from their boot images.
//!
//! A layer whose chain the store knows is mounted at `<root>/served/<number>`, in the background,
//! and stays mounted as long as its snapshot lives. An overlay that is asked for while its layers
//! are being mounted waits a little, for a start from the plain directories costs more. It does not wait for more
//! layers than are mounted in that time: such an image was just pulled, and its files are in memory.

mod all_first;
mod attach_time;
mod looked;
mod queue;
mod work;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use blocks::Digest;
use bootimg::{ImageId, Store};
use engine::containerd::PLAIN_LABEL;
use parking_lot::{Condvar, Mutex};
use snapshotter::{Kind, LayerDir, Lowers, Snapshot, SnapshotId};

use super::chains::Chains;
use super::first_boot::{FirstBootStatus, FirstBootsHand};
use super::kernel::maps_fuse;
use super::mounts::clear_dead;
use super::status::mount_label;
use host::interrupt::Interrupt;
use host::mount_table::is_covered;
use host::run_dir::RunDir;
use layers::server::{LayerServer, ServedBy, WarmedLayer};
use layers::status::LayerStatus;
use node_records::left::living_mounts;
use yolofs::XattrAnswers;

use looked::Stamp;
use queue::{Job, Known, QueueState, ServingState};

/// Threads that mount layers: mounting waits for the disk, and more would take the processors from those who start containers.
const THREADS: usize = 2;
/// Longest wait for layers that are being mounted: what a boot from a busy disk loses in any case.
const PATIENCE: Duration = Duration::from_secs(2);

/// Serves the layers of a snapshotter. Clones are handles to the same.
#[derive(Clone, Debug)]
pub(super) struct ServedLowers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    server: Box<dyn LayerServer>,
    run_dir: RunDir,
    dir: PathBuf,
    label: String,
    now: Mutex<QueueState>,
    changed: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
    first_boots: Arc<FirstBootsHand>,
    kernel_maps: bool,
}

impl ServedLowers {
    /// Returns one that serves nothing before it is started.
    ///
    /// # Errors
    /// As [`layers::choose::server`].
    pub(super) fn new(
        store: Store,
        root: &Path,
        run_dir: &RunDir,
        first_boots: Arc<FirstBootsHand>,
        xattrs: XattrAnswers,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        let label = mount_label(root);
        Ok(Self(Arc::new(Shared {
            server: layers::choose::server(store, &label, run_dir, xattrs, interrupt)?,
            run_dir: run_dir.clone(),
            dir: root.join("served"),
            label,
            now: Mutex::default(),
            changed: Condvar::new(),
            threads: Mutex::default(),
            first_boots,
            kernel_maps: maps_fuse(),
        })))
    }

    /// Unmounts the mounts of a former process, except the node's, and begins to serve.
    /// `present` are the existing snapshots.
    ///
    /// # Errors
    /// If the directory cannot be used, or no threads can be started.
    pub(super) fn start(
        &self,
        present: &BTreeSet<SnapshotId>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let dir = &self.0.dir;
        rawio::private::keep(dir).with_context(|| format!("making {}", dir.display()))?;
        clear_dead(dir, &living_mounts(&self.0.run_dir)?)?;
        self.0.first_boots.start(present, interrupt);
        self.0.refresh();
        self.0.detach_strangers();
        for number in 0..THREADS {
            let shared = Arc::clone(&self.0);
            let thread = std::thread::Builder::new()
                .name(format!("layers-{number}"))
                .spawn(move || shared.work())
                .context("starting the threads that mount layers")?;
            self.0.threads.lock().push(thread);
        }
        Ok(())
    }

    /// Unmounts all; mounts in use are served until their users end. The node's mounts stay, and so
    /// do recorders: the successor finds them there.
    pub(super) fn leave(&self) {
        self.0.now.lock().ending = true;
        self.0.changed.notify_all();
        for thread in self.0.threads.lock().drain(..) {
            if thread.join().is_err() {
                log::warn!("a thread that mounts layers died");
            }
        }
        if self.0.server.served_by() == ServedBy::Service {
            self.0.server.detach_all();
        }
    }

    /// Returns the layers that are served, how many are plain, and the first boots.
    pub(super) fn status(&self) -> (Vec<LayerStatus>, usize, Vec<FirstBootStatus>) {
        let layers = self.0.server.status();
        let plain = {
            let now = self.0.now.lock();
            let plain = |known: &&Known| known.state == ServingState::Plain;
            now.layers.values().filter(plain).count()
        };
        (layers, plain, self.0.first_boots.status())
    }

    /// Brings a boot image into the page cache of the layers that this process serves from it.
    pub(super) fn prewarm(&self, image: &ImageId) -> Vec<WarmedLayer> {
        self.0.server.prewarm(image)
    }

    /// Has what the kernel dropped of an image's layers brought into memory again, in the background, and
    /// returns how many layers that are.
    pub(super) fn warm_image(&self, image: &str) -> usize {
        self.0.refresh();
        let mut now = self.0.now.lock();
        let chains: BTreeSet<Digest> = now.chains.image(image).iter().copied().collect();
        let is_of = |known: &&Known| known.layer.chain_id().is_some_and(|c| chains.contains(&c));
        let layers: Vec<_> = now
            .layers
            .values()
            .filter(is_of)
            .map(|known| known.layer.id)
            .collect();
        let warmed = now.warm(layers);
        drop(now);
        self.0.changed.notify_all();
        warmed
    }

    /// Returns which process serves the layers.
    pub(super) fn served_by(&self) -> ServedBy {
        self.0.server.served_by()
    }

    /// Returns how many layers are still in use after [`leave`](Self::leave).
    pub(super) fn in_use(&self) -> usize {
        self.0.server.leaving()
    }
}

impl Lowers for ServedLowers {
    fn places(&self, snapshot: &Snapshot, layers: &[LayerDir]) -> Vec<Option<PathBuf>> {
        self.0.refresh();
        let shared = &self.0;
        if snapshot.labels.contains_key(PLAIN_LABEL) {
            // A recorder is there, or is about to be.
            return Vec::new();
        }
        if snapshot.kind == Kind::Active {
            let is_known = |top: &Digest| shared.now.lock().chains.is_image(top);
            let recorded = shared.first_boots.places(snapshot, layers, is_known);
            if let Some(places) = recorded {
                return mounted(places);
            }
        }
        shared.regain(layers);
        let places = mounted(shared.served(layers));
        if snapshot.kind == Kind::Active {
            shared.warm(layers);
        }
        places
    }

    /// FUSE has idmapped mounts since Linux 6.12, for file systems that ask for them as ours does.
    fn may_be_mapped(&self) -> bool {
        self.0.kernel_maps
    }

    fn committed(&self, layer: &LayerDir) {
        self.0.first_boots.committed(layer.id);
        let mut now = self.0.now.lock();
        let known = Known {
            layer: layer.clone(),
            state: ServingState::Plain,
            follows: false,
            failed: None,
        };
        now.layers.insert(layer.id, known);
        now.want(layer.id);
        let at = Instant::now();
        now.commits = Some((now.commits.map_or(at, |(first, _)| first), at));
        drop(now);
        self.0.changed.notify_all();
    }

    fn follow(&self, layer: &LayerDir) -> bool {
        let mut now = self.0.now.lock();
        if now.at_work.contains(&layer.id) || now.jobs.iter().any(|job| job.layer() == layer.id) {
            return false;
        }
        let Some(known) = now.layers.get_mut(&layer.id) else {
            return true;
        };
        if known.state == ServingState::Plain || known.follows {
            return true;
        }
        known.state = ServingState::Renewing;
        now.jobs.push_back(Job::Reattach(layer.id));
        drop(now);
        self.0.changed.notify_all();
        false
    }

    fn removed(&self, id: SnapshotId) {
        self.0.first_boots.removed(id);
        let mut now = self.0.now.lock();
        if now
            .layers
            .remove(&id)
            .is_some_and(|known| known.state != ServingState::Plain)
        {
            now.jobs.push_back(Job::Detach(id));
            drop(now);
            self.0.changed.notify_all();
        }
    }
}

/// Returns the places where something is mounted. An empty directory in the place of a layer would
/// be taken for one without files.
fn mounted(places: Vec<Option<PathBuf>>) -> Vec<Option<PathBuf>> {
    let places = places.into_iter();
    places
        .map(|place| place.filter(|place| is_covered(place)))
        .collect()
}

impl Shared {
    /// Learns what the store has learnt. Two calls of stat(2) if that is nothing.
    fn refresh(&self) {
        let changed = Stamp::of(self.server.store());
        let due = {
            let now = self.now.lock();
            now.looked.due(changed, now.is_mounting())
        };
        let Some(due) = due else { return };
        let chains = due.images.then(|| self.server.store().stacks());
        let chains = match chains.transpose() {
            Ok(stacks) => stacks.map(|stacks| Chains::of(&stacks)),
            Err(error) => {
                log::warn!("cannot list the images in the store: {error}");
                return;
            }
        };
        let outdated = match due.names {
            true => self.server.outdated(),
            false => BTreeSet::new(),
        };
        let mut now = self.now.lock();
        if let Some(chains) = chains {
            now.chains = chains;
        }
        now.looked.note(changed, due);
        let ids: Vec<SnapshotId> = now.layers.keys().copied().collect();
        for id in ids {
            now.want(id);
            if outdated.contains(&self.place(id)) {
                now.renew(id);
            }
        }
        drop(now);
        self.changed.notify_all();
    }

    /// Has layers served again whose mounts somebody took away, and those that could not be mounted
    /// some time ago.
    fn regain(&self, layers: &[LayerDir]) {
        let served = |now: &QueueState, layer: &LayerDir| {
            let known = now.layers.get(&layer.id);
            known.is_some_and(|known| known.state == ServingState::Served)
        };
        let mut lost: Vec<SnapshotId> = {
            let now = self.now.lock();
            let served = layers.iter().filter(|layer| served(&now, layer));
            served.map(|layer| layer.id).collect()
        };
        lost.retain(|id| !is_covered(&self.place(*id)));
        let mut now = self.now.lock();
        for id in lost {
            now.lost(id);
        }
        for layer in layers {
            now.try_again(layer.id);
        }
        drop(now);
        self.changed.notify_all();
    }

    /// Has the pages of layers brought into memory again that the kernel dropped, in the background.
    fn warm(&self, layers: &[LayerDir]) {
        self.now.lock().warm(layers.iter().map(|layer| layer.id));
        self.changed.notify_all();
    }

    /// Returns where `layers` are served, after a little wait for those that are coming.
    fn served(&self, layers: &[LayerDir]) -> Vec<Option<PathBuf>> {
        let deadline = Instant::now() + PATIENCE;
        let mut now = self.now.lock();
        let is = |now: &QueueState, layer: &LayerDir, states: [ServingState; 2]| {
            let known = now.layers.get(&layer.id);
            known.is_some_and(|known| states.contains(&known.state))
        };
        let changes = |now: &QueueState, layer| {
            is(now, layer, [ServingState::Coming, ServingState::Renewing])
        };
        if layers.iter().any(|layer| changes(&now, layer)) {
            now.need_now(layers);
            self.changed.notify_all();
        }
        while !now.ending {
            let coming = layers.iter().filter(|layer| changes(&now, layer)).count();
            if coming == 0 || now.attach_time.of(coming, THREADS) > PATIENCE {
                break;
            }
            if self.changed.wait_until(&mut now, deadline).timed_out() {
                break;
            }
        }
        let served = layers.iter().map(|layer| {
            let is_served = is(&now, layer, [ServingState::Served, ServingState::Renewing]);
            is_served.then(|| self.place(layer.id))
        });
        served.collect()
    }

    /// Lets go of what the node still serves for a former process and nobody wants: snapshots that
    /// are gone, and layers that the store knows no more.
    fn detach_strangers(&self) {
        let wanted: BTreeSet<PathBuf> = {
            let now = self.now.lock();
            let wanted = now.layers.iter();
            let wanted = wanted.filter(|(_, known)| known.state != ServingState::Plain);
            wanted.map(|(id, _)| self.place(*id)).collect()
        };
        let strangers = self.server.targets().into_iter();
        for target in strangers.filter(|target| !wanted.contains(target)) {
            if let Err(error) = self.server.detach(&target) {
                log::warn!("{error:#}");
            } else if let Err(error) = std::fs::remove_dir(&target) {
                log::debug!("{}: {error}", target.display());
            }
        }
    }

    fn place(&self, id: SnapshotId) -> PathBuf {
        self.dir.join(id.to_string())
    }
}
