//! The thread that fetches the unread parts of a source into the cache of a mount.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use blockservice::client::{Filled, NicSource};
use chunks::ChunkStore;
use parking_lot::Mutex;

/// Between two attempts to open a cache that another process has not let go of.
const AGAIN: Duration = Duration::from_millis(100);
/// How long to retry: a process that was killed ends in the end, whatever it waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Fills the cache of a mount, until it is complete or this is dropped.
#[derive(Debug)]
pub(super) struct Filler {
    stop: Arc<AtomicBool>,
    filled: Arc<Mutex<Option<Filled>>>,
    thread: Option<JoinHandle<()>>,
}

impl Filler {
    /// Starts to fill the cache that `source` has, or that `open` opens: a mount that was served
    /// before is served on at once, and from its cache as soon as that can be had. Unless `fill`, that is all.
    pub(super) fn start(
        source: Arc<NicSource>,
        open: Option<impl Fn() -> anyhow::Result<Arc<dyn ChunkStore>> + Send + 'static>,
        fill: bool,
    ) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let filled = Arc::new(Mutex::new(None));
        let (stopped, done) = (Arc::clone(&stop), Arc::clone(&filled));
        let work = move || {
            if let Some(open) = open {
                match opened(&open, &stopped) {
                    Ok(cache) => source.keep_in(cache),
                    Err(error) => {
                        return log::warn!("serving without a cache (nic.cache): {error:#}");
                    }
                }
            }
            if !fill {
                return;
            }
            let result = source.fill(&stopped);
            if !stopped.load(SeqCst) {
                *done.lock() = Some(result);
            }
        };
        let thread = std::thread::Builder::new()
            .name("nic-fill".to_owned())
            .spawn(work)
            .context("starting the thread that fetches ahead")?;
        Ok(Self {
            stop,
            filled,
            thread: Some(thread),
        })
    }

    /// Returns what filling came to, when it is over.
    pub(super) fn filled(&self) -> Option<Filled> {
        *self.filled.lock()
    }
}

/// Opens a cache that may still be another's.
fn opened<T>(open: &impl Fn() -> anyhow::Result<T>, stop: &AtomicBool) -> anyhow::Result<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        match open() {
            Err(_) if Instant::now() < end && !stop.load(SeqCst) => sleep(AGAIN),
            done => return done,
        }
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            // A panic is on the log, and costs speed only.
            let _ended = thread.join();
        }
    }
}
