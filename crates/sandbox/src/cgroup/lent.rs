//! Groups that somebody else can enter.
//!
//! A Zygote is given descriptors by which a process moves itself into a group. Its packages may keep them,
//! so such a group is used again for children of the same Zygote only, who have these packages, too, and is
//! removed at last. A descriptor of a group that was removed is of no use.

use parking_lot::Mutex;

use super::{Group, Pool};
use crate::error::Result;

/// The groups that a Zygote was given and nobody uses.
#[derive(Debug)]
pub(crate) struct Lent(Mutex<Option<Vec<Group>>>);

impl Default for Lent {
    fn default() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }
}

impl Lent {
    /// Hands out a group.
    pub(crate) fn take(&self, pool: &Pool) -> Result<Group> {
        let ready = self.0.lock().as_mut().and_then(Vec::pop);
        ready.map_or_else(|| pool.take(), Ok)
    }

    /// Takes one back, after the last process in it has ended, or removes it.
    pub(crate) fn put_back(&self, mut group: Group, pool: &Pool) {
        if let Err(error) = group.reset() {
            log::warn!(
                "the control group {} cannot be used again: {error}",
                group.slot
            );
            pool.discard(group);
            return;
        }
        let mut ready = self.0.lock();
        match &mut *ready {
            Some(ready) => ready.push(group),
            None => {
                drop(ready);
                pool.discard(group);
            }
        }
    }

    /// Removes all that are not in use, and from now on each that comes back.
    pub(crate) fn close(&self, pool: &Pool) {
        let ready = self.0.lock().take();
        for group in ready.into_iter().flatten() {
            pool.discard(group);
        }
    }
}
