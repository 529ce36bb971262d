//! The mounts that this process serves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use blockimages::Ending;
use devices::Images;
use parking_lot::Mutex;

use super::open::{Open, Opened};
use super::prepare::{Refusal, Way};
use super::prewarm::Queue;
use super::served::{Over, Served};
use crate::connector::NodeConnector;
use crate::descriptors::MountDescriptors;
use crate::wire::{Adoption, Fault};
use mounting::nic::Connector;
use node_api::boot_choice::BootChoice;
use node_api::status::MountStatus;

/// How long somebody may have a mount in his hand whose session is over: less than the node waits.
const CLOSE: Duration = Duration::from_secs(4);

/// All mounts, by name.
#[derive(Debug)]
pub(super) struct ServedMounts {
    slots: Mutex<Slots>,
    open: Arc<Open>,
    prewarms: Queue,
    over: Over,
    /// Connects to a block service; this process does if absent.
    connector: Option<Arc<dyn Connector>>,
    /// The caches of block images.
    images: Arc<Images>,
}

#[derive(Debug, Default)]
struct Slots {
    by_id: BTreeMap<String, Slot>,
    /// Whether this process serves no more.
    retired: bool,
}

#[derive(Debug)]
enum Slot {
    /// It is being adopted, which may take as long as the disk does, or a registry until this ends.
    Taken(Arc<Ending>),
    Served(Arc<Served>),
}

