//! Many layers, served from one process.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use bootimg::Store;
use localfs::SourceRoot;
use parking_lot::{Condvar, Mutex};
use yolofs::{Busy, Layering};

use super::bind::{bind, recorded_here};
use super::served::Served;
use super::warm::{Hold, WarmPool};
use super::{LayerPlace, LayerStatus};
use crate::interrupt::Interrupt;
use crate::mount_table::{Top, clear, is_covered, top_at};
use crate::source::Source;

/// How long to wait for somebody else who attaches or detaches at the same place: binding reads
/// the boot set of a layer once, from a disk that may be busy.
const TURN: Duration = Duration::from_secs(60);

/// Blocks of memory of this size, in bytes, are mapped by themselves: smaller ones are many.
const LARGE_BLOCK: u32 = 1 << 20;

/// What became of a layer that was to be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attach {
    /// It is served from now on.
    Attached,
    /// It was served already.
    Already,
    /// The store has no boot image of it: nothing was mounted.
    Unknown,
}

/// Serves layers until dropped; then all are unmounted, lazily where they are in use.
#[derive(Debug)]
pub(crate) struct LayerServer {
    store: Store,
    interrupt: Interrupt,
    layers: Mutex<Layers>,
    changed: Condvar,
    lost: AtomicU64,
    /// Writing a boot image goes through one file of this process.
    binding: Mutex<()>,
    // After the layers: a layer's mount ends before the threads that may be warming it.
    pool: WarmPool,
}

#[derive(Debug, Default)]
struct Layers {
    by_target: BTreeMap<PathBuf, Slot>,
    /// Detached, and still used by somebody.
    leaving: Vec<Arc<Served>>,
}

#[derive(Debug)]
enum Slot {
    /// Somebody attaches or detaches here.
    Busy,
    Served(Arc<Served>),
}

impl LayerServer {
    /// Returns one that serves nothing yet. `interrupt` ends what takes long.
    ///
    /// # Errors
    /// If no threads can be had.
    pub(crate) fn new(store: Store, interrupt: Interrupt) -> anyhow::Result<Self> {
        // Each session has a buffer for the largest request there may be, 16 MiB, of which layers
        // that are only read touch the first page.
        rawio::malloc::map_blocks_from(LARGE_BLOCK);
        Ok(Self {
            store,
            interrupt,
            layers: Mutex::default(),
            changed: Condvar::new(),
            lost: AtomicU64::new(0),
            binding: Mutex::new(()),
            pool: WarmPool::start()?,
        })
    }

    /// Returns the store of boot images.
    pub(crate) const fn store(&self) -> &Store {
        &self.store
    }

    /// Serves a layer from its boot image, if the store has one, and warms it in the background.
    /// One that is served from an older boot image is served from the newer one from then on; who
    /// uses the former mount keeps it.
    ///
    /// # Errors
    /// If it cannot be opened, scanned or mounted, or its boot image cannot be bound.
    pub(crate) fn attach(&self, place: &LayerPlace) -> anyhow::Result<Attach> {
        let turn = self.take_turn(&place.target)?;
        let before = turn.served.clone().filter(|served| served.mount.visible());
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
        if let Some(Err(error)) = before.map(|before| before.unmount(Busy::Lazy)) {
            log::warn!("{error:#}; it is served from its older boot image");
        }
        self.pool.add(&served);
        turn.replace(Some(served));
        Ok(Attach::Attached)
    }

    /// Returns where layers are served of which the store has a newer boot image by now.
    #[must_use]
    pub(crate) fn outdated(&self) -> BTreeSet<PathBuf> {
        let layers = self.layers.lock();
        let served = layers.by_target.iter().filter_map(|(target, slot)| {
            let Slot::Served(served) = slot else {
                return None;
            };
            self.is_outdated(served).then(|| target.clone())
        });
        served.collect()
    }

    /// Whether the layer was recorded again in its directory. A store that cannot say has no news.
    fn is_outdated(&self, served: &Served) -> bool {
        let used = served.image.image().info();
        let newest = self.store.layer_at(served.layer(), used.source.id);
        matches!(newest, Ok(Some(newest)) if newest != used.id)
    }

    /// Holds back the warming of layers until dropped, though not for long: who attaches many wants
    /// them all served first.
    #[must_use]
    pub(crate) fn hold_warming(&self) -> Hold {
        self.pool.hold()
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
        let source = Source::scan(Arc::new(SourceRoot::open_plain(&place.source)?))?;
        let image = match recorded_here(&self.store, &source, &place.layer)? {
            Some(image) => Some(image),
            None => {
                let _one_at_a_time = self.binding.lock();
                bind(&self.store, &source, &place.layer, &self.interrupt)?
            }
        };
        let Some(image) = image else { return Ok(None) };
        make_room(place, before)?;
        // No moment without a mount: a container may be starting.
        let layering = match before {
            Some(_) => Layering::Beneath,
            None => Layering::Over,
        };
        let served = Served::start(place, &source, image, layering)?;
        Ok(Some(Arc::new(served)))
    }

