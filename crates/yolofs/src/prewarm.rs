//! Restores the state of recorded boots in a mount: names first, then content.
//!
//! The kernel caches a page only below an inode that it knows, and knows an inode only as long as
//! a name or a descriptor leads to it. So the prewarm looks every recorded name up through the
//! private mount, holds descriptors on the files whose content comes next, and only then pushes
//! blocks. The first blocks are read while names are looked up. It runs on its caller's thread, which
//! must not serve requests of the mount, and yields to requests that are being answered, but not to
//! those that wait for the source.

mod inject;

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use blocks::{BlockCache, ReplayPlan};

use crate::mount::Mount;
use crate::serving::Serving;
use crate::walk::{Held, Walker};

/// Whether pushed pages are kept in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lock {
    /// The kernel may drop it when memory runs short.
    #[default]
    No,
    /// It stays until the visible mount is gone, or [`Serving::release`] is called.
    Yes,
}

/// How far a prewarm has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Names, listings and links that were replayed.
    pub touches: u64,
    /// How many there are in all.
    pub touches_total: u64,
    /// Bytes of content that were dealt with.
    pub bytes: u64,
    /// How many there are in all.
    pub bytes_total: u64,
}

/// Options of a prewarm.
#[derive(Clone, Copy, Default)]
pub struct PrewarmOptions<'a> {
    /// Whether pushed pages are kept in memory.
    pub lock: Lock,
    /// Set it, and the prewarm ends soon.
    pub cancel: Option<&'a AtomicBool>,
    /// Push no more bytes than this.
    pub budget_bytes: Option<u64>,
    /// Push nothing after this moment.
    pub deadline: Option<Instant>,
    /// Hold no more files than this by descriptors. The limit of the process holds in any case.
    pub max_pins: Option<u64>,
    /// Holds one in so many blocks back: how many of these a boot requests shows how much of the
    /// pushed data was needed ([`Counters::sampled_asked`](crate::Counters)).
    pub hold_back: Option<NonZeroU32>,
    /// Is called now and then, on the thread that prewarms.
    pub progress: Option<&'a dyn Fn(Progress)>,
}

impl std::fmt::Debug for PrewarmOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PrewarmOptions")
            .field("lock", &self.lock)
            .field("cancel", &self.cancel)
            .field("budget_bytes", &self.budget_bytes)
            .field("deadline", &self.deadline)
            .field("max_pins", &self.max_pins)
            .field("hold_back", &self.hold_back)
            .finish_non_exhaustive()
    }
}

/// The result of a prewarm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrewarmReport {
    /// Names, listings and links that were replayed.
    pub touches: u64,
    /// Of these, the ones that led nowhere: the source changed.
    pub failed_touches: u64,
    /// Files and directories that are held by a descriptor.
    pub pinned: u64,
    /// Files that could not be held, because the process may not open so many: the kernel may
    /// drop them, with their pages.
    pub unpinned: u64,
    /// Bytes that were pushed.
    pub injected_bytes: u64,
    /// Bytes that the kernel still had from an earlier prewarm.
    pub present_bytes: u64,
    /// Bytes of the plan that were not brought, whatever the reason.
    pub skipped_bytes: u64,
    /// Of these, bytes that the cache did not have, or would not give.
    pub missing_bytes: u64,
    /// Of these, bytes of files that have changed.
    pub diverted_bytes: u64,
    /// Of these, bytes of files that the kernel did not know, even when looked up again.
    pub unknown_bytes: u64,
    /// Bytes that are kept in memory.
    pub locked_bytes: u64,
    /// Time it took to replay names.
    pub walk_time: Duration,
    /// Time it took to push content, after that.
    pub push_time: Duration,
    /// Whether it was cancelled, or ran out of time.
    pub cancelled: bool,
}

