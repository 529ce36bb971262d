//! Groups that a Zygote starts its children in.
//!
//! They are in a directory of the Zygote's, and it owns the files that it needs to start a process in one of them:
//! from one group there to another, and nowhere else. Its packages may keep descriptors of such a group, so it
//! is reused only for children of the same Zygote, who have these packages, too, and is removed in the end.

use std::fs;
use std::path::PathBuf;

use parking_lot::Mutex;

use super::hierarchies::delegate_below;
use super::{Group, Pool, lend, made};
use crate::error::Result;

/// The groups of a Zygote.
#[derive(Debug)]
pub(crate) struct Lent {
    dir: PathBuf,
    owner: u32,
    /// Free groups; `None` after the Zygote's end.
    ready: Mutex<Option<Vec<Group>>>,
}

impl Lent {
    /// Makes a directory for a Zygote whose user is `owner`.
    pub(crate) fn new(pool: &Pool, name: &str, owner: u32) -> Result<Self> {
        let dir = made(pool.hierarchies().unified.join(name))?;
        let lent = Self {
            dir,
            owner,
            ready: Mutex::new(Some(Vec::new())),
        };
        delegate_below(pool.hierarchies(), &lent.dir)?;
        lend(&lent.dir, owner)?;
        Ok(lent)
    }

    /// Takes a group.
    pub(crate) fn take(&self, pool: &Pool) -> Result<Group> {
        let ready = self.ready.lock().as_mut().and_then(Vec::pop);
        if let Some(group) = ready {
            return Ok(group);
        }
        let mut group = pool.take_new(&self.dir)?;
        match group.lend_to(self.owner) {
            Ok(()) => Ok(group),
            Err(error) => {
                pool.discard(group);
                Err(error)
            }
        }
    }

    /// Returns whether its Zygote has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.ready.lock().is_none()
    }

    /// Returns one, after the last process in it has ended, or removes it.
    pub(crate) fn put_back(&self, mut group: Group, pool: &Pool) {
        if let Err(error) = group.reset() {
            log::warn!(
                "the control group {} cannot be used again: {error}",
                group.slot
            );
            self.discard(group, pool);
            return;
        }
        let mut ready = self.ready.lock();
        match &mut *ready {
            Some(ready) => ready.push(group),
            None => {
                drop(ready);
                self.discard(group, pool);
            }
        }
    }

    /// Removes all that are not in use, and from now on each that comes back.
    pub(crate) fn close(&self, pool: &Pool) {
        let ready = self.ready.lock().take();
        for group in ready.into_iter().flatten() {
            pool.discard(group);
        }
        self.remove_dir();
    }

    fn discard(&self, group: Group, pool: &Pool) {
        pool.discard(group);
        self.remove_dir();
    }

    fn remove_dir(&self) {
        if self.ready.lock().is_none() {
            // As long as a group is in use, it stays; whoever gives back the last one comes by here.
            let _in_use = fs::remove_dir(&self.dir);
        }
    }
}
