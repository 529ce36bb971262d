//! A new node finds the devices that an earlier one has left, and the workers that went on serving them.

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use blockexport::ublk::KernelDevice;
use blockexport::{ExportError, Place};

use super::adopt::QUICK;
use super::device::Device;
use super::file_devices::unmount_dead;
use super::owner::Owner;
use super::probe::Statuses;
use super::wire::{WorkerRequest, WorkerResponse};
use super::workers::Worker;
use host::run_dir::RunDir;
use node_api::device::{DeviceKind, DeviceSpec, DeviceStatus};
use node_records::devices::DeviceInstance;

impl Owner {
    /// Takes over what an earlier node had, with the workers that serve it, by pid, and what they said. Returns
    /// the devices that nobody serves.
    pub(crate) fn take_over_devices(
        &self,
        instances: Vec<DeviceInstance>,
        workers: &BTreeMap<u32, Arc<Worker>>,
        heard: &Statuses,
    ) -> Vec<Arc<Device>> {
        let mut orphans = Vec::new();
        for instance in instances {
            let name = &instance.spec.name;
            if instance.spec.kind == DeviceKind::File {
                self.take_over_file(&instance.spec);
                continue;
            }
            let worker = instance.worker;
            let worker = worker.and_then(|process| workers.get(&process.pid));
            let status = heard.devices.get(name);
            match self.take_over_device(&instance, worker, status) {
                Ok((device, Serves::Yes)) => self.devices.add(&device),
                Ok((device, Serves::No)) => {
                    self.devices.add(&device);
                    orphans.push(device);
                }
                Err(error) => {
                    log::error!("the device {name} is lost, and attached again: {error:#}");
                    self.device_records.forget(name);
                }
            }
        }
        orphans
    }

    /// Takes over a device that is a file. Its mount was taken over as any other; if that is lost, the device is
    /// attached again.
    fn take_over_file(&self, spec: &DeviceSpec) {
        if self.visible_at(&RunDir::id_of(&spec.at)).is_some() {
            self.devices.add_file(spec);
            return;
        }
        let name = &spec.name;
        log::error!("the file of the device {name} is lost, and attached again");
        if let Err(error) = unmount_dead(spec) {
            log::error!("{name}: {error:#}");
        }
        self.device_records.forget(name);
    }

    fn take_over_device(
        &self,
        instance: &DeviceInstance,
        worker: Option<&Arc<Worker>>,
        status: Option<&DeviceStatus>,
    ) -> anyhow::Result<(Arc<Device>, Serves)> {
        let name = &instance.spec.name;
        if let Some((worker, status)) = worker.zip(status) {
            match taken_over(&instance.spec, worker)? {
                Ok(place) => {
                    let device = Device::new(instance, place);
                    worker.claim(&device.key);
                    device.found(worker, status.clone());
                    return Ok((device, Serves::Yes));
                }
                Err(error) => log::warn!("{name}: its worker is replaced: {error:#}"),
            }
        }
        if let Some(worker) = worker {
            // It may be about to serve it: two must never.
            worker.replace();
        }
        let place = place_after(&instance.spec).context("making its socket or link again")?;
        Ok((Device::new(instance, place), Serves::No))
    }
}

/// Whether somebody serves a device.
enum Serves {
    Yes,
    No,
}

/// Takes over the place of a device that a worker serves. The inner error says why it has to be served again.
fn taken_over(spec: &DeviceSpec, worker: &Worker) -> anyhow::Result<anyhow::Result<Place>> {
    if spec.kind == DeviceKind::Ublk {
        let place = place_of(spec).context("taking over its link")?;
        let kernel = KernelDevice::find(&spec.at)?;
        let is_live = kernel.is_some_and(|kernel| kernel.is_live());
        return Ok(match is_live {
            true => Ok(place),
            false => Err(anyhow!("its block device was not started")),
        });
    }
    match handed_back(&spec.name, worker) {
        Ok(listener) => {
            let place = Place::adopt(&spec.at, listener);
            Ok(Ok(place.context("taking over its socket")?))
        }
        Err(error) => Ok(Err(error)),
    }
}

/// Makes the place of a device: its socket, or the claim to its link.
pub(crate) fn place_of(spec: &DeviceSpec) -> Result<Place, ExportError> {
    match spec.kind {
        DeviceKind::Ublk => Place::link(&spec.at),
        _ => Place::bind(&spec.at),
    }
}

/// Makes the place again of a device whose worker was ended just now.
fn place_after(spec: &DeviceSpec) -> Result<Place, ExportError> {
    match spec.kind {
        DeviceKind::Ublk => Place::link(&spec.at),
        _ => Place::bind_after(&spec.at),
    }
}

/// Asks a worker for the socket of a device that it serves: it has it, too.
fn handed_back(name: &str, worker: &Worker) -> anyhow::Result<UnixListener> {
    let question = WorkerRequest::HandSocket {
        name: name.to_owned(),
    };
    let (answer, files) = worker.ask_with(&question, &[], QUICK)?;
    match (answer, files.into_iter().next()) {
        (WorkerResponse::Handed, Some(socket)) => Ok(socket.into()),
        (other, _) => bail!("unexpected response of its worker: {other:?}"),
    }
}