impl ServedMounts {
    /// Returns one without mounts; `over` receives the names of mounts whose session is over.
    ///
    /// # Errors
    /// If no threads can be had.
    pub(super) fn start(
        over: Over,
        connector: Option<Arc<NodeConnector>>,
        images: Arc<Images>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            slots: Mutex::default(),
            open: Arc::default(),
            prewarms: Queue::start()?,
            over,
            connector: connector.map(|connector| connector as _),
            images,
        })
    }

    /// Serves a mount from now on, and prewarms it in the background. Returns the FUSE_INIT response.
    /// One that is served already is not changed.
    ///
    /// # Errors
    /// As [`Served::start`].
    pub(super) fn adopt(
        &self,
        adoption: Adoption,
        handed: MountDescriptors,
    ) -> Result<Vec<u8>, Refusal> {
        let id = adoption.id.clone();
        let ending = Arc::new(Ending::default());
        let mut slots = self.slots.lock();
        if slots.retired {
            let retired = anyhow!("this worker is being replaced");
            return Err(Refusal::new(Fault::Conflict, retired));
        }
        match slots.by_id.entry(id.clone()) {
            std::collections::btree_map::Entry::Vacant(slot) => {
                slot.insert(Slot::Taken(Arc::clone(&ending)));
            }
            std::collections::btree_map::Entry::Occupied(slot) => {
                return match slot.get() {
                    Slot::Served(served) => Ok(served.hello()),
                    Slot::Taken(_) => {
                        let twice = anyhow!("mount {id} is being adopted already");
                        Err(Refusal::new(Fault::Conflict, twice))
                    }
                };
            }
        }
        drop(slots);
        let place = Reservation { mounts: self, id };
        let open = Opened::note(&self.open, &place.id);
        let way = Way {
            connector: self.connector.as_ref(),
            images: &self.images,
            ending: &ending,
        };
        let served = Served::start(adoption, handed, self.over.clone(), way)?;
        let served = served.noted(open);
        let served = Arc::new(served);
        let hello = served.hello();
        place.fill(&served);
        if served.wants_prewarm() {
            self.prewarms.add(&served);
        }
        Ok(hello)
    }

    /// Returns a mount.
    ///
    /// # Errors
    /// If it is not served here.
    pub(super) fn get(&self, id: &str) -> Result<Arc<Served>, Refusal> {
        match self.slots.lock().by_id.get(id) {
            Some(Slot::Served(served)) => Ok(Arc::clone(served)),
            _ => {
                let unknown = anyhow!("this worker does not serve mount {id}");
                Err(Refusal::new(Fault::Unknown, unknown))
            }
        }
    }

    /// Serves a mount from another boot image, and prewarms that in the background.
    ///
    /// # Errors
    /// As [`Served::swap`].
    pub(super) fn swap(&self, id: &str, boot: &BootChoice) -> Result<(), Refusal> {
        let served = self.get(id)?;
        served.swap(boot)?;
        if served.wants_prewarm() {
            self.prewarms.add(&served);
        }
        Ok(())
    }

    /// Reads no more requests of any mount, adopts no more, and returns when all that were read are answered.
    ///
    /// # Errors
    /// If some may be left.
    pub(super) fn retire(&self, deadline: Instant) -> Result<(), Refusal> {
        let mut left = Vec::new();
        let mut served = Vec::new();
        {
            let mut slots = self.slots.lock();
            slots.retired = true;
            for (id, slot) in &slots.by_id {
                match slot {
                    Slot::Served(mount) => served.push(Arc::clone(mount)),
                    Slot::Taken(_) => left.push(anyhow!("mount {id} is being adopted")),
                }
            }
        }
        // At the same time: the mounts of all are without a server until the last is ready.
        let failed: Vec<_> = std::thread::scope(|scope| {
            let retiring: Vec<_> = served
                .iter()
                .map(|mount| scope.spawn(|| mount.retire(deadline)))
                .collect();
            let joined = retiring.into_iter().map(|thread| {
                let panicked = |_| Err(anyhow!("a thread panicked"));
                thread.join().unwrap_or_else(panicked)
            });
            joined.filter_map(Result::err).collect()
        });
        left.extend(failed);
        match left.into_iter().next() {
            None => Ok(()),
            Some(error) => Err(Refusal::new(Fault::Conflict, error)),
        }
    }

    /// Removes a mount whose session is over.
    pub(super) fn forget(&self, id: &str) {
        let mut slots = self.slots.lock();
        let over = slots
            .by_id
            .extract_if(
                id.to_owned()..=id.to_owned(),
                |_, slot| matches!(slot, Slot::Served(served) if served.is_over()),
            )
            .next();
        drop(slots);
        // Without the lock: that joins threads.
        drop(over);
    }

    /// Has whatever waits for a registry for this mount give up at once: its opening, or those who read it.
    ///
    /// # Errors
    /// If it is not served here, nor opened.
    pub(super) fn give_up(&self, id: &str) -> Result<(), Refusal> {
        let opening = match self.slots.lock().by_id.get(id) {
            Some(Slot::Taken(ending)) => Some(Arc::clone(ending)),
            _ => None,
        };
        match opening {
            Some(ending) => ending.within(Duration::ZERO),
            None => self.get(id)?.give_up(),
        }
        Ok(())
    }

    /// Removes a mount whose session is over, and returns when everything that was open for it is
    /// closed.
    ///
    /// # Errors
    /// If it is still in use when that takes too long.
    pub(super) fn close(&self, id: &str) -> Result<(), Refusal> {
        self.forget(id);
        if self.open.await_closed(id, Instant::now() + CLOSE) {
            return Ok(());
        }
        let open = anyhow!("mount {id} is still in use by this worker");
        Err(Refusal::new(Fault::Conflict, open))
    }

    /// Returns the status of all mounts whose session is not over, or of one of them.
    pub(super) fn status(&self, only: Option<&str>) -> Vec<MountStatus> {
        let served: Vec<Arc<Served>> = {
            let slots = self.slots.lock();
            let asked = slots
                .by_id
                .iter()
                .filter(|(id, _)| only.is_none_or(|only| only == *id));
            let served = asked.filter_map(|(_, slot)| match slot {
                Slot::Served(served) => Some(Arc::clone(served)),
                Slot::Taken(_) => None,
            });
            served.collect()
        };
        let living = served.iter().filter(|served| !served.is_over());
        living.map(|served| served.status()).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.lock().by_id.is_empty()
    }
}

/// The place of a mount that is being adopted. Dropped, it is free again, unless it was filled.
struct Reservation<'a> {
    mounts: &'a ServedMounts,
    id: String,
}

impl Reservation<'_> {
    fn fill(self, served: &Arc<Served>) {
        let slot = Slot::Served(Arc::clone(served));
        let _taken = self.mounts.slots.lock().by_id.insert(self.id.clone(), slot);
        if served.is_over() {
            // It ended before it had a place to be taken out of.
            self.mounts.forget(&self.id);
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut slots = self.mounts.slots.lock();
        if matches!(slots.by_id.get(&self.id), Some(Slot::Taken(_))) {
            slots.by_id.remove(&self.id);
        }
    }
}
