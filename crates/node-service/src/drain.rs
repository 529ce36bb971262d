//! Draining the node.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use yolofs::Busy;

use super::device::{Device, key_of};
use super::few::few_at_a_time;
use super::owned::Owned;
use super::owner::Owner;
use node_api::control::NodeError;
use node_api::device::DeviceSpec;
use node_api::view::Drained;

/// How long users of a mount may take to let go before it is detached from under them.
const PATIENCE: Duration = Duration::from_millis(200);
/// So many mounts are taken away at a time.
const AT_A_TIME: usize = 8;

impl Owner {
    /// Unmounts and detaches everything, mounts lazily where they are in use. What is desired stays desired: the
    /// next node makes it again.
    pub(crate) fn take_all_away(&self) -> Drained {
        let detached = Mutex::new(0);
        let name = |device: &Arc<Device>| device.spec.name.clone();
        few_at_a_time(AT_A_TIME, self.devices.all(), name, |device| {
            let lock = self.mount_locks.take(&device.key);
            match lock.and_then(|_lock| self.end_started(&device)) {
                Ok(()) => *detached.lock() += 1,
                Err(error) => log::error!("{}: {error:#}", device.spec.name),
            }
        });
        let name = |spec: &DeviceSpec| spec.name.clone();
        few_at_a_time(AT_A_TIME, self.devices.files(), name, |spec| {
            let lock = self.mount_locks.take(&key_of(&spec.name));
            match lock.and_then(|_lock| self.end_file(&spec)) {
                Ok(()) => *detached.lock() += 1,
                Err(error) => log::warn!("{}: {error:#}", spec.name),
            }
        });
        let mut mounts = self.all();
        mounts.retain(|mount| !mount.is_leaving());
        let drained = Mutex::new(Drained {
            detached: detached.into_inner(),
            ..Drained::default()
        });
        let name = |mount: &Arc<Owned>| mount.id.clone();
        few_at_a_time(AT_A_TIME, mounts, name, |mount| {
            let taken = self.mount_locks.take(&mount.id).and_then(|_lock| {
                match self.take_away(&mount, Busy::Wait, PATIENCE) {
                    Err(NodeError::Conflict(_)) => self.take_away(&mount, Busy::Lazy, PATIENCE),
                    other => other,
                }
            });
            match taken {
                Ok(()) if self.has(&mount) => drained.lock().in_use += 1,
                Ok(()) => drained.lock().unmounted += 1,
                Err(error) => log::error!("{error:#}"),
            }
        });
        drained.into_inner()
    }
}
