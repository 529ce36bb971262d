//! Drives the connections: the thread that waits for a response does, or else a background thread.
//!
//! The waiting thread reads the socket itself. If another thread read it and then woke the waiting one,
//! each response would cost one more context switch, which takes tens of microseconds on a virtual
//! machine: as long as the rest of a small read.
//!
//! On a near line the background thread leaves the driver alone for a while after each wait, because the next one is about
//! to come. On a far line that would hold up all that nobody waits for: requests ahead of a reader would not be sent, and
//! what comes would fill the socket until its sender stops. There the background thread resumes at once.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle, Thread, park_timeout};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinHandle as Task;

use super::FAR;

/// How long after the last waiting thread the background thread resumes on a near line. Responses without a
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
    /// How many threads wait.
    waiting: AtomicUsize,
    /// The shortest round trip that was measured, in microseconds; the largest number before the first.
    shortest_us: AtomicU64,
    linger: Duration,
    background: OnceLock<Thread>,
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
        Self::start_with(LINGER)
    }

    fn start_with(linger: Duration) -> io::Result<(Arc<Self>, Keeper)> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let driver = Arc::new(Self {
            running: Mutex::new(Some(Arc::new(Running(Some(runtime))))),
            used: AtomicBool::new(false),
            keeping: AtomicBool::new(false),
            leave: Notify::new(),
            waiting: AtomicUsize::new(0),
            shortest_us: AtomicU64::new(u64::MAX),
            linger,
            background: OnceLock::new(),
        });
        let kept = Arc::clone(&driver);
        let thread = Builder::new()
            .name("nicfetch".to_owned())
            .spawn(move || kept.keep())?;
        // It is the only one.
        let _first = driver.background.set(thread.thread().clone());
        let keeper = Keeper {
            driver: Arc::clone(&driver),
            thread: Some(thread),
        };
        Ok((driver, keeper))
    }

    /// Waits for a future, and drives the runtime unless another thread does; `None` if the client
    /// was dropped.
    pub(super) fn block_on<F: Future>(&self, what: F) -> Option<F::Output> {
        let _waits = Waits::begin(self);
        self.used.store(true, SeqCst);
        if self.keeping.load(SeqCst) {
            self.leave.notify_one();
        }
        self.drive(what)
    }

    /// Notes a round trip of a connection.
    pub(super) fn measured(&self, round_trip: Duration) {
        let micros = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX);
        self.shortest_us.fetch_min(micros, SeqCst);
    }

    /// Returns whether no wait for the line is short enough for the background thread to stay away.
    fn is_far(&self) -> bool {
        let shortest = self.shortest_us.load(SeqCst);
        shortest != u64::MAX && Duration::from_micros(shortest) >= FAR
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
            let was_used = self.used.swap(false, SeqCst);
            let is_free = !was_used || (self.is_far() && self.nobody_waits());
            if is_free && self.drive(self.leave.notified()).is_none() {
                return;
            }
            self.keeping.store(false, SeqCst);
            // Who waits now ends this pause on a far line.
            if !(self.is_far() && self.nobody_waits()) {
                park_timeout(self.linger);
            }
        }
    }

    fn nobody_waits(&self) -> bool {
        self.waiting.load(SeqCst) == 0
    }
}

/// A thread that waits, until this is dropped.
struct Waits<'a>(&'a Driver);

impl<'a> Waits<'a> {
    fn begin(driver: &'a Driver) -> Self {
        driver.waiting.fetch_add(1, SeqCst);
        Self(driver)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let driver = self.0;
        let is_last = driver.waiting.fetch_sub(1, SeqCst) == 1;
        if let Some(background) = driver.background.get()
            && is_last
            && driver.is_far()
        {
            background.unpark();
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    /// What was requested ahead waited for the pause after each wait, 10 to 20 ms, and all that came, too.
    #[test]
    fn on_a_far_line_the_background_thread_resumes_when_nobody_waits() {
        let (driver, _keeper) = Driver::start_with(LONG).unwrap();
        driver.measured(Duration::from_millis(20));
        for _ in 0..100 {
            assert_eq!(driver.block_on(async { 7 }), Some(7));
            let (done, ended) = channel();
            let _task = driver.spawn(async move { done.send(()) });
            ended.recv_timeout(Duration::from_secs(60)).unwrap();
        }
    }

    #[test]
    fn a_line_is_as_far_as_its_shortest_round_trip() {
        let (driver, _keeper) = Driver::start().unwrap();
        assert!(!driver.is_far(), "nothing was measured");
        driver.measured(Duration::from_millis(40));
        assert!(driver.is_far());
        driver.measured(Duration::from_micros(50));
        driver.measured(Duration::from_millis(40));
        assert!(!driver.is_far());
    }
}
