//! Locks of the places where mounts are made and unmounted: one holder at a time at each.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use node_api::control::NodeError;

/// How long to wait for somebody else who makes or unmounts at the same place.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The places whose mount is being changed.
#[derive(Debug, Default)]
pub(crate) struct MountLocks {
    taken: Mutex<BTreeSet<String>>,
    changed: Condvar,
}

/// The right to change what is mounted at one place, until dropped.
#[derive(Debug)]
pub(crate) struct MountLock<'a> {
    locks: &'a MountLocks,
    id: String,
}

impl MountLocks {
    /// Waits for the lock of the place, and returns it.
    ///
    /// # Errors
    /// [`NodeError::Unavailable`] if that takes too long.
    pub(crate) fn take(&self, id: &str) -> Result<MountLock<'_>, NodeError> {
        let late = || {
            let s = PATIENCE.as_secs();
            let why = format!("another process has been mounting or unmounting there for {s} s");
            NodeError::Unavailable(why)
        };
        self.take_within(id, PATIENCE).ok_or_else(late)
    }

    /// Waits for the lock of the place for some time, and returns it if it was to be had.
    pub(crate) fn take_within(&self, id: &str, patience: Duration) -> Option<MountLock<'_>> {
        let deadline = Instant::now() + patience;
        let mut taken = self.taken.lock();
        while taken.contains(id) {
            if self.changed.wait_until(&mut taken, deadline).timed_out() {
                return None;
            }
        }
        taken.insert(id.to_owned());
        Some(MountLock {
            locks: self,
            id: id.to_owned(),
        })
    }
}

impl Drop for MountLock<'_> {
    fn drop(&mut self) {
        self.locks.taken.lock().remove(&self.id);
        self.locks.changed.notify_all();
    }
}
