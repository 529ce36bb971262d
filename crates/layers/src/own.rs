//! Many layers, served by this process.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use bootimg::{ImageId, Store};
use localfs::{Patience, SourceRoot};
use parking_lot::{Condvar, Mutex};
use yolofs::{Layering, XattrAnswers};

use super::bind::bind;
use super::served::Served;
use super::warm::{Hold, WarmPool};
use crate::server::{Attach, LayerPlace, LayerServer, ServedBy, WarmedLayer};
use crate::status::LayerStatus;
use host::interrupt::Interrupt;
use host::mount_table::{Top, clear, is_covered, top_at};
use mounting::source::Source;
use node_api::mount_state::{MountState, PrewarmState};

/// How long to wait for somebody else who attaches or detaches at the same place: binding reads
/// the boot set of a layer once, from a disk that may be busy.
const TURN: Duration = Duration::from_secs(60);

/// Serves layers until dropped; then all are unmounted, lazily where they are in use.
#[derive(Debug)]
pub(crate) struct OwnServer {
    store: Store,
    xattrs: XattrAnswers,
    interrupt: Interrupt,
    layers: Mutex<Layers>,
    changed: Condvar,
    lost: AtomicU64,
    // After the layers: a layer's mount ends before the threads that may be warming it.
    pool: WarmPool,
}

#[derive(Debug, Default)]
struct Layers {
    by_target: BTreeMap<PathBuf, Slot>,
    /// Detached mounts that are still in use.
    leaving: Vec<Arc<Served>>,
}

#[derive(Debug)]
enum Slot {
    /// A thread attaches or detaches here.
    Busy,
    Served(Arc<Served>),
}

impl Layers {
    fn served(&self) -> Vec<(PathBuf, Arc<Served>)> {
        let served = self.by_target.iter().filter_map(|(target, slot)| {
            let Slot::Served(served) = slot else {
                return None;
            };
            Some((target.clone(), Arc::clone(served)))
        });
        served.collect()
    }

    /// Has a layer leave that is still served at its place; returns whether it was.
    fn leave(&mut self, target: &Path, served: &Arc<Served>) -> bool {
        match self.by_target.get(target) {
            Some(Slot::Served(now)) if Arc::ptr_eq(now, served) => {}
            _ => return false,
        }
        self.by_target.remove(target);
        self.leaving.push(Arc::clone(served));
        true
    }
}

impl OwnServer {
    /// Returns one without mounts. `interrupt` ends long operations.
    ///
    /// # Errors
    /// If no threads can be started.
    pub(crate) fn new(
        store: Store,
        xattrs: XattrAnswers,
        interrupt: Interrupt,
    ) -> anyhow::Result<Self> {
        mounting::buffers::map_large();
        Ok(Self {
            store,
            xattrs,
            interrupt,
            layers: Mutex::default(),
            changed: Condvar::new(),
            lost: AtomicU64::new(0),
            pool: WarmPool::start()?,
        })
    }

    /// Whether the layer was recorded again in its directory. A store that cannot say has no news.
    fn is_outdated(&self, served: &Served) -> bool {
        let Some(image) = served.boot.image() else {
            return false;
        };
        let used = image.image().info();
        let newest = self.store.layer_at(served.layer(), used.source.id);
        matches!(newest, Ok(Some(newest)) if newest != used.id)
    }

    fn serve(
        &self,
        place: &LayerPlace,
        before: Option<&Served>,
    ) -> anyhow::Result<Option<Arc<Served>>> {
        // Most layers of a node have no boot image: not even their names are read then.
        let known = self.store.layer(&place.layer)?.is_some();
        if !known {
            return Ok(None);
        }
        // It may be served in place.
        let root = SourceRoot::open_plain_within(&place.source, Patience::default().deadline)?;
        let source = Source::scan(Arc::new(root))?;
        let image = bind(&self.store, &source, &place.layer, &self.interrupt)?;
        let Some(image) = image else { return Ok(None) };
        make_room(place, before)?;
        // No moment without a mount: a container may be starting.
        let layering = match before {
            Some(_) => Layering::Beneath,
            None => Layering::Over,
        };
        self.store.note_use(&image.info().id);
        let served = Served::start(place, &source, image, layering, self.xattrs)?;
        Ok(Some(Arc::new(served)))
    }

