//! The devices that this process serves.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use blockexport::ublk::{Channel, UblkConfig};
use blockexport::{Counts, Export, Place};
use blockimages::Ending;
use blocks::DeviceAccess;
use devices::{Images, OpenedImage, Opening, exporter};
use parking_lot::Mutex;

use super::prepare::Refusal;
use crate::wire::{DeviceQueues, Fault, OpenedDevice, WorkerResponse};
use node_api::device::{DeviceKind, DeviceSpec, DeviceStatus};

/// How long reads that wait for a registry may take when their device ends.
const LAST_READS: Duration = Duration::from_secs(2);

/// All devices, by name.
#[derive(Debug)]
pub(super) struct ServedDevices {
    images: Arc<Images>,
    slots: Mutex<BTreeMap<String, Slot>>,
}

#[derive(Debug)]
enum Slot {
    /// It is being opened, until it is wanted no more; or ended.
    Taken(Arc<Ending>),
    Served(Arc<ServedDevice>),
}

/// A device that clients reach.
struct ServedDevice {
    spec: DeviceSpec,
    opened: OpenedImage,
    /// For a node that has lost its own. A block device of the machine has none.
    socket: Option<UnixListener>,
    /// What tells the image of a block device from others.
    identity: Option<String>,
    /// None when it is being ended, and of a block device that the node has not made yet.
    export: Mutex<Option<Box<dyn Export>>>,
}

impl std::fmt::Debug for ServedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServedDevice")
            .field("spec", &self.spec)
            .field("opened", &self.opened)
            .finish_non_exhaustive()
    }
}

impl ServedDevices {
    /// Returns none; their images share the caches of `images`.
    pub(super) fn new(images: Arc<Images>) -> Self {
        Self {
            images,
            slots: Mutex::default(),
        }
    }

    /// Serves a device at its socket from now on, or opens the image of a block device. One that is served already is
    /// served on.
    ///
    /// # Errors
    /// If its image cannot be opened, or somebody else writes to it.
    pub(super) fn attach(
        &self,
        spec: DeviceSpec,
        socket: Option<OwnedFd>,
    ) -> Result<WorkerResponse, Refusal> {
        let name = spec.name.clone();
        let ending = Arc::new(Ending::default());
        match self.slots.lock().entry(name.clone()) {
            Entry::Vacant(slot) => _ = slot.insert(Slot::Taken(Arc::clone(&ending))),
            Entry::Occupied(slot) => match slot.get() {
                Slot::Served(served) if served.spec == spec => return Ok(served.answer()),
                _ => {
                    let twice = anyhow!("the device {name} is being attached or detached already");
                    return Err(Refusal::new(Fault::Conflict, twice));
                }
            },
        }
        let served = self.serve(spec, socket.map(UnixListener::from), ending);
        let mut slots = self.slots.lock();
        match served {
            Ok(served) => {
                let answer = served.answer();
                slots.insert(name, Slot::Served(Arc::new(served)));
                Ok(answer)
            }
            Err(error) => {
                slots.remove(&name);
                Err(Refusal::new(Fault::Invalid, error))
            }
        }
    }

    fn serve(
        &self,
        spec: DeviceSpec,
        socket: Option<UnixListener>,
        ending: Arc<Ending>,
    ) -> anyhow::Result<ServedDevice> {
        let access = match spec.writable {
            true => DeviceAccess::ReadWrite,
            false => DeviceAccess::ReadOnly,
        };
        let opened = self.images.open_until(
            &spec.image,
            &spec.options,
            &spec.store,
            (access, Opening::First),
            ending,
        )?;
        let (mut identity, mut export) = (None, None);
        match spec.kind {
            DeviceKind::Ublk => {
                identity = Some(devices::identity(&spec.image, &*opened.device)?);
            }
            _ => {
                let socket = socket.as_ref().context("the socket is missing")?;
                let listener = socket.try_clone().context("sharing the socket")?;
                let place = Place::handed(&spec.at, listener).context("taking the socket")?;
                let served = exporter(&spec)?.serve(place, Arc::clone(&opened.device));
                export = Some(served.context("exporting")?);
            }
        }
        Ok(ServedDevice {
            export: Mutex::new(export),
            identity,
            spec,
            opened,
            socket,
        })
    }

    /// Answers the requests of a block device whose image was opened.
    ///
    /// # Errors
    /// If it is not open here, or answered already, or the kernel refuses.
    pub(super) fn serve_queues(
        &self,
        queues: DeviceQueues,
        file: OwnedFd,
    ) -> Result<DeviceStatus, Refusal> {
        let DeviceQueues {
            name,
            number,
            queues,
            depth,
        } = queues;
        let channel = Channel {
            file: file.into(),
            id: number,
            queues,
            depth,
        };
        let served = self.get(&name)?;
        if served.export.lock().is_some() {
            let twice = anyhow!("the requests of {name} are answered already");
            return Err(Refusal::new(Fault::Conflict, twice));
        }
        let device = Arc::clone(&served.opened.device);
        let export = blockexport::ublk::serve(channel, device, &UblkConfig::default());
        *served.export.lock() = Some(export.context("opening its queues")?);
        Ok(served.status())
    }

