//! Groups that are ready for their next user.

use std::path::Path;

use parking_lot::Mutex;

use super::{Group, Hierarchies};
use crate::error::{Result, SandboxError};

/// The groups of a program, each in use or free, and never both.
#[derive(Debug)]
pub(crate) struct Pool {
    hierarchies: Hierarchies,
    slots_max: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ready: Vec<Group>,
    /// Slots below `slots_next` that neither are in use nor have a group that is ready.
    free: Vec<u32>,
    slots_next: u32,
}

impl Pool {
    /// Makes a pool of at most `slots_max` groups, of which the numbers in `taken` are in use.
    pub(crate) fn new(hierarchies: Hierarchies, slots_max: u32, taken: &[u32]) -> Self {
        let slots_next = taken.iter().max().map_or(0, |most| most + 1);
        let state = State {
            ready: Vec::new(),
            free: (0..slots_next)
                .filter(|slot| !taken.contains(slot))
                .collect(),
            slots_next,
        };
        Self {
            hierarchies,
            slots_max,
            state: Mutex::new(state),
        }
    }

    /// Opens the group of a slot that is in use, in the directory that it is in.
    pub(crate) fn adopt(&self, dir: &Path, slot: u32) -> Result<Group> {
        Group::open_in(&self.hierarchies, dir, slot)
    }

    pub(super) fn hierarchies(&self) -> &Hierarchies {
        &self.hierarchies
    }

    /// Takes a group without processes.
    pub(crate) fn take(&self) -> Result<Group> {
        let ready = self.state.lock().ready.pop();
        if let Some(group) = ready {
            return Ok(group);
        }
        self.take_new(&self.hierarchies.unified)
    }

    /// Takes a new group, in a directory of its own.
    pub(crate) fn take_new(&self, dir: &Path) -> Result<Group> {
        let slot = self.take_slot()?;
        let group = Group::open_in(&self.hierarchies, dir, slot);
        if group.is_err() {
            self.state.lock().free.push(slot);
        }
        group
    }

    /// Returns a number that no group has, at the cost of one that is ready if there is no other.
    fn take_slot(&self) -> Result<u32> {
        let unused = {
            let mut state = self.state.lock();
            if let Some(slot) = state.free.pop() {
                return Ok(slot);
            }
            if state.slots_next < self.slots_max {
                state.slots_next += 1;
                return Ok(state.slots_next - 1);
            }
            state.ready.pop()
        };
        let full = SandboxError::Full(self.slots_max);
        let unused = unused.ok_or(full)?;
        self.discard(unused);
        let slot = self.state.lock().free.pop();
        slot.ok_or(SandboxError::Full(self.slots_max))
    }

    /// Returns a group. One that cannot be reset, or is charged for much, is removed, or left alone if even that
    /// fails: its number, and the user of that number, are not used again. Returns whether the last
    /// process in it has ended.
    pub(crate) fn put_back(&self, mut group: Group) -> bool {
        let slot = group.slot;
        match group.reset().and_then(|()| group.is_charged()) {
            Ok(false) => {
                self.state.lock().ready.push(group);
                return true;
            }
            Ok(true) => {}
            Err(error) => log::warn!("the control group {slot} cannot be used again: {error}"),
        }
        self.discard(group)
    }

    /// Removes a group that is not to be used again, and frees its number. Returns whether the last process
    /// in it has ended.
    pub(crate) fn discard(&self, group: Group) -> bool {
        let slot = group.slot;
        match group.remove() {
            Ok(()) => {
                self.state.lock().free.push(slot);
                true
            }
            Err(error) => {
                log::error!("the control group {slot} stays behind: {error}");
                false
            }
        }
    }

    /// Removes all groups that are not in use.
    pub(crate) fn clear(&self) {
        let ready = std::mem::take(&mut self.state.lock().ready);
        for group in ready {
            self.discard(group);
        }
    }
}