    fn is_buried(&self, target: &Path) -> bool {
        let served = self.served_at(target);
        served.is_some_and(|served| !served.mount.is_on_top())
    }

    /// Returns what is served at a place, unless somebody attaches or detaches there.
    fn served_at(&self, target: &Path) -> Option<Arc<Served>> {
        match self.layers.lock().by_target.get(target)? {
            Slot::Served(served) => Some(Arc::clone(served)),
            Slot::Busy => None,
        }
    }

    /// Returns all that is served, and where: what is looked at, is looked at without the lock.
    fn all_served(&self) -> Vec<(PathBuf, Arc<Served>)> {
        self.layers.lock().served()
    }

    /// Notes mounts that others unmounted, and forgets what is no longer used. Mounts are looked
    /// at without the lock.
    fn sweep(&self) {
        let (mut gone, mut over) = {
            let layers = self.layers.lock();
            (layers.served(), layers.leaving.clone())
        };
        gone.retain(|(_, served)| !served.mount.visible());
        over.retain(|served| served.is_over());
        for (target, served) in gone {
            if self.layers.lock().leave(&target, &served) {
                served.cancel_prewarm();
                self.lost.fetch_add(1, SeqCst);
            }
        }
        let is_over = |served: &Arc<Served>| over.iter().any(|other| Arc::ptr_eq(served, other));
        // The last reference is dropped without the lock: that joins threads.
        self.layers.lock().leaving.retain(|s| !is_over(s));
    }

    /// Waits until no other thread works on the place, and keeps others away until dropped.
    fn lock_target<'a>(&'a self, target: &'a Path) -> anyhow::Result<TargetLock<'a>> {
        let deadline = Instant::now() + TURN;
        let mut layers = self.layers.lock();
        while matches!(layers.by_target.get(target), Some(Slot::Busy)) {
            if self.changed.wait_until(&mut layers, deadline).timed_out() {
                bail!(
                    "another process has been attaching or detaching {} for {} s",
                    target.display(),
                    TURN.as_secs()
                );
            }
        }
        let before = layers.by_target.insert(target.to_owned(), Slot::Busy);
        let served = match before {
            Some(Slot::Served(served)) => Some(served),
            Some(Slot::Busy) | None => None,
        };
        Ok(TargetLock {
            server: self,
            target,
            served,
        })
    }
}

impl LayerServer for OwnServer {
    fn served_by(&self) -> ServedBy {
        ServedBy::Service
    }

    fn store(&self) -> &Store {
        &self.store
    }

    /// Who uses a former mount keeps it.
    fn attach(&self, place: &LayerPlace) -> anyhow::Result<Attach> {
        let lock = self.lock_target(&place.target)?;
        let before = lock.served.clone().filter(|served| served.mount.visible());
        if before.as_ref().is_some_and(|s| !self.is_outdated(s)) {
            return Ok(Attach::Already);
        }
        let served = self
            .serve(place, before.as_deref())
            .with_context(|| format!("attaching layer {}", place.layer.short()))?;
        let Some(served) = served else {
            return Ok(match before {
                Some(_) => Attach::Already,
                None => Attach::Unknown,
            });
        };
        if let Some(Err(error)) = before.map(|before| before.unmount()) {
            log::warn!("{error:#}; still serving its older boot image");
        }
        self.pool.add(&served);
        lock.replace(Some(served));
        Ok(Attach::Attached)
    }

    fn detach(&self, target: &Path) -> anyhow::Result<()> {
        let lock = self.lock_target(target)?;
        let Some(served) = &lock.served else {
            return Ok(());
        };
        served
            .unmount()
            .with_context(|| format!("detaching layer {}", served.layer().short()))?;
        lock.replace(None);
        Ok(())
    }

    fn detach_all(&self) {
        for target in self.targets() {
            if self.is_buried(&target) {
                continue;
            }
            if let Err(error) = self.detach(&target) {
                log::warn!("{error:#}");
            }
        }
    }

