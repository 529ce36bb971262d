//! Background fetches without a plan: the whole blob.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// Starts fetching the blob; it waits for plans of the same cache.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(blob: Arc<CachedBlob>) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let builder = thread::Builder::new().name("blob-fill".to_owned());
        let thread = builder.spawn(move || fetch_all(&blob, &stopped))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Waits until it has ended, and returns whether the blob is complete and matches its digest.
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
fn fetch_all(blob: &CachedBlob, stopped: &AtomicBool) -> bool {
    for last in [false, true] {
        if !fill(blob, 0..blob.chunks(), stopped) {
            return false;
        }
        match blob.is_right() {
            Ok(Some(true)) => return true,
            Ok(Some(false)) if last => {
                log::error!(
                    "the origin's content of {} does not match its digest",
                    blob.digest()
                );
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

/// How often something is tried again, and the waits between.
#[derive(Debug)]
pub(super) struct Patience {
    failures: u32,
    wait: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            failures: 0,
            wait: FIRST_WAIT,
        }
    }
}

impl Patience {
    /// Waits after a failure, unless it is stopped; returns `false` after the last one.
    pub(super) fn wait(&mut self, stopped: &AtomicBool) -> bool {
        self.failures += 1;
        if self.failures >= FAILURES_MAX {
            return false;
        }
        let until = Instant::now() + self.wait;
        while Instant::now() < until && !stopped.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(50));
        }
        self.wait = (self.wait * 2).min(LAST_WAIT);
        true
    }
}

fn fill(blob: &CachedBlob, chunks: Range<u32>, stopped: &AtomicBool) -> bool {
    let mut patience = Patience::default();
    let mut at = chunks.start;
    while at < chunks.end {
        if stopped.load(Ordering::Acquire) {
            return false;
        }
        if blob.cache().is_planned() || blob.is_waited_for() {
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
                patience = Patience::default();
                at += 1;
            }
            Err(error) => {
                log::debug!("fetching {} in the background: {error}", blob.digest());
                if !patience.wait(stopped) {
                    log::warn!("{} is fetched on demand only: {error}", blob.digest());
                    return false;
                }
            }
        }
    }
    true
}
