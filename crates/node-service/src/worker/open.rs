//! Which mounts have something open.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// How many mounts of each name have something open: a mount that was removed may still be in use by
/// a thread, or being dropped.
#[derive(Debug, Default)]
pub(super) struct Open {
    counts: Mutex<BTreeMap<String, usize>>,
    changed: Condvar,
}

impl Open {
    pub(super) fn await_closed(&self, id: &str, deadline: Instant) -> bool {
        let mut counts = self.counts.lock();
        while counts.contains_key(id) {
            if self.changed.wait_until(&mut counts, deadline).timed_out() {
                return !counts.contains_key(id);
            }
        }
        true
    }
}

/// Counts as open until dropped.
#[derive(Debug)]
pub(super) struct Opened {
    open: Arc<Open>,
    id: String,
}

impl Opened {
    pub(super) fn note(open: &Arc<Open>, id: &str) -> Self {
        *open.counts.lock().entry(id.to_owned()).or_default() += 1;
        Self {
            open: Arc::clone(open),
            id: id.to_owned(),
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let mut counts = self.open.counts.lock();
        if let Some(count) = counts.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.id);
            }
        }
        self.open.changed.notify_all();
    }
}
