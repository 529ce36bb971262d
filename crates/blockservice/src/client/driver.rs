//! Drives the connections: the thread that waits for a response does, or else a background thread.
//!
//! The waiting thread reads the socket itself. If another thread read it and then woke the waiting one,
//! each response would cost one more context switch, which takes tens of microseconds on a virtual
//! machine: as long as the rest of a small read.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{Builder, JoinHandle, park_timeout};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinHandle as Task;

/// How long after the last waiting thread the background thread resumes. Responses without a
/// waiting thread may stay unread for so long.
const LINGER: Duration = Duration::from_millis(10);

/// A single-threaded runtime: its tasks make progress while a thread is in
/// [`block_on`](Self::block_on).
#[derive(Debug)]
pub(super) struct Driver {
    /// `None` when the client was dropped.
    running: Mutex<Option<Arc<Running>>>,
    /// Whether a thread waited since the background thread last checked.
    used: AtomicBool,
    /// Whether the background thread drives, or is about to.
    keeping: AtomicBool,
    /// Tells the background thread to yield to another thread.
    leave: Notify,
}

/// An option so that it can be taken apart without waiting for what hangs.
#[derive(Debug)]
struct Running(Option<Runtime>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The background thread, which drives when no other thread does; dropping it ends the driver.
#[derive(Debug)]
pub(super) struct Keeper {
    driver: Arc<Driver>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    /// Starts a driver, and its background thread.
    ///
    /// # Errors
    /// If they cannot be started.
    pub(super) fn start() -> io::Result<(Arc<Self>, Keeper)> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let driver = Arc::new(Self {
            running: Mutex::new(Some(Arc::new(Running(Some(runtime))))),
            used: AtomicBool::new(false),
            keeping: AtomicBool::new(false),
            leave: Notify::new(),
        });
        let kept = Arc::clone(&driver);
        let thread = Builder::new()
            .name("nicfetch".to_owned())
            .spawn(move || kept.keep())?;
        let keeper = Keeper {
            driver: Arc::clone(&driver),
            thread: Some(thread),
        };
        Ok((driver, keeper))
    }

    /// Waits for a future, and drives the runtime unless another thread does; `None` if the client
    /// was dropped.
    pub(super) fn block_on<F: Future>(&self, what: F) -> Option<F::Output> {
        self.used.store(true, SeqCst);
        if self.keeping.load(SeqCst) {
            self.leave.notify_one();
        }
        self.drive(what)
    }

    /// Spawns a task; `None` if the client was dropped.
    pub(super) fn spawn<F>(&self, what: F) -> Option<Task<F::Output>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let running = self.running()?;
        running.0.as_ref().map(|runtime| runtime.spawn(what))
    }

    fn drive<F: Future>(&self, what: F) -> Option<F::Output> {
        let running = self.running()?;
        running.0.as_ref().map(|runtime| runtime.block_on(what))
    }

    fn running(&self) -> Option<Arc<Running>> {
        self.running.lock().clone()
    }

    fn keep(&self) {
        loop {
            self.keeping.store(true, SeqCst);
            // Who comes now sees us, or is seen.
            if !self.used.swap(false, SeqCst) && self.drive(self.leave.notified()).is_none() {
                return;
            }
            self.keeping.store(false, SeqCst);
            park_timeout(LINGER);
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Whoever waits still has it, and is the last.
        drop(self.driver.running.lock().take());
        self.driver.leave.notify_one();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic is on the log.
            let _ended = thread.join();
        }
    }
}
