//! Getting a device served: asking a worker, and asking another when that one dies.

use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};

use super::asked::Asked;
use super::assignment::Service;
use super::deaths::{Cause, Verdict};
use super::device::Device;
use super::few::few_at_a_time;
use super::owner::Owner;
use super::probe::ask_all;
use super::ublk_devices::{self, Unserved};
use super::wire::{WorkerRequest, WorkerResponse};
use super::workers::{Served, Worker};
use node_api::control::NodeError;
use node_api::device::{DeviceStatus, DeviceView};

/// How long a worker may take to serve a device: indexes of layers may have to be fetched. One that hangs is
/// noticed by the probes, long before.
const ATTACH: Duration = Duration::from_secs(100);
/// How long a worker may take to make a device larger, on a slow disk.
const GROW: Duration = Duration::from_secs(60);
/// How long workers have to tell of their devices; who takes longer is shown as the node knows it.
const TELL: Duration = Duration::from_secs(1);
/// So many devices of a dead worker are served again at a time.
const AT_A_TIME: usize = 8;
/// So often a device that was served before may be refused until it is given up: for as long as a registry may be
/// away.
const REFUSALS: u32 = 20;
/// The pause after the first refusal, or when no worker can be started; it doubles each time.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Owner {
    /// Has a device served for the first time.
    ///
    /// # Errors
    /// What the worker refused; nobody serves it then.
    pub(crate) fn serve_device_first(&self, device: &Arc<Device>) -> Result<(), NodeError> {
        self.ask_for(device).first("detached", || {
            device.assigned.wait_until_served(Instant::now() + ATTACH)
        })
    }

    /// Has devices served that were served before, a few at a time, however often that must be tried.
    pub(crate) fn serve_devices(&self, devices: Vec<Arc<Device>>) {
        let name = |device: &Arc<Device>| device.spec.name.clone();
        few_at_a_time(AT_A_TIME, devices, name, |device| {
            self.serve_device_again(&device);
        });
    }

    fn serve_device_again(&self, device: &Arc<Device>) {
        let (mut refusals, mut pause) = (0, PAUSE);
        loop {
            let name = &device.spec.name;
            match self.ask_for(device) {
                Asked::Served | Asked::Lost | Asked::Over => return,
                Asked::NoWorker(error) => log::error!("{name}: {error:#}"),
                Asked::Refused(_, why) => {
                    refusals += 1;
                    // The first time, the worker before may not be gone altogether.
                    if refusals > 1 {
                        log::warn!("{name}: its worker refuses: {why}");
                    }
                    if refusals == REFUSALS {
                        log::error!("giving up the device {name}: {why}");
                        device
                            .assigned
                            .give_up(format!("no worker serves it: {why}"));
                        return;
                    }
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn ask_for(&self, device: &Arc<Device>) -> Asked {
        let watched = |worker: &Arc<Worker>| self.watch_worker(worker);
        let served = Served::Device(&device.spec);
        let placed = self
            .pool
            .place(&device.key, &device.company(), served, watched);
        let worker = match placed {
            Ok(worker) => worker,
            Err(error) => return Asked::NoWorker(error),
        };
        let Some(beside) = device.beside().filter(|_| device.assigned.ask(&worker)) else {
            worker.release(&device.key);
            return Asked::Over;
        };
        // Whoever finds the device after a crash of ours finds its worker.
        self.record_device(device);
        match have_served(device, &worker, &beside) {
            Ok(Ok(status)) => {
                device.served(&worker, status);
                self.record_device(device);
                Asked::Served
            }
            Ok(Err(Unserved { fault, why, ends })) => {
                device.assigned.refused(&worker);
                worker.release(&device.key);
                if ends {
                    worker.kill();
                }
                Asked::Refused(fault, why)
            }
            Err(error) => {
                log::warn!("{}: {error:#}", device.spec.name);
                worker.kill();
                Asked::Lost
            }
        }
    }

    /// Makes a device larger.
    ///
    /// # Errors
    /// As [`NodeControl::resize`](node_api::control::NodeControl::resize).
    pub(crate) fn resize_device(&self, name: &str, size: u64) -> Result<DeviceView, NodeError> {
        let Some(device) = self.devices.get(name) else {
            return Err(match self.devices.file(name) {
                Some(_) => NodeError::Conflict(format!(
                    "{name} is a file, and has a fixed size while it is attached: detach it first"
                )),
                None => NodeError::NoDevice(name.to_owned()),
            });
        };
        let _lock = self.mount_locks.take(&device.key)?;
        let Service::By(worker) = device.assigned.service() else {
            let why = format!("nobody serves {name} now: try again when its state is `serving`");
            return Err(NodeError::Conflict(why));
        };
        let name = name.to_owned();
        match worker.ask(&WorkerRequest::Grow { name, size }, GROW)? {
            WorkerResponse::Attached(status) => Ok(device.view(Some(status))),
            WorkerResponse::Refused { fault, why } => Err(fault.error(why)),
            other => Err(anyhow!("a worker answered {other:?}").into()),
        }
    }

    /// Has the devices of a dead worker served by others.
    pub(crate) fn succeed_devices(
        &self,
        devices: Vec<Arc<Device>>,
        worker: &Arc<Worker>,
        (at, cause): (Instant, Cause),
    ) {
        let (mut again, mut wait) = (Vec::new(), Duration::ZERO);
        for device in devices {
            match device.assigned.lost(worker, at, cause) {
                None => {}
                Some(Verdict::GiveUp) => {
                    let name = &device.spec.name;
                    log::error!(
                        "giving up the device {name}: its workers crash one after the other"
                    );
                    device
                        .assigned
                        .give_up("its workers crash one after the other".to_owned());
                }
                Some(Verdict::Isolate(pause) | Verdict::Go(pause)) => {
                    wait = wait.max(pause);
                    again.push(device);
                }
            }
        }
        std::thread::sleep(wait);
        self.serve_devices(again);
    }

    /// Writes a device's record. A disk that is full costs no device.
    fn record_device(&self, device: &Device) {
        if let Err(error) = device.record(&self.device_records) {
            log::error!("{error:#}");
        }
    }

    /// Returns the views of devices, as their workers tell them if they answer in time.
    pub(crate) fn device_views(&self, devices: &[Arc<Device>]) -> Vec<DeviceView> {
        let serving = devices
            .iter()
            .filter_map(|device| match device.assigned.service() {
                Service::By(worker) if worker.answers() => Some(worker),
                _ => None,
            });
        let mut workers: Vec<_> = serving.collect();
        workers.sort_by_key(|worker| worker.process.pid);
        workers.dedup_by_key(|worker| worker.process.pid);
        let (mut heard, _) = ask_all(&workers, TELL);
        let view = |device: &Arc<Device>| device.view(heard.devices.remove(&device.spec.name));
        devices.iter().map(view).collect()
    }
}

/// Asks a worker to serve a device. The outer error is that of a worker that is lost.
fn have_served(
    device: &Device,
    worker: &Worker,
    beside: &[UnixListener],
) -> anyhow::Result<Result<DeviceStatus, Unserved>> {
    let question = WorkerRequest::Attach(Box::new(device.spec.clone()));
    let beside: Vec<_> = beside.iter().map(AsFd::as_fd).collect();
    match worker.ask_with(&question, &beside, ATTACH)?.0 {
        WorkerResponse::Attached(status) => Ok(Ok(status)),
        WorkerResponse::Opened(opened) => ublk_devices::start(device, worker, &opened),
        WorkerResponse::Refused { fault, why } => Ok(Err(Unserved {
            fault,
            why,
            ends: false,
        })),
        other => bail!("unexpected response of a worker: {other:?}"),
    }
}
