//! The threads that start sandboxes of a base: they are in the namespace of mounts that has its root.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use crate::base::{self, BaseSpec};
use crate::error::{Result, SandboxError, step};

/// Starts that wait for a thread. Who asks for one more waits, too.
const QUEUE: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

/// The threads of one base. Dropping it ends them when they have done what was asked.
#[derive(Debug)]
pub(crate) struct Starters {
    jobs: Option<SyncSender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Starters {
    /// Starts the threads. `aside` is any directory.
    ///
    /// # Errors
    /// If the base cannot be mounted.
    pub(crate) fn start(spec: &BaseSpec, aside: &Path) -> Result<Self> {
        let (send, receive) = sync_channel::<Job>(QUEUE);
        let jobs = Arc::new(Mutex::new(receive));
        // A start is work of the kernel, so as many at a time as there are processors.
        let count = std::thread::available_parallelism().map_or(2, |count| count.get().clamp(2, 8));
        let mut threads = Vec::with_capacity(count);
        let (spec, aside) = (spec.clone(), aside.to_owned());
        let (first, namespace) = starter(&jobs, move || base::enter(&spec, &aside))?;
        threads.push(first);
        for _ in 1..count {
            let namespace = namespace
                .try_clone()
                .map_err(step("copying a descriptor"))?;
            let enter = move || base::join(&namespace);
            threads.push(starter(&jobs, enter)?.0);
        }
        Ok(Self {
            jobs: Some(send),
            threads,
        })
    }

    /// Does something on one of the threads, and returns what it returned.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let (send, receive) = sync_channel(1);
        let job = Box::new(move || {
            let _nobody_waits = send.send(job());
        });
        let jobs = self.jobs.as_ref().ok_or(SandboxError::Closed)?;
        jobs.send(job).map_err(|_| SandboxError::Closed)?;
        receive.recv().map_err(|_| SandboxError::Closed)
    }
}

/// Starts a thread that enters a namespace and then does what is asked of it.
fn starter<T: Send + 'static>(
    jobs: &Arc<Mutex<Receiver<Job>>>,
    enter: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<(JoinHandle<()>, T)> {
    let (send, entered) = sync_channel(1);
    let jobs = Arc::clone(jobs);
    let thread = std::thread::Builder::new().name("sandbox-starter".to_owned());
    let thread = thread
        .spawn(move || {
            let entered = enter();
            let stays = entered.is_ok();
            let _nobody_waits = send.send(entered);
            while stays && let Ok(job) = next(&jobs) {
                job();
            }
        })
        .map_err(step("starting a thread"))?;
    let entered = entered.recv().map_err(|_| SandboxError::Closed)??;
    Ok((thread, entered))
}

/// Waits for the next job. One thread waits in the queue, the others for their turn to.
fn next(jobs: &Mutex<Receiver<Job>>) -> std::result::Result<Job, std::sync::mpsc::RecvError> {
    jobs.lock().recv()
}

impl Drop for Starters {
    fn drop(&mut self) {
        drop(self.jobs.take());
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                log::error!("a thread that starts sandboxes ended in a panic");
            }
        }
    }
}

/// A directory, opened to be mounted somewhere.
pub(crate) fn open_dir(path: &Path) -> Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = File::options();
    options.read(true).custom_flags(nix::libc::O_DIRECTORY);
    options
        .open(path)
        .map_err(crate::error::at("opening", path))
}
