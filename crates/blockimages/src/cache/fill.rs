//! What is fetched in the background: first what a plan says, then all the rest.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::CachedBlob;

/// How long the background waits for readers who wait, before it looks again.
const DEMAND_TICK: Duration = Duration::from_millis(2);

/// After a failure, the first wait; it doubles up to the last.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LAST_WAIT: Duration = Duration::from_secs(10);
/// Failures in a row after which the rest is left to readers.
const FAILURES_MAX: u32 = 8;

/// A blob that is being fetched in the background; dropping this stops it.
#[derive(Debug)]
pub struct Filler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<bool>>,
}

impl Filler {
    /// Starts fetching the ranges of `plan` in their order, and then the rest of the blob.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(blob: Arc<CachedBlob>, plan: Vec<Range<u64>>) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let builder = thread::Builder::new().name("blob-fill".to_owned());
        let thread = builder.spawn(move || fetch_all(&blob, &plan, &stopped))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Waits until it has come to its end, and returns whether all is there and has the blob's digest.
    #[must_use]
    pub fn wait(mut self) -> bool {
        let ended = self.thread.take().map(JoinHandle::join);
        ended.is_some_and(|ended| ended.unwrap_or(false))
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let ended = self.thread.take().map(JoinHandle::join);
        if ended.is_some_and(|ended| ended.is_err()) {
            log::error!("the thread that fetches in the background panicked");
        }
    }
}

/// Fetches all, and compares it with the digest: what is wrong as a whole is fetched once more.
fn fetch_all(blob: &CachedBlob, plan: &[Range<u64>], stopped: &AtomicBool) -> bool {
    {
        let _planned = Planned::new(blob, plan);
        for range in plan {
            if !fill(blob, blob.chunks_of(range), Phase::Plan, stopped) {
                return false;
            }
        }
    }
    for last in [false, true] {
        if !fill(blob, 0..blob.chunks(), Phase::Rest, stopped) {
            return false;
        }
        match blob.is_right() {
            Ok(Some(true)) => return true,
            Ok(Some(false)) if last => {
                log::error!("what the origin has of {} is something else", blob.digest());
                blob.condemn();
            }
            Ok(Some(false)) => {
                log::warn!("{} is wrong as a whole; it is fetched again", blob.digest());
                blob.distrust(&(0..u64::MAX));
            }
            // Evicted meanwhile: the cache is too small for all of it.
            Ok(None) => return false,
            Err(error) => {
                log::warn!("cannot compare {} with its digest: {error}", blob.digest());
                return false;
            }
        }
    }
    false
}

/// What is being fetched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// What a start is known to read.
    Plan,
    /// What nobody is known to read: it waits for the plans of all blobs of the cache.
    Rest,
}

/// A plan that is being fetched.
struct Planned<'a>(&'a AtomicUsize);

impl<'a> Planned<'a> {
    fn new(blob: &'a CachedBlob, plan: &[Range<u64>]) -> Option<Self> {
        let plans = blob.plans();
        (!plan.is_empty()).then(|| {
            plans.fetch_add(1, Ordering::AcqRel);
            Self(plans)
        })
    }
}

impl Drop for Planned<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn fill(blob: &CachedBlob, chunks: Range<u32>, phase: Phase, stopped: &AtomicBool) -> bool {
    let (mut failures, mut wait) = (0, FIRST_WAIT);
    let mut at = chunks.start;
    while at < chunks.end {
        if stopped.load(Ordering::Acquire) {
            return false;
        }
        let planned = phase == Phase::Rest && blob.plans().load(Ordering::Acquire) > 0;
        if planned || blob.demand.load(Ordering::Acquire) > 0 {
            thread::sleep(DEMAND_TICK);
            continue;
        }
        let Some(seat) = blob.take(at) else {
            at += 1;
            continue;
        };
        let deadline = Instant::now() + blob.config().request_deadline;
        match blob.fetch(seat, chunks.end, deadline) {
            Ok(_) => {
                (failures, wait) = (0, FIRST_WAIT);
                at += 1;
            }
            Err(error) => {
                failures += 1;
                log::debug!("fetching {} in the background: {error}", blob.digest());
                if failures >= FAILURES_MAX {
                    log::warn!("{} is fetched on demand only: {error}", blob.digest());
                    return false;
                }
                let until = Instant::now() + wait;
                while Instant::now() < until && !stopped.load(Ordering::Acquire) {
                    thread::sleep(Duration::from_millis(50));
                }
                wait = (wait * 2).min(LAST_WAIT);
            }
        }
    }
    true
}
