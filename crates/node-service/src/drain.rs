//! Draining the node.

use std::time::Duration;

use parking_lot::Mutex;
use yolofs::Busy;

use super::owner::Owner;
use node_api::control::NodeError;
use node_api::view::Drained;

/// How long users of a mount may take to let go before it is detached from under them.
const PATIENCE: Duration = Duration::from_millis(200);
/// So many mounts are taken away at a time.
const AT_A_TIME: usize = 8;

impl Owner {
    /// Unmounts everything, lazily where it is in use. Desired mounts stay desired: the next node
    /// makes it again.
    pub(crate) fn take_all_away(&self) -> Drained {
        let mut mounts = self.all();
        mounts.retain(|mount| !mount.is_leaving());
        let waiting = Mutex::new(mounts.into_iter());
        let next = || waiting.lock().next();
        let drained = Mutex::new(Drained::default());
        std::thread::scope(|scope| {
            for _ in 0..AT_A_TIME {
                scope.spawn(|| {
                    while let Some(mount) = next() {
                        let taken = self.mount_locks.take(&mount.id).and_then(|_lock| {
                            match self.take_away(&mount, Busy::Wait, PATIENCE) {
                                Err(NodeError::Conflict(_)) => {
                                    self.take_away(&mount, Busy::Lazy, PATIENCE)
                                }
                                other => other,
                            }
                        });
                        match taken {
                            Ok(()) if self.has(&mount) => drained.lock().in_use += 1,
                            Ok(()) => drained.lock().unmounted += 1,
                            Err(error) => log::error!("{error:#}"),
                        }
                    }
                });
            }
        });
        drained.into_inner()
    }
}
