//! Which worker serves a mount or a device of the node, and what became of those before it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::deaths::{Cause, Deaths, Verdict};
use super::gap::millis;
use super::workers::Worker;
use node_records::instance::ProcessRef;

/// The worker of a mount or a device, if it has one.
#[derive(Clone, Debug)]
pub(crate) enum Service {
    /// No worker; another one is being started.
    Nobody,
    /// This worker was requested to serve it, and has not responded.
    Asked(Arc<Worker>),
    /// This worker serves it.
    By(Arc<Worker>),
    /// No worker, and none will be started.
    GivenUp(String),
}

/// The assignment of a mount or a device to workers.
#[derive(Debug)]
pub(super) struct Assignment {
    pub(super) service: Service,
    /// Whether the mount or the device is over: no other worker is asked, and its record stays as it is.
    pub(super) over: bool,
    pub(super) restarts: u64,
    /// The time that passed between the last two workers.
    pub(super) last_gap: Option<Duration>,
    deaths: Deaths,
    /// Since when it has no worker.
    alone_since: Option<Instant>,
}

impl Assignment {
    /// Returns that of a mount or a device whose node was started. `alone` is whether it needs a worker of its own.
    pub(super) fn after_a_restart(alone: bool, restarts: u64, last_gap_ms: Option<u64>) -> Self {
        Self {
            service: Service::Nobody,
            over: false,
            restarts,
            last_gap: last_gap_ms.map(Duration::from_millis),
            deaths: Deaths::after_a_restart(alone),
            alone_since: Some(Instant::now()),
        }
    }

    /// Returns whether it needs a worker of its own.
    pub(super) const fn alone(&self) -> bool {
        self.deaths.alone()
    }

    /// Returns [`last_gap`](Self::last_gap) in milliseconds.
    pub(super) fn last_gap_ms(&self) -> Option<u64> {
        self.last_gap.map(millis)
    }

    /// Returns the process of the worker that serves it or was requested to.
    pub(super) fn process(&self) -> Option<ProcessRef> {
        match &self.service {
            Service::By(worker) | Service::Asked(worker) => Some(worker.process),
            Service::Nobody | Service::GivenUp(_) => None,
        }
    }

    /// Returns whether a worker may come to serve it.
    pub(super) const fn is_pending(&self) -> bool {
        matches!(self.service, Service::Nobody | Service::Asked(_)) && !self.over
    }

    /// Notes that a worker is requested to serve it. Fails if it is over or was given up.
    pub(super) fn ask(&mut self, worker: &Arc<Worker>) -> bool {
        if self.over || matches!(self.service, Service::GivenUp(_)) {
            return false;
        }
        self.service = Service::Asked(Arc::clone(worker));
        true
    }

    /// Notes that the worker serves it, and returns whether it does: it may have died since. `first` is whether none
    /// has served it before, so that nobody has waited for this one.
    pub(super) fn served(&mut self, worker: &Arc<Worker>, first: bool) -> bool {
        if !self.was_asked(worker) {
            return false;
        }
        self.service = Service::By(Arc::clone(worker));
        let gap = self.alone_since.take().map(|since| since.elapsed());
        if !first {
            self.last_gap = gap;
        }
        true
    }

    /// Notes that a worker serves it that an earlier node had requested.
    pub(super) fn found(&mut self, worker: &Arc<Worker>) {
        self.service = Service::By(Arc::clone(worker));
        self.alone_since = None;
    }

    /// Notes that a worker refused.
    pub(super) fn refused(&mut self, worker: &Arc<Worker>) {
        if self.was_asked(worker) {
            self.service = Service::Nobody;
        }
    }

    /// Notes that a worker died, and returns the next step. `None` if that worker was not the one that
    /// serves it, or if it is over.
    pub(super) fn lost(
        &mut self,
        worker: &Arc<Worker>,
        at: Instant,
        cause: Cause,
    ) -> Option<Verdict> {
        let (Service::By(its) | Service::Asked(its)) = &self.service else {
            return None;
        };
        if !Arc::ptr_eq(its, worker) || self.over {
            return None;
        }
        self.service = Service::Nobody;
        // Its readers have waited since it read no more.
        let since = worker.retired_at().unwrap_or(at);
        self.alone_since.get_or_insert(since);
        if worker.is_replaced() {
            return Some(match self.alone() {
                true => Verdict::Isolate(Duration::ZERO),
                false => Verdict::Go(Duration::ZERO),
            });
        }
        self.restarts += 1;
        Some(self.deaths.note(at, cause))
    }

    fn was_asked(&self, worker: &Arc<Worker>) -> bool {
        matches!(&self.service, Service::Asked(asked) if Arc::ptr_eq(asked, worker))
    }
}
