//! Invalidates changed files once more, when no earlier server is left.
//!
//! A server that is killed in the middle of a push continues it, in the kernel, when the reader that
//! blocked it has its response. That response comes from the successor, which may have found by then that
//! the file has changed, and have invalidated the old version: pages that the dead server pushes after
//! that would stay. So as long as a thread of an earlier server is left, no invalidation counts as
//! final.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::fs::FileSystem;

/// How often to look: a server that was killed is gone within milliseconds, unless it is held up.
const LOOK: Duration = Duration::from_millis(50);

/// Detects whether the earlier servers of a mount are gone.
#[derive(Clone)]
pub struct Predecessors(Arc<dyn Fn() -> bool + Send + Sync>);

impl Predecessors {
    /// Returns one that asks `are_gone`, which must not block: whether every thread of every earlier
    /// server has ended. A process that was killed may have some that have not. It is kept as long as
    /// the mount is served: what it has open may tell the next server of this one.
    #[must_use]
    pub fn new(are_gone: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(are_gone))
    }

    pub(super) fn are_gone(&self) -> bool {
        (self.0)()
    }
}

impl fmt::Debug for Predecessors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Predecessors").finish_non_exhaustive()
    }
}

/// The thread that waits for earlier servers to be gone; it ends then, or when this is dropped.
#[derive(Debug)]
pub(super) struct Again {
    waiting: Option<(Sender<Infallible>, JoinHandle<()>)>,
    #[expect(
        dead_code,
        reason = "by what it has open the next server sees that this one is there"
    )]
    earlier: Option<Predecessors>,
}

impl Again {
    /// Has the kernel forget what changed: now, and again when earlier servers are gone.
    pub(super) fn forget(fs: &Arc<FileSystem>, earlier: Option<&Predecessors>) -> Self {
        // Asked first: what is forgotten after the last of them is gone is forgotten for good.
        let left = earlier.filter(|earlier| !earlier.are_gone());
        fs.diversions().tell_again();
        let waiting = left.and_then(|left| {
            let waiting = wait(Arc::clone(fs), left.clone());
            waiting
                .inspect_err(|error| {
                    log::error!("pages that an earlier worker still injects may stay: {error}");
                })
                .ok()
        });
        let earlier = earlier.cloned();
        Self { waiting, earlier }
    }
}

fn wait(
    fs: Arc<FileSystem>,
    left: Predecessors,
) -> io::Result<(Sender<Infallible>, JoinHandle<()>)> {
    let (over, until_over) = channel();
    let thread = std::thread::Builder::new()
        .name("yolofs-again".to_owned())
        .spawn(move || {
            while until_over.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                if left.are_gone() {
                    fs.diversions().tell_again();
                    return;
                }
            }
        })?;
    Ok((over, thread))
}

impl Drop for Again {
    fn drop(&mut self) {
        let Some((over, thread)) = self.waiting.take() else {
            return;
        };
        drop(over);
        if thread.join().is_err() {
            log::error!("the thread that waits for earlier servers panicked");
        }
    }
}
