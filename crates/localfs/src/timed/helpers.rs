//! Threads that make calls which may never return.
//!
//! A call waits for a thread and for its end, both within one deadline. A caller that gives up
//! takes its call out of the queue if no thread has begun it, so the queue is never longer than
//! there are callers. If one has, the thread *hangs*: it counts towards the limit until the call
//! returns, and then goes on with the queue.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::DEADLINE;

/// How a source is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How long an answer may take.
    pub deadline: Duration,
    /// Threads that wait for the source at a time, and that may hang in it.
    pub helpers: NonZeroUsize,
    /// How long a thread that nobody needs stays.
    pub idle: Duration,
}

impl Default for Patience {
    /// 30 seconds, for four threads that end after ten seconds without work.
    fn default() -> Self {
        Self {
            deadline: DEADLINE,
            // As many as a disk gains from; a mount has two threads that ask by default.
            helpers: const { NonZeroUsize::new(4).unwrap() },
            idle: Duration::from_secs(10),
        }
    }
}

/// What waiting for a source has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timekeeping {
    /// Calls that were not answered within the deadline, so far.
    pub late: u64,
    /// Threads that hang in a call that was given up, now.
    pub hung: usize,
    /// Threads, now; those that hang among them.
    pub helpers: usize,
}

/// Why a call has no result.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// It did not come within the deadline.
    Late,
    /// It panicked; the message is on standard error.
    Died,
    /// There is no thread, and none can be started.
    NoThread(io::Error),
}

/// The threads, as seen by their callers. Dropped, they end; one that hangs ends when it comes
/// back, and nobody waits for that.
pub(super) struct Helpers {
    patience: Patience,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There is a call to make, or nobody will ever have one again.
    work: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Call>,
    /// What runs now, by number, and whether its caller has given up.
    running: Vec<(u64, Caller)>,
    threads: usize,
    idle: usize,
    next: u64,
    late: u64,
    ended: bool,
}

struct Call {
    number: u64,
    run: Box<dyn FnOnce() + Send>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    Waits,
    GaveUp,
}

impl Helpers {
    pub(super) fn new(patience: Patience) -> Self {
        Self {
            patience,
            shared: Arc::default(),
        }
    }

    /// Has a thread make a call, and returns its result if it comes within the deadline.
    pub(super) fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let deadline = Instant::now() + self.patience.deadline;
        let (answer, answers) = sync_channel(1);
        let run = Box::new(move || {
            // A caller that gave up is not there to be told.
            let _told = answer.send(call());
        });
        let number = self.submit(run).map_err(NoAnswer::NoThread)?;
        let left = deadline.saturating_duration_since(Instant::now());
        match answers.recv_timeout(left) {
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Disconnected) => Err(NoAnswer::Died),
            Err(RecvTimeoutError::Timeout) => {
                self.shared.state.lock().give_up(number);
                // It may have come at the last moment.
                answers.try_recv().map_err(|_| NoAnswer::Late)
            }
        }
    }

    pub(super) fn timekeeping(&self) -> Timekeeping {
        let state = self.shared.state.lock();
        let hung = state.running.iter();
        Timekeeping {
            late: state.late,
            hung: hung.filter(|(_, caller)| *caller == Caller::GaveUp).count(),
            helpers: state.threads,
        }
    }

    /// Queues a call, starts a thread for it if all are busy and there may be more, and returns
    /// its number.
    fn submit(&self, run: Box<dyn FnOnce() + Send>) -> io::Result<u64> {
        let mut state = self.shared.state.lock();
        let number = state.next;
        state.next += 1;
        state.queue.push_back(Call { number, run });
        if state.queue.len() <= state.idle {
            self.shared.work.notify_one();
        } else if state.threads < self.patience.helpers.get() {
            match self.start() {
                Ok(()) => state.threads += 1,
                // Those that are there will come to it.
                Err(error) if state.threads > 0 => {
                    log::debug!("no further thread for the source: {error}");
                }
                Err(error) => {
                    state.queue.retain(|call| call.number != number);
                    return Err(error);
                }
            }
        }
        Ok(number)
    }

    fn start(&self) -> io::Result<()> {
        let (shared, idle) = (Arc::clone(&self.shared), self.patience.idle);
        thread::Builder::new()
            .name("source".to_owned())
            .spawn(move || shared.work(idle))
            .map(drop)
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.work.notify_all();
    }
}

impl State {
    fn give_up(&mut self, number: u64) {
        self.late += 1;
        self.queue.retain(|call| call.number != number);
        for (running, caller) in &mut self.running {
            if *running == number {
                *caller = Caller::GaveUp;
            }
        }
    }
}

impl Shared {
    /// Makes calls until there were none for as long as `idle`.
    fn work(&self, idle: Duration) {
        let mut state = self.state.lock();
        loop {
            if let Some(Call { number, run }) = state.queue.pop_front() {
                state.running.push((number, Caller::Waits));
                drop(state);
                // Unwind safety: what the call leaves half done is the source's, whose locks are
                // parking_lot's and guard nothing that code which panics has in hand. The caller
                // is told by the end of its channel.
                let _panicked = catch_unwind(AssertUnwindSafe(run));
                state = self.state.lock();
                state.running.retain(|(running, _)| *running != number);
                continue;
            }
            if state.ended {
                break;
            }
            state.idle += 1;
            let timed_out = self.work.wait_for(&mut state, idle).timed_out();
            state.idle -= 1;
            if timed_out && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }
}

impl fmt::Debug for Helpers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Helpers")
            .field("patience", &self.patience)
            .field("timekeeping", &self.timekeeping())
            .finish()
    }
}