/// Why a mount could not be prewarmed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrewarmError {
    /// The visible mount is gone.
    #[error("the mount is gone")]
    Unmounted,
    /// The kernel accepts no notifications any more.
    #[error("cannot push pages into the kernel")]
    Push(#[source] std::io::Error),
    /// The mount does not respond.
    #[error("cannot walk through the mount")]
    Walk(#[source] std::io::Error),
    /// The cache panicked.
    #[error("the cache that was read from panicked")]
    Cache,
}

impl PrewarmOptions<'_> {
    /// Whether the prewarm has to end now.
    pub(crate) fn is_over(&self) -> bool {
        self.cancel.is_some_and(|cancel| cancel.load(Relaxed))
            || self
                .deadline
                .is_some_and(|deadline| Instant::now() >= deadline)
    }

    pub(crate) fn tell(&self, progress: Progress) {
        if let Some(tell) = self.progress {
            tell(progress);
        }
    }
}

impl Mount {
    /// Does what [`Serving::prewarm`] does.
    ///
    /// # Errors
    /// As there.
    pub fn prewarm(
        &self,
        plan: &ReplayPlan,
        cache: &dyn BlockCache,
        options: &PrewarmOptions<'_>,
    ) -> Result<PrewarmReport, PrewarmError> {
        self.serving().prewarm(plan, cache, options)
    }
}

impl Serving {
    /// Restores the state of the boots that `plan` was made of, with blocks from
    /// `cache`. If it ends early, the rest is served on demand.
    ///
    /// May be called again: it then restores pages that the kernel evicted in the meantime. Two
    /// calls at a time wait for each other.
    ///
    /// Must not be called from a thread that serves requests of this mount.
    ///
    /// # Errors
    /// If the mount is gone or the connection to the kernel is broken; a source that changed, or
    /// a cache that misses, is counted and no error.
    pub fn prewarm(
        &self,
        plan: &ReplayPlan,
        cache: &dyn BlockCache,
        options: &PrewarmOptions<'_>,
    ) -> Result<PrewarmReport, PrewarmError> {
        let mut held = self.state().held();
        let root = self.dir_fd().ok_or(PrewarmError::Unmounted)?;
        let Held { walker, locks } = &mut *held;
        let walker = walker.get_or_insert_with(|| Walker::new(root));
        let mut report = PrewarmReport::default();
        let namespace = &**self.file_system().names();
        walker
            .prepare(namespace, plan, options.max_pins)
            .map_err(PrewarmError::Walk)?;
        let start = Instant::now();
        let walk = |walker: &mut Walker, report: &mut PrewarmReport| {
            let walked = self.walk(plan, options, walker, report)?;
            report.walk_time = start.elapsed();
            Ok(walked)
        };
        let pushed = inject::push(self, plan, cache, options, walker, &mut report, walk)?;
        report.push_time = start.elapsed().saturating_sub(report.walk_time);
        if options.lock == Lock::Yes {
            for (file, set) in &pushed {
                // What cannot be kept is left to the kernel, like all the rest without a lock.
                report.locked_bytes += walker.lock(*file, set, locks).unwrap_or_else(|error| {
                    log::warn!("file {} is not kept in memory: {error}", file.0);
                    0
                });
            }
        }
        report.cancelled = options.is_over();
        report.pinned = walker.pinned();
        report.unpinned = walker.unpinned();
        Ok(report)
    }

    /// Replays the names of a plan through the private mount.
    fn walk(
        &self,
        plan: &ReplayPlan,
        options: &PrewarmOptions<'_>,
        walker: &mut Walker,
        report: &mut PrewarmReport,
    ) -> Result<Progress, PrewarmError> {
        /// A walk is told and may end every so many touches: a millisecond's worth.
        const STEP: usize = 64;
        let fs = self.file_system();
        let mut progress = Progress {
            touches_total: plan.touches.len() as u64,
            ..Progress::default()
        };
        walker.settle_protocol(plan, fs);
        for touches in plan.touches.chunks(STEP) {
            if options.is_over() {
                break;
            }
            if !self.visible() {
                return Err(PrewarmError::Unmounted);
            }
            for touch in touches {
                if walker.replay(&**fs.names(), touch).is_err() {
                    report.failed_touches += 1;
                }
            }
            progress.touches += touches.len() as u64;
            options.tell(progress);
        }
        report.touches = progress.touches;
        Ok(progress)
    }
}
