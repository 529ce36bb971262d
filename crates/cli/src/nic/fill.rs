//! The thread that fetches what nobody has read yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;

use anyhow::Context as _;
use nicfetch::client::{Filled, NicSource};
use parking_lot::Mutex;

/// Fills the cache of a mount, until all is there or it is dropped.
#[derive(Debug)]
pub(super) struct Filler {
    stop: Arc<AtomicBool>,
    filled: Arc<Mutex<Option<Filled>>>,
    thread: Option<JoinHandle<()>>,
}

impl Filler {
    pub(super) fn start(source: Arc<NicSource>) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let filled = Arc::new(Mutex::new(None));
        let (stopped, done) = (Arc::clone(&stop), Arc::clone(&filled));
        let fill = move || {
            let result = source.fill(&stopped);
            if !stopped.load(SeqCst) {
                *done.lock() = Some(result);
            }
        };
        let thread = std::thread::Builder::new()
            .name("nic-fill".to_owned())
            .spawn(fill)
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

impl Drop for Filler {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            // A panic is on the log, and costs speed only.
            let _ended = thread.join();
        }
    }
}
