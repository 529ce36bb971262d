//! Work that nobody waits for, on threads of its own.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use crate::error::{Result, step};

/// Work that may wait for each thread.
const WAITING_MAX: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

/// The threads. Dropping it does what waits.
pub(crate) struct Later {
    queues: Vec<SyncSender<Job>>,
    threads: Vec<JoinHandle<()>>,
    /// Whose turn it is.
    next: AtomicUsize,
}

impl Later {
    /// Starts as many threads, which take turns.
    pub(crate) fn start(name: &str, threads: usize) -> Result<Self> {
        let mut later = Self {
            queues: Vec::new(),
            threads: Vec::new(),
            next: AtomicUsize::new(0),
        };
        for _ in 0..threads {
            let (queue, waiting) = sync_channel::<Job>(WAITING_MAX);
            let thread = std::thread::Builder::new().name(name.to_owned());
            let thread = thread.spawn(move || waiting.into_iter().for_each(|job| job()));
            later
                .threads
                .push(thread.map_err(step("starting a thread"))?);
            later.queues.push(queue);
        }
        Ok(later)
    }

    /// Has something done, soon. If too much waits, it is dropped.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut job: Job = Box::new(job);
        for _ in &self.queues {
            let turn = self.next.fetch_add(1, Relaxed) % self.queues.len();
            job = match self.queues[turn].try_send(job) {
                Ok(()) => return,
                Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => job,
            };
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
        self.queues.clear();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                log::error!("a thread ended in a panic");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_that_takes_long_does_not_keep_the_others() {
        const LONG: Duration = Duration::from_secs(60);
        let later = Later::start("test-later", 2).unwrap();
        let (end, is_over) = channel::<()>();
        let (ran, has_run) = channel();
        later.run(move || {
            let _ended = is_over.recv_timeout(LONG);
        });
        let also = ran.clone();
        later.run(move || also.send(1).unwrap());
        assert_eq!(has_run.recv_timeout(LONG), Ok(1));
        // Behind the one that takes long, and done before its end is waited for.
        later.run(move || ran.send(2).unwrap());
        drop(end);
        drop(later);
        assert_eq!(has_run.recv_timeout(LONG), Ok(2));
    }
}
