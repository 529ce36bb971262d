//! The end of namespaces of mounts, on a thread of its own.
//!
//! Whoever drops the last reference to such a namespace takes its mounts apart, and waits until no processor looks at them
//! any more. That would be the last process of a sandbox, before its end can be seen. So a reference of ours outlives the
//! process, and is dropped when the end was told.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::error::{Result, step};

/// Namespaces that may wait for their end. Who has one more ends it itself.
const WAITING_MAX: usize = 64;

/// The thread. Dropping it ends what waits.
#[derive(Debug)]
pub(crate) struct Closer {
    queue: Option<SyncSender<OwnedFd>>,
    thread: Option<JoinHandle<()>>,
}

impl Closer {
    pub(crate) fn start() -> Result<Self> {
        let (queue, waiting) = sync_channel(WAITING_MAX);
        let thread = std::thread::Builder::new().name("sandbox-closer".to_owned());
        let thread = thread
            .spawn(move || waiting.into_iter().for_each(drop))
            .map_err(step("starting a thread"))?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
        })
    }

    /// Closes a namespace, soon.
    pub(crate) fn close(&self, namespace: OwnedFd) {
        if let Some(queue) = &self.queue {
            // What does not fit comes back, and is closed here.
            let _full = queue.try_send(namespace);
        }
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.queue = None;
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            log::error!("the thread that closes namespaces ended in a panic");
        }
    }
}
