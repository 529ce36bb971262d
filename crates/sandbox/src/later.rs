//! Work that nobody waits for, on a thread of its own.

use std::fmt;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::error::{Result, step};

/// Work that may wait for the thread.
const WAITING_MAX: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

/// The thread. Dropping it does what waits.
pub(crate) struct Later {
    queue: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Later {
    pub(crate) fn start(name: &str) -> Result<Self> {
        let (queue, waiting) = sync_channel::<Job>(WAITING_MAX);
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread
            .spawn(move || waiting.into_iter().for_each(|job| job()))
            .map_err(step("starting a thread"))?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
        })
    }

    /// Has something done, soon. If too much waits, it is dropped.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        if let Some(queue) = &self.queue {
            let _full = queue.try_send(Box::new(job));
        }
    }
}

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later")
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        self.queue = None;
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            log::error!("a thread ended in a panic");
        }
    }
}
