//! The threads that start sandboxes of a base: they are in the namespace of mounts that has its root.

use std::collections::VecDeque;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::base::{self, BaseSpec};
use crate::error::{Result, SandboxError, step};
use crate::launch::confine_starter;

/// Starts that wait for a thread. Who asks for one more waits, too.
const QUEUE_MAX: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

/// What is to be done by whichever thread is free.
#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    /// There is a job, or there will be no more.
    filled: Condvar,
    /// There is room.
    drained: Condvar,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl Queue {
    /// Waits for room and adds a job. Fails if the queue is closed.
    fn push(&self, job: Job) -> Result<()> {
        let mut state = self.state.lock();
        while state.jobs.len() >= QUEUE_MAX && !state.closed {
            self.drained.wait(&mut state);
        }
        if state.closed {
            return Err(SandboxError::Closed);
        }
        state.jobs.push_back(job);
        drop(state);
        self.filled.notify_one();
        Ok(())
    }

    /// Waits for a job. `None` when there will be no more.
    fn pop(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                self.drained.notify_one();
                return Some(job);
            }
            if state.closed {
                return None;
            }
            self.filled.wait(&mut state);
        }
    }

    fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_all();
        self.drained.notify_all();
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queue")
    }
}

/// The threads of one base. Dropping it ends them after their pending work.
#[derive(Debug)]
pub(crate) struct Starters {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

impl Starters {
    /// Starts the threads. `aside` is any directory.
    ///
    /// # Errors
    /// If the base cannot be mounted.
    pub(crate) fn start(spec: &BaseSpec, aside: &Path) -> Result<Self> {
        let mut starters = Self {
            queue: Arc::default(),
            threads: Vec::new(),
        };
        // A start is work of the kernel, so as many at a time as there are processors.
        let count = std::thread::available_parallelism().map_or(2, |count| count.get().clamp(2, 8));
        let (spec, aside) = (spec.clone(), aside.to_owned());
        let namespace = starters.add(move || base::enter(&spec, &aside))?;
        for _ in 1..count {
            let namespace = namespace
                .try_clone()
                .map_err(step("copying a descriptor"))?;
            starters.add(move || base::join(&namespace))?;
        }
        Ok(starters)
    }

    /// Starts a thread that enters a namespace and then does what is asked of it.
    fn add<T: Send + 'static>(
        &mut self,
        enter: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (send, entered) = sync_channel(1);
        let queue = Arc::clone(&self.queue);
        let thread = std::thread::Builder::new().name("sandbox-starter".to_owned());
        let thread = thread
            .spawn(move || {
                let entered = enter().and_then(|entered| {
                    confine_starter()?;
                    Ok(entered)
                });
                let stays = entered.is_ok();
                let _nobody_waits = send.send(entered);
                while stays && let Some(job) = queue.pop() {
                    job();
                }
            })
            .map_err(step("starting a thread"))?;
        self.threads.push(thread);
        entered.recv().map_err(|_| SandboxError::Closed)?
    }

    /// Runs a function on one of the threads, and returns its result.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let (send, receive) = sync_channel(1);
        let job = Box::new(move || {
            let _nobody_waits = send.send(job());
        });
        self.queue.push(job)?;
        receive.recv().map_err(|_| SandboxError::Closed)
    }
}

impl Drop for Starters {
    fn drop(&mut self) {
        self.queue.close();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                log::error!("a thread that starts sandboxes ended in a panic");
            }
        }
    }
}
