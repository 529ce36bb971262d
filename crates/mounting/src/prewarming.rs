//! Prewarms: loads boot images into the page cache of a mount, whatever process serves it.

use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

use anyhow::Context as _;
use blocks::{BlockCache, ReplayPlan};
use parking_lot::Mutex;
use yolofs::{Lock, PrewarmError, PrewarmOptions, PrewarmReport};

use crate::boot::Boot;
use crate::memory_group;
use host::size::Size;
use node_api::mount_daemon::PrewarmSummary;
use node_api::mount_state::PrewarmState;

/// Returns whether to lock so many blocks: not if a memory group of this process would have it killed over
/// that. They are brought into memory all the same, and the log says that they are not kept there.
fn affordable(lock: Lock, blocks: u64, budget_bytes: Option<u64>) -> Lock {
    let bytes = (blocks * 4096).min(budget_bytes.unwrap_or(u64::MAX));
    match memory_group::room() {
        Some(room) if lock == Lock::Yes && bytes > room => {
            log::warn!(
                "{} are not locked in memory: a memory group (cgroup) of this process leaves {}; allow \
                 it more (MemoryMax= of its unit)",
                Size(bytes),
                Size(room)
            );
            Lock::No
        }
        _ => lock,
    }
}

/// How a boot image is brought into the page cache.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrewarmRequest {
    /// Whether the pages are kept in memory, if memory groups (cgroups) leave room for that.
    pub lock: Lock,
    /// At most so many bytes are pushed.
    pub budget_bytes: Option<u64>,
    /// At most so many files are held by descriptors.
    pub max_pins: Option<u64>,
    /// One in this many blocks is held back, to sample how much of what is pushed is needed.
    pub hold_back: Option<NonZeroU32>,
}

/// The prewarms of one mount; at most one runs at a time.
#[derive(Debug)]
pub struct Prewarming {
    running: Mutex<()>,
    /// Ends the one that runs or comes next.
    cancel: Mutex<Arc<AtomicBool>>,
    state: Mutex<PrewarmState>,
}

impl Prewarming {
    /// Begins with a given state: off, or waiting.
    pub fn new(state: PrewarmState) -> Self {
        Self {
            running: Mutex::new(()),
            cancel: Mutex::default(),
            state: Mutex::new(state),
        }
    }

    /// Returns the state of the prewarm.
    pub fn state(&self) -> PrewarmState {
        *self.state.lock()
    }

    /// Cancels the prewarms begun so far.
    pub fn cancel(&self) {
        let begun = std::mem::take(&mut *self.cancel.lock());
        begun.store(true, SeqCst);
    }

    /// Makes a running prewarm end soon, and further ones at once.
    pub fn close(&self) {
        self.cancel.lock().store(true, SeqCst);
    }

    /// Brings a boot image into the page cache, on this thread, which must not be one that serves requests. It
    /// waits for a prewarm of this mount that runs. `inject` pushes the blocks into the mount.
    ///
    /// # Errors
    /// If the mount cannot be used. That costs speed only.
    pub fn prewarm(
        &self,
        boot: &Boot,
        request: &PrewarmRequest,
        inject: impl FnOnce(
            &ReplayPlan,
            &dyn BlockCache,
            &PrewarmOptions<'_>,
        ) -> Result<PrewarmReport, PrewarmError>,
    ) -> anyhow::Result<PrewarmSummary> {
        let plan = boot.recorded.plan();
        let prewarmed = self.run(|cancel| {
            let options = PrewarmOptions {
                lock: affordable(request.lock, plan.block_count(), request.budget_bytes),
                cancel: Some(cancel),
                budget_bytes: request.budget_bytes,
                max_pins: request.max_pins,
                hold_back: request.hold_back,
                ..PrewarmOptions::default()
            };
            boot.blocks
                .in_order(plan, |plan, blocks| inject(plan, blocks, &options))
        });
        prewarmed.context("bringing the boot image into the page cache")
    }

    /// Runs `prewarm` when no other prewarm of this mount runs. It is to end soon when what it is given is set. One that
    /// panics has failed, and panics here.
    ///
    /// # Errors
    /// What `prewarm` says.
    fn run<E>(
        &self,
        prewarm: impl FnOnce(&AtomicBool) -> Result<PrewarmReport, E>,
    ) -> Result<PrewarmSummary, E> {
        let cancel = Arc::clone(&self.cancel.lock());
        let _one_at_a_time = self.running.lock();
        *self.state.lock() = PrewarmState::Running;
        let started = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| prewarm(&cancel)));
        *self.state.lock() = match &result {
            Ok(Ok(report)) if report.cancelled => PrewarmState::Cancelled,
            Ok(Ok(_)) => PrewarmState::Done,
            Ok(Err(_)) | Err(_) => PrewarmState::Failed,
        };
        let report = result.unwrap_or_else(|panic| resume_unwind(panic))?;
        Ok(PrewarmSummary {
            touches: report.touches,
            injected_bytes: report.injected_bytes,
            skipped_bytes: report.skipped_bytes,
            took_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prewarms nothing, and ends as it is told.
    fn told(cancel: &AtomicBool) -> Result<PrewarmReport, ()> {
        Ok(PrewarmReport {
            touches: 7,
            cancelled: cancel.load(SeqCst),
            ..PrewarmReport::default()
        })
    }

    #[test]
    fn the_state_follows_the_prewarm() {
        let prewarming = Prewarming::new(PrewarmState::Waiting);
        assert_eq!(prewarming.state(), PrewarmState::Waiting);
        let summary = prewarming.run(|cancel| {
            assert_eq!(prewarming.state(), PrewarmState::Running);
            told(cancel)
        });
        assert_eq!(summary.unwrap().touches, 7);
        assert_eq!(prewarming.state(), PrewarmState::Done);
        assert_eq!(prewarming.run(|_| Err("full")), Err("full"));
        assert_eq!(prewarming.state(), PrewarmState::Failed);
        prewarming.run(told).unwrap();
        let panics = || prewarming.run::<()>(|_| panic!("part of the test"));
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert_eq!(prewarming.state(), PrewarmState::Failed);
        prewarming.run(told).unwrap();
    }

    #[test]
    fn cancelling_ends_what_was_begun_and_closing_what_comes_too() {
        let prewarming = Prewarming::new(PrewarmState::Off);
        prewarming
            .run(|cancel| {
                prewarming.cancel();
                told(cancel)
            })
            .unwrap();
        assert_eq!(prewarming.state(), PrewarmState::Cancelled);
        prewarming.run(told).unwrap();
        assert_eq!(prewarming.state(), PrewarmState::Done);
        prewarming.close();
        for _ in 0..2 {
            prewarming.run(told).unwrap();
            assert_eq!(prewarming.state(), PrewarmState::Cancelled);
        }
    }
}
