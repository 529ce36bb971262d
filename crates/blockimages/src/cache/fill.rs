//! Background fetches without a plan: the whole blob.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use ranges::{Feed, Priority};

use super::CachedBlob;

/// A blob that is being fetched in the background; dropping this stops it.
#[derive(Debug)]
pub struct Filler {
    current: Arc<Mutex<Current>>,
    thread: Option<JoinHandle<bool>>,
}

/// What a filler waits for.
#[derive(Debug, Default)]
struct Current {
    feed: Option<Arc<Feed>>,
    stopped: bool,
}

impl Filler {
    /// Starts fetching the blob, behind all that readers and plans of the same servers want.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(blob: Arc<CachedBlob>) -> io::Result<Self> {
        let current = Arc::new(Mutex::new(Current::default()));
        let shared = Arc::clone(&current);
        let builder = thread::Builder::new().name("blob-fill".to_owned());
        let thread = builder.spawn(move || fetch_all(&blob, &shared))?;
        Ok(Self {
            current,
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
        let mut current = self.current.lock();
        current.stopped = true;
        let feed = current.feed.clone();
        drop(current);
        if let Some(feed) = feed {
            feed.stop();
        }
        let ended = self.thread.take().map(JoinHandle::join);
        if ended.is_some_and(|ended| ended.is_err()) {
            log::error!("the thread that fetches in the background panicked");
        }
    }
}

/// Fetches all, and compares it with the digest: what is wrong as a whole is fetched once more.
fn fetch_all(blob: &CachedBlob, current: &Mutex<Current>) -> bool {
    if !blob.keeps() {
        return false;
    }
    for last in [false, true] {
        if !fill(blob, current) {
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

/// Fetches all; returns `false` if it was stopped, or something could not be fetched.
fn fill(blob: &CachedBlob, current: &Mutex<Current>) -> bool {
    let all = vec![blob.span(0..blob.chunks())];
    let feed = Arc::new(blob.fetcher().feed(all, Priority::Fill));
    {
        let mut current = current.lock();
        if current.stopped {
            return false;
        }
        current.feed = Some(Arc::clone(&feed));
    }
    feed.wait();
    current.lock().feed = None;
    let fault = feed.fault();
    if let Some(fault) = &fault {
        let (digest, why) = (blob.digest(), &fault.why);
        log::warn!("{digest} is fetched on demand only: {why}");
    }
    fault.is_none()
}
