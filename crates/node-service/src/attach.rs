//! Attaching devices and detaching them: as others ask, and after a restart.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use blockexport::ExportError;

use super::assignment::Service;
use super::device::{Device, key_of};
use super::device_takeover::place_of;
use super::few::few_at_a_time;
use super::mount_locks::{self, MountLock};
use super::owner::Owner;
use super::wire::{WorkerRequest, WorkerResponse};
use host::caught::caught_round;
use node_api::control::NodeError;
use node_api::device::{Attached, DeviceKind, DeviceSpec, DeviceView, check_name};
use node_records::devices::DeviceInstance;

/// How long a worker may take to end a device: what is in flight is done, and made durable.
pub(crate) const DETACH: Duration = Duration::from_secs(60);
/// How long a worker may take to hear that what it opens is not wanted any more.
const GIVE_UP: Duration = Duration::from_secs(1);
/// How long a device may be locked by who opens it, before that one is told again.
const AGAIN: Duration = Duration::from_millis(200);
/// So many are attached at a time after a restart.
const AT_A_TIME: usize = 8;
/// The pause before the second attempt; it doubles with each further one.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

impl Owner {
    /// Attaches a device, or finds that it is there.
    ///
    /// # Errors
    /// As [`NodeControl::attach`](node_api::control::NodeControl::attach).
    pub(crate) fn attach_device(&self, spec: &DeviceSpec) -> Result<Attached, NodeError> {
        let invalid = |error: anyhow::Error| NodeError::Invalid(format!("{error:#}"));
        spec.check().map_err(invalid)?;
        let _lock = self.mount_locks.take(&key_of(&spec.name))?;
        self.attach_in_turn(spec)
    }

    fn attach_in_turn(&self, spec: &DeviceSpec) -> Result<Attached, NodeError> {
        let device = self.devices.get(&spec.name);
        let there = device.as_ref().map(|device| device.spec.clone());
        let there = there.or_else(|| self.devices.file(&spec.name));
        if there.is_some_and(|there| there != *spec) {
            return Err(NodeError::Conflict(format!(
                "{} is attached already, in another way: detach it first (yolofs block detach {0})",
                spec.name
            )));
        }
        if let Some(device) = device {
            if !matches!(device.assigned.service(), Service::GivenUp(_)) {
                self.device_records.keep_desired(spec)?;
                let device = self.device_view(&device);
                return Ok(Attached { device, new: false });
            }
            self.end_device(&device)?;
        }
        if self.is_draining() {
            return Err(NodeError::Conflict(
                "the node drains: it takes no more devices until it is started again (systemctl restart yolofs-node; or end it, \
                 and run yolofs node)"
                    .to_owned(),
            ));
        }
        if self.devices.len() >= self.config.most_mounts {
            return Err(NodeError::Unavailable(format!(
                "the node has {} devices, and takes no more: that is its limit",
                self.config.most_mounts
            )));
        }
        if spec.kind == DeviceKind::File {
            let attached = self.attach_file(spec)?;
            self.devices.miss_no_more(&spec.name);
            return Ok(attached);
        }
        let instance = DeviceInstance {
            spec: spec.clone(),
            worker: None,
            restarts: 0,
            last_gap_ms: None,
        };
        let device = Device::new(&instance, place_of(spec).map_err(refused_place)?);
        self.devices.add(&device);
        let served = self
            .serve_device_first(&device)
            .and_then(|()| Ok(self.device_records.keep_desired(spec)?));
        if let Err(error) = served {
            let _ended = match device.assigned.service() {
                Service::By(_) => self.end_started(&device),
                _ => self.end_device(&device),
            };
            return Err(error);
        }
        self.devices.miss_no_more(&spec.name);
        let device = self.device_view(&device);
        Ok(Attached { device, new: true })
    }

    /// Detaches a device, and desires it no more.
    ///
    /// # Errors
    /// As [`NodeControl::detach`](node_api::control::NodeControl::detach).
    pub(crate) fn detach_device(&self, name: &str) -> Result<(), NodeError> {
        // A name that is no device's may be anything.
        if check_name(name).is_err() {
            return Err(NodeError::NoDevice(name.to_owned()));
        }
        let _lock = self.take_from_opening(name)?;
        let device = self.devices.get(name);
        let file = self.devices.file(name);
        let known = device.is_some() || file.is_some() || self.device_records.is_desired(name);
        if let Some(device) = device {
            self.end_started(&device)?;
        }
        if let Some(spec) = file {
            self.end_file(&spec)?;
        }
        match known {
            true => {
                self.device_records.forget_desired(name);
                self.devices.miss_no_more(name);
                Ok(())
            }
            false => Err(NodeError::NoDevice(name.to_owned())),
        }
    }