    /// Makes a device larger.
    ///
    /// # Errors
    /// If it is not served here, would become smaller, or cannot be written to.
    pub(super) fn grow(&self, name: &str, size: u64) -> Result<DeviceStatus, Refusal> {
        let served = self.get(name)?;
        devices::grow(&*served.opened.device, size)
            .map_err(|error| Refusal::new(Fault::Invalid, error))?;
        Ok(served.status())
    }

    fn get(&self, name: &str) -> Result<Arc<ServedDevice>, Refusal> {
        match self.slots.lock().get(name) {
            Some(Slot::Served(served)) => Ok(Arc::clone(served)),
            _ => Err(unknown(name)),
        }
    }

    /// Ends a device: what is in flight is done, but for what waits for a registry, and what was written is made durable.
    /// One that is being opened is given up soon.
    ///
    /// # Errors
    /// If it is not served here, or cannot be made durable; it is over then all the same.
    pub(super) fn detach(&self, name: &str) -> Result<(), Refusal> {
        let served = {
            let mut slots = self.slots.lock();
            match slots.get(name) {
                Some(Slot::Served(served)) => {
                    let served = Arc::clone(served);
                    slots.insert(name.to_owned(), Slot::Taken(Arc::default()));
                    served
                }
                Some(Slot::Taken(ending)) => {
                    let ending = Arc::clone(ending);
                    drop(slots);
                    ending.within(Duration::ZERO);
                    return Err(unknown(name));
                }
                None => return Err(unknown(name)),
            }
        };
        let flushed = served.end();
        drop(served);
        self.slots.lock().remove(name);
        let failed = || format!("what was written to {name} may not be durable");
        Ok(flushed.with_context(failed)?)
    }

    /// Returns the socket of a device.
    ///
    /// # Errors
    /// If it is not served here.
    pub(super) fn socket(&self, name: &str) -> Result<OwnedFd, Refusal> {
        match self.slots.lock().get(name) {
            Some(Slot::Served(served)) => {
                let socket = served.socket.as_ref().ok_or_else(|| unknown(name))?;
                let socket = socket.try_clone();
                Ok(socket.context("sharing the socket").map(OwnedFd::from)?)
            }
            _ => Err(unknown(name)),
        }
    }

    /// Returns how all devices are, from counters.
    pub(super) fn status(&self) -> Vec<DeviceStatus> {
        let slots = self.slots.lock();
        let served = slots.values().filter_map(|slot| match slot {
            Slot::Served(served) => Some(served.status()),
            Slot::Taken(_) => None,
        });
        served.collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.lock().is_empty()
    }
}

fn unknown(name: &str) -> Refusal {
    let unknown = anyhow!("this worker does not serve the device {name}");
    Refusal::new(Fault::Unknown, unknown)
}

impl ServedDevice {
    /// Returns what the node is told of it.
    fn answer(&self) -> WorkerResponse {
        match &self.identity {
            Some(identity) => WorkerResponse::Opened(OpenedDevice {
                info: self.opened.device.info(),
                identity: identity.clone(),
            }),
            None => WorkerResponse::Attached(self.status()),
        }
    }

    fn status(&self) -> DeviceStatus {
        let counts = self.export.lock().as_ref().map(|export| export.counts());
        let Counts {
            clients,
            requests,
            errors,
            bytes_read,
            bytes_written,
        } = counts.unwrap_or_default();
        let info = self.opened.device.info();
        let cache = self.opened.cache.as_ref().map(|cache| cache.counts());
        let cache = cache.unwrap_or_default();
        DeviceStatus {
            name: self.spec.name.clone(),
            size: info.size,
            writable: info.access == DeviceAccess::ReadWrite,
            clients,
            requests,
            errors,
            bytes_read,
            bytes_written,
            fetches: cache.requests,
            fetched_bytes: cache.fetched_bytes,
            cached_bytes: cache.cached_bytes,
            start: None,
            joined: cache.joined,
            hedged: cache.hedged,
            overtaken: cache.overtaken,
            retried: cache.retried,
            stalls: cache.stalls,
            pauses: cache.pauses,
        }
    }

    /// Ends the export, and makes durable what was written.
    fn end(&self) -> anyhow::Result<()> {
        self.opened.give_up(LAST_READS);
        let export = self.export.lock().take();
        if let Some(export) = export {
            export.stop();
        }
        Ok(self.opened.device.flush()?)
    }
}
