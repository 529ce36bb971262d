//! Threads that make calls which may never return.
//!
//! A call waits for a thread and for its end, both within one deadline. A caller that gives up
//! removes its call from the queue if no thread has begun it, so the queue is never longer than
//! the number of callers. If one has, the thread *hangs*: it counts towards the limit until the call
//! returns, and then continues with the queue.
//!
//! A request that is [handed over](Waiter) has no waiting caller: one thread watches the deadlines of
//! all these, and answers in their place after the deadline. It sleeps until the next deadline,
//! without wake-ups: requests that are added later have later deadlines.

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

use blocks::prompt::{self, Waiter};
use blocks::{SourceError, SourceErrorKind};

use super::DEADLINE;

/// Requests that were handed over and are not answered, at most: each is somebody who waits, and the
/// next is told at once that there are too many.
const HANDED_MAX: usize = 8192;

/// What fails when a request that was handed over does.
const ANSWERING: &str = "having a request answered";

/// How a source is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The deadline of a request.
    pub deadline: Duration,
    /// Threads that wait for the source at a time, and that may hang in it.
    pub helpers: NonZeroUsize,
    /// How long an idle thread stays.
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

/// The threads, as seen by their callers. Dropping this ends them; one that hangs ends when it
/// returns, without a join.
pub(super) struct Helpers {
    patience: Patience,
    shared: Arc<Shared>,
}

/// What was handed over, until it is answered.
struct Handed {
    number: u64,
    deadline: Instant,
    late: Box<dyn FnOnce(SourceError) + Send>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There is a call to make, or there will be none any more.
    work: Condvar,
    /// No requests will be handed over any more.
    time: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Call>,
    /// In the order of their deadlines.
    handed: VecDeque<Handed>,
    /// Whether a thread keeps the time for them.
    timed: bool,
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
                let queued = self.shared.state.lock().give_up(number);
                drop(queued);
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
        self.submit_to(&mut self.shared.state.lock(), run)
    }

    fn submit_to(&self, state: &mut State, run: Box<dyn FnOnce() + Send>) -> io::Result<u64> {
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

impl Waiter for Helpers {
    fn wait_for(&self, work: Box<dyn FnOnce() + Send>, late: Box<dyn FnOnce(SourceError) + Send>) {
        let mut state = self.shared.state.lock();
        if state.handed.len() >= HANDED_MAX {
            state.late += 1;
            drop(state);
            return late(SourceError::new(SourceErrorKind::TimedOut, ANSWERING));
        }
        let timed = state.timed || self.keep_time();
        let submitted = match timed {
            true => self.submit_to(&mut state, work),
            false => Err(io::ErrorKind::OutOfMemory.into()),
        };
        state.timed = timed;
        match submitted {
            Ok(number) => {
                let deadline = Instant::now() + self.patience.deadline;
                let handed = Handed {
                    number,
                    deadline,
                    late,
                };
                state.handed.push_back(handed);
            }
            Err(error) => {
                drop(state);
                late(SourceError::from_io(ANSWERING, error));
            }
        }
    }
}

impl Helpers {
    /// Starts the thread that keeps the time, and returns whether it could.
    fn keep_time(&self) -> bool {
        let (shared, deadline) = (Arc::clone(&self.shared), self.patience.deadline);
        let started = thread::Builder::new()
            .name("source-time".to_owned())
            .spawn(move || shared.keep_time(deadline));
        started.is_ok()
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.work.notify_all();
        self.shared.time.notify_all();
    }
}

impl State {
    /// Notes that no caller waits for a call any more, and returns it if it was not begun.
    fn give_up(&mut self, number: u64) -> Option<Call> {
        self.late += 1;
        let queued = self.queue.iter().position(|call| call.number == number);
        let queued = queued.and_then(|at| self.queue.remove(at));
        for (running, caller) in &mut self.running {
            if *running == number {
                *caller = Caller::GaveUp;
            }
        }
        queued
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
                let _panicked = catch_unwind(AssertUnwindSafe(|| prompt::may_hang(run)));
                state = self.state.lock();
                state.running.retain(|(running, _)| *running != number);
                // Near the front, unless much was handed over that hangs.
                let answered = state
                    .handed
                    .iter()
                    .position(|handed| handed.number == number);
                let answered = answered.and_then(|at| state.handed.remove(at));
                if answered.is_some() {
                    // It may own the last of what it was asked for, and dropping that takes the lock.
                    drop(state);
                    drop(answered);
                    state = self.state.lock();
                }
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

impl Shared {
    /// Answers what was handed over and is late, until nothing is left to wait for.
    fn keep_time(&self, deadline: Duration) {
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            let next = state.handed.front().map(|handed| handed.deadline);
            if next.is_some_and(|next| next <= now) {
                if let Some(Handed { number, late, .. }) = state.handed.pop_front() {
                    let waiting = state.give_up(number);
                    drop(state);
                    let late = || late(SourceError::new(SourceErrorKind::TimedOut, ANSWERING));
                    // As with calls: nobody is to be left without an answer for it.
                    let _panicked = catch_unwind(AssertUnwindSafe(late));
                    drop(waiting);
                    state = self.state.lock();
                }
                continue;
            }
            if next.is_none() && state.ended {
                break;
            }
            // What is handed over meanwhile is late after that.
            let until = next.unwrap_or(now + deadline);
            let timed_out = self.time.wait_until(&mut state, until).timed_out();
            if timed_out && next.is_none() && state.handed.is_empty() {
                break;
            }
        }
        state.timed = false;
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