    /// Waits for the lock of a device. Who opens its image meanwhile is told to give up, as often as that takes: its worker
    /// may not have begun when it is first told.
    fn take_from_opening(&self, name: &str) -> Result<MountLock<'_>, NodeError> {
        let key = key_of(name);
        let deadline = Instant::now() + mount_locks::PATIENCE;
        while Instant::now() < deadline {
            self.give_up_opening(name);
            if let Some(lock) = self.mount_locks.take_within(&key, AGAIN) {
                return Ok(lock);
            }
        }
        self.mount_locks.take(&key)
    }

    /// Has the worker that opens the image of a device, if one does, wait for no registry any more: the lock is free soon.
    fn give_up_opening(&self, name: &str) {
        let device = self.devices.get(name);
        if let Some(Service::Asked(worker)) = device.map(|device| device.assigned.service()) {
            let name = name.to_owned();
            // Refused, since it is not served yet; or it is over by now.
            let _told = worker.ask(&WorkerRequest::Detach { name }, GIVE_UP);
        }
        self.give_up_making(name, GIVE_UP);
    }

    /// Ends the service of a device; it may stay desired. A block device that has started waits for the next worker.
    ///
    /// # Errors
    /// If its worker says that what was written is not durable. It is over all the same.
    pub(crate) fn end_device(&self, device: &Arc<Device>) -> Result<(), NodeError> {
        let name = &device.spec.name;
        let mut ended = Ok(());
        if let Service::By(worker) | Service::Asked(worker) = device.set_over() {
            let question = WorkerRequest::Detach { name: name.clone() };
            ended = match worker.ask(&question, DETACH) {
                Ok(WorkerResponse::Done) => Ok(()),
                Ok(WorkerResponse::Refused { fault, why }) => match fault.error(why) {
                    // It died meanwhile, or had not begun.
                    NodeError::Unknown(_) => Ok(()),
                    error => Err(error),
                },
                Ok(other) => Err(anyhow::anyhow!("a worker answered {other:?}").into()),
                Err(error) => {
                    log::warn!("{name}: its worker ends with it: {error:#}");
                    worker.kill();
                    Ok(())
                }
            };
            worker.release(&device.key);
        }
        device.close_place();
        self.devices.remove(name);
        self.device_records.forget(name);
        ended
    }

    /// Returns the view of a device, as its worker tells it if that answers in time.
    fn device_view(&self, device: &Arc<Device>) -> DeviceView {
        let name = &device.spec.name;
        let views = self.device_views(std::slice::from_ref(device));
        let mut views = views.into_iter().filter(|view| view.name == *name);
        views.next().unwrap_or_else(|| device.view(None))
    }

    /// Attaches the desired devices that are not there. One that cannot be attached holds up no other. Returns
    /// whether all are there.
    pub(crate) fn restore_devices(&self) -> bool {
        let found = match self.device_records.desired() {
            Ok(found) => found,
            Err(error) => {
                log::error!("cannot restore any device: {error:#}");
                return true;
            }
        };
        let missing = found.records.into_iter().map(|(_, desired)| desired.spec);
        // What is mounted of a file may be gone though the file is there.
        let is_missing = |spec: &DeviceSpec| {
            spec.kind == DeviceKind::File || self.devices.get(&spec.name).is_none()
        };
        let missing = missing.filter(is_missing);
        let name = |spec: &DeviceSpec| spec.name.clone();
        few_at_a_time(AT_A_TIME, missing.collect(), name, |spec| {
            self.restore_device(&spec);
        });
        self.devices.missing_views().is_empty()
    }

    fn restore_device(&self, spec: &DeviceSpec) {
        let name = &spec.name;
        let attached = self.mount_locks.take(&key_of(name)).and_then(|_lock| {
            // It may have been detached since.
            match self.device_records.is_desired(name) {
                true => self.attach_in_turn(spec).map(drop),
                false => Ok(()),
            }
        });
        if let Err(error) = attached {
            let why = error.to_string();
            if !self.devices.miss(spec, why.clone()) {
                log::error!("cannot attach {name} again: {why}");
            }
        }
    }
}

/// What it means that a socket or link cannot be made.
fn refused_place(error: ExportError) -> NodeError {
    let said = format!("{:#}", anyhow::Error::from(error));
    NodeError::Invalid(said)
}

/// Tries again and again to attach desired devices that could not be, on a thread of its own that ends when all are
/// there.
///
/// # Errors
/// If there is no thread to be had.
pub(crate) fn keep_restoring(owner: Weak<Owner>) -> anyhow::Result<()> {
    let retry = move || {
        let mut pause = PAUSE;
        loop {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
            let Some(owner) = owner.upgrade() else { return };
            if caught_round("restoring devices", || owner.restore_devices()) == Some(true) {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("restore-devices".to_owned())
        .spawn(retry)
        .map(drop)
        .context("starting the thread that attaches devices again")
}
