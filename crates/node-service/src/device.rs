//! A device, as the node holds it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use blockexport::Place;
use parking_lot::Mutex;

use super::assigned::Assigned;
use super::assignment::{Assignment, Service};
use super::workers::Worker;
use node_api::device::{DeviceSpec, DeviceStatus, DeviceView};
use node_api::mount_state::MountState;
use node_records::company::Company;
use node_records::devices::{DeviceInstance, DeviceRecords};

/// What the keys of devices begin with. Those of mounts begin with a digit of an id.
const KEY: &str = "device:";

/// A device with a socket of the node's, or a block device of the machine, which a worker serves.
#[derive(Debug)]
pub(crate) struct Device {
    /// What was asked for.
    pub spec: DeviceSpec,
    /// What tells it from all else that a worker serves.
    pub key: String,
    /// Where clients connect, or the link to the block device. The node keeps it, so that they wait while the worker is
    /// replaced; none when the device is over.
    place: Mutex<Option<Place>>,
    /// Which worker serves it.
    pub assigned: Assigned<State>,
    /// Held while the record is written.
    recording: Mutex<()>,
}

#[derive(Debug)]
pub(crate) struct State {
    /// Whether a worker has served it.
    was_served: bool,
    /// What its worker said last.
    heard: Option<DeviceStatus>,
}

/// Returns the key of a device.
pub(crate) fn key_of(name: &str) -> String {
    format!("{KEY}{name}")
}

/// Returns whether a key is that of a device.
pub(crate) fn is_key(key: &str) -> bool {
    key.starts_with(KEY)
}

impl Device {
    /// Returns what the record says, with its socket or link.
    pub(crate) fn new(instance: &DeviceInstance, place: Place) -> Arc<Self> {
        Arc::new(Self {
            spec: instance.spec.clone(),
            key: key_of(&instance.spec.name),
            place: Mutex::new(Some(place)),
            assigned: Assigned::new(
                Assignment::after_a_restart(true, instance.restarts, instance.last_gap_ms),
                State {
                    was_served: instance.worker.is_some(),
                    heard: None,
                },
            ),
            recording: Mutex::new(()),
        })
    }

    /// Returns what a worker gets to serve it: the socket, if it has one. Nothing if the device is over.
    pub(crate) fn beside(&self) -> Option<Vec<UnixListener>> {
        let place = self.place.lock();
        let Some(listener) = place.as_ref()?.listener() else {
            return Some(Vec::new());
        };
        let listener = listener
            .try_clone()
            .inspect_err(|error| log::error!("{}: sharing its socket: {error}", self.spec.name));
        Some(vec![listener.ok()?])
    }

    /// Removes the socket, and gives up the place.
    pub(crate) fn close_place(&self) {
        drop(self.place.lock().take());
    }

    /// Leaves the place to the worker: this process ends, and the next node takes it over.
    pub(crate) fn leave_place(&self) {
        let place = self.place.lock().take();
        if let Some(place) = place {
            place.leave();
        }
    }

    /// Returns what kind of worker it is to have.
    pub(crate) fn company(&self) -> Company {
        Company::of_device(&self.spec)
    }

    /// Notes that the worker serves it, unless it has died since.
    pub(crate) fn served(&self, worker: &Arc<Worker>, status: DeviceStatus) {
        let mut state = self.assigned.lock();
        let first = !state.was_served;
        if state.assignment.served(worker, first) {
            state.was_served = true;
            state.heard = Some(status);
            self.assigned.tell();
        }
    }

    /// Notes that a worker serves it that an earlier node has asked to.
    pub(crate) fn found(&self, worker: &Arc<Worker>, status: DeviceStatus) {
        let mut state = self.assigned.lock();
        state.assignment.found(worker);
        state.was_served = true;
        state.heard = Some(status);
    }

    /// Notes that it is being detached: its record is written no more, and no other worker is asked. Returns who
    /// serves it.
    pub(crate) fn set_over(&self) -> Service {
        let service = {
            let assignment = &mut self.assigned.lock().assignment;
            assignment.over = true;
            assignment.service.clone()
        };
        self.assigned.tell();
        drop(self.recording.lock());
        service
    }

    /// Writes the record, unless the device is over.
    ///
    /// # Errors
    /// If the run directory cannot be written.
    pub(crate) fn record(&self, records: &DeviceRecords) -> anyhow::Result<()> {
        let _one_at_a_time = self.recording.lock();
        let instance = {
            let assignment = &self.assigned.lock().assignment;
            if assignment.over {
                return Ok(());
            }
            DeviceInstance {
                spec: self.spec.clone(),
                worker: assignment.process(),
                restarts: assignment.restarts,
                last_gap_ms: assignment.last_gap_ms(),
            }
        };
        records.keep(&instance)
    }

