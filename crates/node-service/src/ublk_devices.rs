//! Devices that are block devices of the machine: the node makes and ends them, and a worker answers their requests.
//!
//! A worker gets the character device of its device, and no access to others or to the driver. When it dies, users of
//! the device wait, and the next worker goes on with the same device: what was in flight is requested again.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use blockexport::ublk::{Channel, KernelDevice, UblkConfig};

use super::assignment::Service;
use super::attach::DETACH;
use super::device::Device;
use super::owner::Owner;
use super::wire::{DeviceQueues, Fault, OpenedDevice, WorkerRequest, WorkerResponse};
use super::workers::Worker;
use node_api::control::NodeError;
use node_api::device::{DeviceKind, DeviceStatus};

/// How long a worker may take to open the queues of a device.
const SERVE: Duration = Duration::from_secs(30);

/// Why a worker does not serve a device.
pub(crate) struct Unserved {
    pub fault: Fault,
    pub why: String,
    /// Whether the worker has a part of it, and has to end.
    pub ends: bool,
}

/// Has a block device answered by a worker that has opened its image: the device that a worker left who died, or a new
/// one. The outer error is that of a worker that is lost.
pub(crate) fn start(
    device: &Device,
    worker: &Worker,
    opened: &OpenedDevice,
) -> anyhow::Result<Result<DeviceStatus, Unserved>> {
    let at = &device.spec.at;
    let config = UblkConfig {
        identity: opened.identity.clone(),
        ..UblkConfig::default()
    };
    let kernel = match KernelDevice::prepare(at, &opened.info, &config) {
        Ok(kernel) => kernel,
        Err(error) => {
            let name = device.spec.name.clone();
            worker.ask(&WorkerRequest::Detach { name }, DETACH)?;
            return Ok(Err(Unserved {
                fault: Fault::Invalid,
                why: format!("{:#}", anyhow::Error::from(error)),
                ends: false,
            }));
        }
    };
    let started = start_queues(device, worker, &kernel);
    Ok(started.map_err(|error| {
        kernel.give_up();
        Unserved {
            fault: Fault::Failed,
            why: format!("{error:#}"),
            ends: true,
        }
    }))
}

fn start_queues(
    device: &Device,
    worker: &Worker,
    kernel: &KernelDevice,
) -> anyhow::Result<DeviceStatus> {
    let Channel {
        file,
        id,
        queues,
        depth,
    } = kernel.channel()?;
    let question = WorkerRequest::ServeQueues(DeviceQueues {
        name: device.spec.name.clone(),
        number: id,
        queues,
        depth,
    });
    let (answer, _) = worker.ask_with(&question, &[file.as_fd()], SERVE)?;
    // From now on it is the worker's alone, so that the kernel notices its death.
    drop(file);
    let status = match answer {
        WorkerResponse::Attached(status) => status,
        WorkerResponse::Refused { why, .. } => return Err(anyhow!(why)),
        other => return Err(anyhow!("unexpected response of a worker: {other:?}")),
    };
    kernel.start(&device.spec.at, worker.process.pid)?;
    Ok(status)
}

impl Owner {
    /// Ends a device that has started: a block device for its users, too.
    ///
    /// # Errors
    /// [`NodeError::Conflict`] if it is in use: then nothing is ended. And as [`Self::end_device`].
    pub(crate) fn end_started(&self, device: &Arc<Device>) -> Result<(), NodeError> {
        if device.spec.kind != DeviceKind::Ublk {
            return self.end_device(device);
        }
        let (name, at) = (&device.spec.name, &device.spec.at);
        let kernel = KernelDevice::find(at).with_context(|| format!("looking for {name}"))?;
        let Some(kernel) = kernel else {
            return self.end_device(device);
        };
        // Without a worker, its users wait for what does not come, and could not even unmount.
        if matches!(device.assigned.service(), Service::By(_)) && kernel.is_used() {
            return Err(NodeError::Conflict(format!(
                "{} is in use: unmount it first",
                at.display()
            )));
        }
        // No other worker takes it over meanwhile.
        device.set_over();
        if let Err(error) = kernel.stop(at) {
            log::error!("{name}: {:#}", anyhow::Error::from(error));
        }
        let ended = self.end_device(device);
        kernel.delete();
        ended
    }
}
