//! Background fetches without a plan: the whole blob.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use ranges::{Feed, Priority};

use super::CachedBlob;

/// How long a cache that could not be written is left alone, at first and at most; twice as long each time.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A blob that is being fetched in the background; dropping this stops it.
#[derive(Debug)]
pub struct Filler {
    current: Arc<Shared>,
    thread: Option<JoinHandle<bool>>,
}

/// What a filler and its owner share.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<Current>,
    /// It is to stop.
    told: Condvar,
}

impl Shared {
    /// Waits, and returns whether it is to stop.
    fn is_stopped_within(&self, pause: Duration) -> bool {
        let mut state = self.state.lock();
        let is_on = |state: &mut Current| !state.stopped;
        let _over = self.told.wait_while_for(&mut state, is_on, pause);
        state.stopped
    }
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
        let current = Arc::new(Shared::default());
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
        let mut current = self.current.state.lock();
        current.stopped = true;
        let feed = current.feed.clone();
        drop(current);
        self.current.told.notify_all();
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
fn fetch_all(blob: &CachedBlob, current: &Shared) -> bool {
    if !blob.keeps() {
        return false;
    }
    for last in [false, true] {
        if !fill_with_pauses(blob, current) {
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

/// How one attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filled {
    All,
    /// The cache could not be written.
    Paused,
    /// It was stopped, or something could not be fetched.
    Ended,
}

/// Fetches all, however often the cache's disk is full meanwhile.
fn fill_with_pauses(blob: &CachedBlob, current: &Shared) -> bool {
    let mut pause = PAUSE.0;
    loop {
        match fill(blob, current) {
            Filled::All => return true,
            Filled::Ended => return false,
            Filled::Paused => {}
        }
        loop {
            if current.is_stopped_within(pause) {
                return false;
            }
            pause = (pause * 2).min(PAUSE.1);
            if blob.cache().may_have_room() {
                break;
            }
        }
    }
}

fn fill(blob: &CachedBlob, current: &Shared) -> Filled {
    let all = vec![blob.span(0..blob.chunks())];
    let feed = Arc::new(blob.fetcher().feed(all, Priority::Fill));
    {
        let mut current = current.state.lock();
        if current.stopped {
            return Filled::Ended;
        }
        current.feed = Some(Arc::clone(&feed));
    }
    let can_write = blob.cache().note_fill(&feed);
    if can_write {
        feed.wait();
    }
    let is_stopped = {
        let mut current = current.state.lock();
        current.feed = None;
        current.stopped
    };
    let is_whole = feed.is_whole();
    match feed.fault() {
        _ if is_stopped => Filled::Ended,
        Some(fault) => {
            let (digest, why) = (blob.digest(), &fault.why);
            log::warn!("{digest} is fetched on demand only: {why}");
            Filled::Ended
        }
        None if is_whole && can_write && !blob.cache().cannot_write() => Filled::All,
        None => Filled::Paused,
    }
}