    /// Returns what there is to tell of it, with what its worker just said if it did.
    pub(crate) fn view(&self, heard: Option<DeviceStatus>) -> DeviceView {
        let mut state = self.assigned.lock();
        if heard.is_some() {
            state.heard = heard;
        }
        let (now, pid, error) = match &state.assignment.service {
            Service::By(worker) => (MountState::Serving, Some(worker.process.pid), None),
            Service::GivenUp(why) => (MountState::Failed, None, Some(why.clone())),
            Service::Nobody | Service::Asked(_) if state.was_served => {
                (MountState::Restarting, None, None)
            }
            Service::Nobody | Service::Asked(_) => (MountState::Starting, None, None),
        };
        DeviceView {
            restarts: state.assignment.restarts,
            last_gap_ms: state.assignment.last_gap_ms(),
            served: state.heard.clone().filter(|_| pid.is_some()),
            error,
            pid,
            ..unserved(&self.spec, now)
        }
    }
}

/// Returns what there is to tell of a device that nobody serves.
pub(crate) fn unserved(spec: &DeviceSpec, state: MountState) -> DeviceView {
    DeviceView {
        name: spec.name.clone(),
        image: spec.image.clone(),
        kind: spec.kind,
        address: spec.address(),
        erofs: spec.erofs.clone(),
        loop_device: None,
        state,
        pid: None,
        restarts: 0,
        last_gap_ms: None,
        error: None,
        served: None,
    }
}

/// A file whose mount is being made, until this is dropped.
#[derive(Debug)]
pub(crate) struct FileInMaking<'a> {
    devices: &'a Devices,
    name: String,
}

impl Drop for FileInMaking<'_> {
    fn drop(&mut self) {
        self.devices.making.lock().remove(&self.name);
    }
}

/// The devices of the node, by name.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    /// Never held while anything is asked or waited for.
    served: Mutex<BTreeMap<String, Arc<Device>>>,
    /// Those that are files in mounts of the node.
    files: Mutex<BTreeMap<String, DeviceSpec>>,
    /// Files whose mounts are being made.
    making: Mutex<BTreeMap<String, DeviceSpec>>,
    /// Desired ones that could not be attached after a restart, and why.
    missing: Mutex<BTreeMap<String, (DeviceSpec, String)>>,
}

impl Devices {
    pub(crate) fn all(&self) -> Vec<Arc<Device>> {
        self.served.lock().values().cloned().collect()
    }

    pub(crate) fn len(&self) -> usize {
        let files = self.files.lock().len();
        self.served.lock().len() + files
    }

    /// Returns those that are files.
    pub(crate) fn files(&self) -> Vec<DeviceSpec> {
        self.files.lock().values().cloned().collect()
    }

    pub(crate) fn file(&self, name: &str) -> Option<DeviceSpec> {
        self.files.lock().get(name).cloned()
    }

    /// Returns a file whose mount is being made.
    pub(crate) fn file_in_making(&self, name: &str) -> Option<DeviceSpec> {
        self.making.lock().get(name).cloned()
    }

    /// Notes that the mount of a file is being made, until what is returned is dropped. There is one at a time of a name.
    pub(crate) fn make_file(&self, spec: &DeviceSpec) -> FileInMaking<'_> {
        let name = spec.name.clone();
        self.making.lock().insert(name.clone(), spec.clone());
        FileInMaking {
            devices: self,
            name,
        }
    }

    pub(crate) fn add_file(&self, spec: &DeviceSpec) {
        self.files.lock().insert(spec.name.clone(), spec.clone());
    }

    pub(crate) fn remove_file(&self, name: &str) {
        self.files.lock().remove(name);
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Device>> {
        self.served.lock().get(name).cloned()
    }

    pub(crate) fn add(&self, device: &Arc<Device>) {
        let name = device.spec.name.clone();
        self.served.lock().insert(name, Arc::clone(device));
    }

    pub(crate) fn remove(&self, name: &str) {
        self.served.lock().remove(name);
    }

    /// Returns those with these keys that are still there.
    pub(crate) fn with_keys(&self, keys: &BTreeSet<String>) -> Vec<Arc<Device>> {
        let served = self.served.lock();
        let devices = served.values().filter(|device| keys.contains(&device.key));
        devices.cloned().collect()
    }

    /// Notes that a desired device could not be attached, and returns whether that was known.
    pub(crate) fn miss(&self, spec: &DeviceSpec, why: String) -> bool {
        let missed = (spec.clone(), why);
        let mut missing = self.missing.lock();
        missing.insert(spec.name.clone(), missed).is_some()
    }

    /// Notes that a device is attached, or desired no more.
    pub(crate) fn miss_no_more(&self, name: &str) {
        self.missing.lock().remove(name);
    }

    /// Returns what there is to tell of the missing ones.
    pub(crate) fn missing_views(&self) -> Vec<DeviceView> {
        let missing = self.missing.lock();
        let views = missing.values().map(|(spec, why)| DeviceView {
            error: Some(format!("not attached yet, and tried again: {why}")),
            ..unserved(spec, MountState::Failed)
        });
        views.collect()
    }
}