    /// Stops to serve what is mounted on `target`; nothing there is fine. After [`Busy::Lazy`],
    /// and below overlays, users that remain are served until the last lets go.
    ///
    /// # Errors
    /// If it is in use and that was not to be, or another mount lies on top of it.
    pub(crate) fn detach(&self, target: &Path, busy: Busy) -> anyhow::Result<()> {
        let turn = self.take_turn(target)?;
        let Some(served) = &turn.served else {
            return Ok(());
        };
        served
            .unmount(busy)
            .with_context(|| format!("detaching layer {}", served.layer().short()))?;
        turn.replace(None);
        Ok(())
    }

    /// Stops to serve everything; what cannot be unmounted is logged. What somebody has mounted
    /// something over, such as a recorder, is served until that is gone: call it again then.
    pub(crate) fn detach_all(&self) {
        for target in self.targets() {
            if self.is_buried(&target) {
                continue;
            }
            if let Err(error) = self.detach(&target, Busy::Lazy) {
                log::warn!("{error:#}");
            }
        }
    }

    /// Returns whether a layer is served on `target`.
    #[must_use]
    pub(crate) fn serves(&self, target: &Path) -> bool {
        let layers = self.layers.lock();
        let slot = layers.by_target.get(target);
        matches!(slot, Some(Slot::Served(served)) if served.mount.visible())
    }

    fn is_buried(&self, target: &Path) -> bool {
        let layers = self.layers.lock();
        let slot = layers.by_target.get(target);
        matches!(slot, Some(Slot::Served(served)) if !served.mount.is_on_top())
    }

    /// Returns where layers are served, visibly.
    #[must_use]
    pub(crate) fn targets(&self) -> Vec<PathBuf> {
        self.sweep();
        let layers = self.layers.lock();
        let served = layers.by_target.iter();
        served
            .filter(|(_, slot)| matches!(slot, Slot::Served(_)))
            .map(|(target, _)| target.clone())
            .collect()
    }

    /// Returns how many layers were detached while somebody used them, who still does.
    #[must_use]
    pub(crate) fn leaving(&self) -> usize {
        self.sweep();
        self.layers.lock().leaving.len()
    }

    /// Returns how many mounts somebody else has unmounted so far: Docker does when it ends, and
    /// when it removes a layer.
    #[must_use]
    pub(crate) fn lost(&self) -> u64 {
        self.sweep();
        self.lost.load(SeqCst)
    }

    /// Returns the status of all layers, those that are served first.
    #[must_use]
    pub(crate) fn status(&self) -> Vec<LayerStatus> {
        self.sweep();
        let layers = self.layers.lock();
        let served = layers.by_target.values().filter_map(|slot| match slot {
            Slot::Served(served) => Some(served.status("serving")),
            Slot::Busy => None,
        });
        let leaving = layers.leaving.iter().map(|served| served.status("leaving"));
        served.chain(leaving).collect()
    }

    /// Takes note of mounts that somebody else unmounted, and forgets what nobody uses any more.
    fn sweep(&self) {
        // Dropped without the lock: that joins threads.
        let over: Vec<Arc<Served>> = {
            let mut layers = self.layers.lock();
            let gone: Vec<PathBuf> = layers
                .by_target
                .iter()
                .filter(|(_, slot)| matches!(slot, Slot::Served(s) if !s.mount.visible()))
                .map(|(target, _)| target.clone())
                .collect();
            for target in gone {
                if let Some(Slot::Served(served)) = layers.by_target.remove(&target) {
                    served.cancel_prewarm();
                    layers.leaving.push(served);
                    self.lost.fetch_add(1, SeqCst);
                }
            }
            layers.leaving.extract_if(.., |s| s.is_over()).collect()
        };
        drop(over);
    }

    /// Waits until nobody else works on the place, and keeps others away until dropped.
    fn take_turn<'a>(&'a self, target: &'a Path) -> anyhow::Result<Turn<'a>> {
        let deadline = Instant::now() + TURN;
        let mut layers = self.layers.lock();
        while matches!(layers.by_target.get(target), Some(Slot::Busy)) {
            if self.changed.wait_until(&mut layers, deadline).timed_out() {
                bail!(
                    "somebody else has been attaching or detaching {} for {} s",
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
        Ok(Turn {
            server: self,
            target,
            served,
        })
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
struct Turn<'a> {
    server: &'a LayerServer,
    target: &'a Path,
    served: Option<Arc<Served>>,
}

impl Turn<'_> {
    /// Has something else served at the place from now on; what was there before is leaving.
    fn replace(mut self, served: Option<Arc<Served>>) {
        let before = std::mem::replace(&mut self.served, served);
        self.server.layers.lock().leaving.extend(before);
    }
}

impl Drop for Turn<'_> {
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
