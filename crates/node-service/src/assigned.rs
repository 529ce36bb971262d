//! What the node has workers serve, a mount or a device: which worker it has, beside all else that changes of it.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::assignment::{Assignment, Service};
use super::deaths::{Cause, Verdict};
use super::workers::Worker;

/// Which worker serves something, and what else changes of it: all under one lock.
#[derive(Debug)]
pub(crate) struct Assigned<T> {
    state: Mutex<AssignedState<T>>,
    changed: Condvar,
}

/// What is under that lock.
#[derive(Debug)]
pub(super) struct AssignedState<T> {
    pub(super) assignment: Assignment,
    rest: T,
}

impl<T> Deref for AssignedState<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.rest
    }
}

impl<T> DerefMut for AssignedState<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.rest
    }
}

impl<T> Assigned<T> {
    pub(super) fn new(assignment: Assignment, rest: T) -> Self {
        Self {
            state: Mutex::new(AssignedState { assignment, rest }),
            changed: Condvar::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, AssignedState<T>> {
        self.state.lock()
    }

    /// Notifies those who wait that something has changed.
    pub(super) fn tell(&self) {
        self.changed.notify_all();
    }

    /// Returns which worker serves it.
    pub(crate) fn service(&self) -> Service {
        self.lock().assignment.service.clone()
    }

    /// Returns whether it is over.
    pub(crate) fn is_over(&self) -> bool {
        self.lock().assignment.over
    }

    /// Notes that a worker is requested to serve it. Fails if it is over or was given up.
    pub(crate) fn ask(&self, worker: &Arc<Worker>) -> bool {
        self.lock().assignment.ask(worker)
    }

    /// Notes that it has no worker, after one refused.
    pub(crate) fn refused(&self, worker: &Arc<Worker>) {
        self.lock().assignment.refused(worker);
    }

    /// Notes that its worker died, and returns the next step. `None` if that worker was not the one that serves it, or if
    /// it is over.
    pub(crate) fn lost(&self, worker: &Arc<Worker>, at: Instant, cause: Cause) -> Option<Verdict> {
        self.lock().assignment.lost(worker, at, cause)
    }

    /// Notes that it will not be served any more.
    pub(crate) fn give_up(&self, why: String) {
        self.lock().assignment.service = Service::GivenUp(why);
        self.tell();
    }

    /// Waits until it is served or given up, at most until `deadline`, and returns its state.
    pub(crate) fn wait_until_served(&self, deadline: Instant) -> Service {
        let mut state = self.lock();
        let pending = |state: &mut AssignedState<T>| state.assignment.is_pending();
        self.changed.wait_while_until(&mut state, pending, deadline);
        state.assignment.service.clone()
    }

    /// Returns the time that passed between its last two workers.
    pub(crate) fn last_gap(&self) -> Option<Duration> {
        self.lock().assignment.last_gap
    }
}