    fn targets(&self) -> Vec<PathBuf> {
        self.sweep();
        let served = self.all_served().into_iter();
        served.map(|(target, _)| target).collect()
    }

    fn outdated(&self) -> BTreeSet<PathBuf> {
        let mut served = self.all_served();
        served.retain(|(_, served)| self.is_outdated(served));
        served.into_iter().map(|(target, _)| target).collect()
    }

    fn serves(&self, target: &Path) -> bool {
        let served = self.served_at(target);
        served.is_some_and(|served| served.mount.visible())
    }

    fn leaving(&self) -> usize {
        self.sweep();
        self.layers.lock().leaving.len()
    }

    fn lost(&self) -> u64 {
        self.sweep();
        self.lost.load(SeqCst)
    }

    /// Those that are served come first.
    fn status(&self) -> Vec<LayerStatus> {
        self.sweep();
        // Both at once: one that is being detached is not told of twice.
        let (served, leaving) = {
            let layers = self.layers.lock();
            (layers.served(), layers.leaving.clone())
        };
        let served = served
            .iter()
            .map(|(_, served)| served.status(MountState::Serving));
        let leaving = leaving
            .iter()
            .map(|served| served.status(MountState::Leaving));
        served.chain(leaving).collect()
    }

    fn prewarm(&self, image: &ImageId) -> Vec<WarmedLayer> {
        let is_from = |served: &&Arc<Served>| {
            let used = served.boot.image();
            used.is_some_and(|used| used.image().info().id == *image)
        };
        let served: Vec<Arc<Served>> = {
            let layers = self.layers.lock();
            let slots = layers.by_target.values().filter_map(|slot| match slot {
                Slot::Served(served) => Some(served),
                Slot::Busy => None,
            });
            slots.filter(is_from).cloned().collect()
        };
        let warmed = served.into_iter().map(|served| WarmedLayer {
            mountpoint: served.place.target.clone(),
            warmed: served.prewarm().map_err(|error| format!("{error:#}")),
        });
        warmed.collect()
    }

    fn warm_again(&self, target: &Path) {
        let served = self.served_at(target);
        // One that has not been warmed yet waits for its turn.
        if let Some(served) = served.filter(|it| it.prewarm_state() == PrewarmState::Done) {
            self.pool.add(&served);
        }
    }

    fn hold_warming(&self) -> Option<Hold> {
        Some(self.pool.hold())
    }
}

/// Sees to it that nothing hides a mount that is about to be made: what a process of ours left when
/// it died is cleared, and whatever else lies there, such as a recorder, is waited for by trying
/// again.
fn make_room(place: &LayerPlace, before: Option<&Served>) -> anyhow::Result<()> {
    if before.is_some_and(|before| before.mount.is_on_top()) {
        return Ok(());
    }
    while is_covered(&place.target) {
        match top_at(&place.target)? {
            Some(top) if before.is_none() && top.is_ours(&place.label) => clear(&place.target)?,
            Some(Top { kind, label }) => bail!(
                "a {kind} ({label}) is mounted over {}",
                place.target.display()
            ),
            None => break, // gone just now
        }
    }
    Ok(())
}

/// The right to change what is served at one place. Dropped, it leaves there what it has.
struct TargetLock<'a> {
    server: &'a OwnServer,
    target: &'a Path,
    served: Option<Arc<Served>>,
}

impl TargetLock<'_> {
    /// Has something else served at the place from now on; what was there before is leaving.
    fn replace(mut self, served: Option<Arc<Served>>) {
        let before = std::mem::replace(&mut self.served, served);
        self.server.layers.lock().leaving.extend(before);
    }
}

impl Drop for TargetLock<'_> {
    fn drop(&mut self) {
        let mut layers = self.server.layers.lock();
        match self.served.take() {
            Some(served) => {
                let slot = Slot::Served(served);
                layers.by_target.insert(self.target.to_owned(), slot)
            }
            None => layers.by_target.remove(self.target),
        };
        self.server.changed.notify_all();
    }
}
