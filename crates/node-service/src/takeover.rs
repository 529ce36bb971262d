//! The start of a node after an earlier one: it takes over descriptors from the keeper, records from the
//! run directory, and workers that are still running.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use yolofs::{Busy, MountIds, Visible};

use super::adopt::QUICK;
use super::descriptors::{KeptDescriptor, MountDescriptors};
use super::device::Device;
use super::keep::{self, Returned};
use super::owned::{Owned, kernel_resends};
use super::owner::Owner;
use super::probe::{Statuses, ask_all};
use super::wire::{WorkerRequest, WorkerResponse};
use super::workers::Worker;
use node_records::company::Company;
use node_records::devices::DeviceInstance;
use node_records::instance::Instance;

/// Deadline for unmounting a dead mount.
const UNMOUNT: Duration = Duration::from_secs(2);

/// What nobody serves.
#[derive(Debug)]
pub(crate) struct Orphans {
    pub(crate) mounts: Vec<Arc<Owned>>,
    pub(crate) devices: Vec<Arc<Device>>,
}

impl Owner {
    /// Takes over what an earlier node had, and returns the mounts and devices that nobody serves.
    /// `returned` is what the keeper had, by the device number of the mount.
    ///
    /// # Errors
    /// If the records cannot be listed. One that is unusable is skipped.
    pub(crate) fn take_over(
        &self,
        instances: Vec<Instance>,
        devices: Vec<DeviceInstance>,
        mut returned: BTreeMap<u32, Returned>,
    ) -> Orphans {
        let workers = self.find_workers(&instances, &devices);
        let all: Vec<_> = workers.values().cloned().collect();
        let (heard, silent) = ask_all(&all, QUICK);
        for worker in &silent {
            // It hangs, or is of a release that we cannot talk to.
            log::warn!(
                "worker {} does not respond: replacing it",
                worker.process.pid
            );
            worker.replace();
        }
        let (mut orphans, mut served) = (Vec::new(), Vec::new());
        for instance in instances {
            let kept = returned
                .remove(&MountIds::from(instance.mount).minor)
                .unwrap_or_default();
            let worker = instance
                .worker
                .and_then(|process| workers.get(&process.pid));
            let serves = heard.mounts.contains_key(&instance.key);
            if let Some(worker) = worker.filter(|_| !serves) {
                // It may be about to: two must never serve one mount.
                if kernel_resends(&instance.hello) {
                    worker.replace();
                } else {
                    worker.retire();
                }
            }
            let worker = worker.filter(|_| serves);
            match self.take_one(&instance, kept, worker, &heard) {
                Ok(mount) => match worker {
                    Some(worker) => served.push((mount, Arc::clone(worker))),
                    None => orphans.push(mount),
                },
                Err(error) => {
                    let place = instance.spec.mountpoint.display();
                    log::error!("the mount on {place} is lost: {error:#}");
                    self.clear_away(&instance);
                }
            }
        }
        // The node before may have died while it looked.
        self.watch_for_lost(served);
        for minor in returned.into_keys() {
            log::warn!("the keeper had descriptors of an unknown mount");
            for kind in KeptDescriptor::ALL {
                self.keep.drop_name(&keep::name(kind, minor));
            }
        }
        let devices = self.take_over_devices(devices, &workers, &heard);
        for worker in workers.values() {
            if let Err(error) = self.watch_worker(worker) {
                log::error!("{error:#}");
            }
            for mount in self.with_keys(&worker.keys()) {
                // The node before did, or the worker is of a release that connects by itself.
                if let Err(error) = worker.connect_for(&mount.spec()) {
                    log::info!(
                        "worker {} connects by itself: {error:#}",
                        worker.process.pid
                    );
                }
            }
        }
        Orphans {
            mounts: orphans,
            devices,
        }
    }

    /// Finds the workers that the records name and that are still there.
    fn find_workers(
        &self,
        instances: &[Instance],
        devices: &[DeviceInstance],
    ) -> BTreeMap<u32, Arc<Worker>> {
        let of_mounts = instances
            .iter()
            .filter_map(|instance| Some((instance.worker?, instance.company())));
        let of_devices = devices.iter();
        let of_devices = of_devices
            .filter_map(|device| Some((device.worker?, Company::of_device(&device.spec))));
        let named = of_mounts.chain(of_devices);
        let by_pid: BTreeMap<u32, _> = named.map(|found| (found.0.pid, found)).collect();
        let found = by_pid.into_iter().filter_map(|(pid, (process, company))| {
            Some((pid, self.pool.find(process, company).ok()?))
        });
        found.collect()
    }

    fn take_one(
        &self,
        instance: &Instance,
        kept: Returned,
        worker: Option<&Arc<Worker>>,
        heard: &Statuses,
    ) -> anyhow::Result<Arc<Owned>> {
        let (held, from_keeper) = match (kept, worker) {
            (
                Returned {
                    device: Some(device),
                    source,
                    private,
                },
                _,
            ) if (private.is_some() || instance.leaving)
                && source.is_some() == instance.spec.is_on_disk() =>
            {
                (
                    MountDescriptors {
                        device,
                        source,
                        names: self.records.names(&instance.key)?,
                        private,
                    },
                    true,
                )
            }
            (_, Some(worker)) => (handed_back(instance, worker)?, false),
            (_, None) => bail!("neither the keeper nor a worker has its descriptors"),
        };
        let mount = Owned::new(instance, held);
        if let Some(worker) = worker {
            worker.claim(&mount.key);
            mount.found(worker);
            // What it says is not lost if it stops answering.
            let _view = mount.view(heard.mounts.get(&instance.key).cloned());
        }
        self.add(&mount);
        if !from_keeper {
            self.keep.put(&mount);
        }
        Ok(mount)
    }

    /// Clears away a mount whose descriptors are lost. A desired mount is made again.
    fn clear_away(&self, instance: &Instance) {
        let place = &instance.spec.mountpoint;
        let visible = Visible::resume(place.clone(), instance.mount.into());
        if visible.is_on_top()
            && node_records::dead::is_dead(place)
            && let Err(error) = visible.unmount(Busy::Lazy, UNMOUNT)
        {
            log::warn!("{}: {error}", place.display());
        }
        self.records.forget(&instance.key);
    }
}

/// Asks a worker for the descriptors of a mount that it serves: it has them, too.
fn handed_back(instance: &Instance, worker: &Worker) -> anyhow::Result<MountDescriptors> {
    let question = WorkerRequest::Hand {
        id: instance.key.clone(),
    };
    let (answer, files) = worker.ask_with(&question, &[], QUICK)?;
    match answer {
        WorkerResponse::Handed => {}
        other => bail!("unexpected response of its worker: {other:?}"),
    }
    MountDescriptors::received(&instance.spec, files).context("what its worker handed back")
}
