//! What callers want: a read that waits for a few pieces, or a feed of many.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use fetch::{Priority, Ticket};
use parking_lot::Condvar;
use tokio::sync::Notify;

use crate::key::Key;
use crate::place::Fault;

/// Pieces that follow each other, of one blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The blob's number: [`Blob::number`](crate::Blob::number).
    pub blob: u32,
    /// The pieces.
    pub pieces: Range<u32>,
}

/// Failures in a row after which a feed ends.
const FAILURES_MAX: u32 = 8;

/// A gap may have at most this part of the pieces before it: what nobody wanted stays little.
const GAP_PART: u32 = 4;

/// The number of a job.
pub(crate) type JobId = u64;

/// The pieces that one caller wants.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) priority: Priority,
    /// What was not given to the engine yet, in order.
    pub(crate) rest: VecDeque<Span>,
    /// How many pieces were taken that follow each other.
    run: u32,
    /// How many pieces the engine has.
    pub(crate) open: usize,
    /// Their bytes.
    pub(crate) open_bytes: u64,
    pub(crate) tickets: BTreeSet<Ticket>,
    /// Whether what comes is kept for the caller.
    keeps: bool,
    /// What came, if it is kept.
    pub(crate) arrived: Vec<(Key, Arc<[u8]>)>,
    failures: u32,
    /// It wants nothing until the last server can be asked again.
    pub(crate) parked: bool,
    /// Something could not be fetched.
    pub(crate) fault: Option<Fault>,
    /// It wants no more.
    pub(crate) over: bool,
    /// Notified at the end.
    pub(crate) ended: Arc<Ended>,
}

/// Wakes who waits for the end of a job: a thread, or tasks.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    pub(crate) thread: Condvar,
    pub(crate) tasks: Notify,
}

impl Ended {
    pub(crate) fn tell(&self) {
        self.thread.notify_all();
        self.tasks.notify_waiters();
    }
}

impl Job {
    pub(crate) fn new(priority: Priority, rest: VecDeque<Span>) -> Self {
        Self {
            priority,
            rest,
            run: 0,
            open: 0,
            open_bytes: 0,
            tickets: BTreeSet::new(),
            keeps: false,
            arrived: Vec::new(),
            failures: 0,
            parked: false,
            fault: None,
            over: false,
            ended: Arc::default(),
        }
    }

    /// Returns the job of a thread that waits for pieces, and gets them.
    pub(crate) fn reader(rest: VecDeque<Span>) -> Self {
        Self {
            keeps: true,
            ..Self::new(Priority::Demand, rest)
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.over || (self.open == 0 && self.rest.is_empty())
    }

    /// Takes the next piece. A gap of at most so many pieces between two spans counts as wanted if it is small beside
    /// the first of them.
    pub(crate) fn next(&mut self, gap: u32) -> Option<Key> {
        loop {
            let span = self.rest.front_mut()?;
            let blob = span.blob;
            if let Some(piece) = span.pieces.next() {
                self.run += 1;
                return Some(Key { blob, piece });
            }
            let before = self.rest.pop_front()?;
            let run = std::mem::take(&mut self.run);
            let gap = gap.min(run / GAP_PART);
            if let Some(next) = self.rest.front_mut()
                && next.blob == blob
                && let Some(skipped) = next.pieces.start.checked_sub(before.pieces.end)
                && skipped <= gap
            {
                next.pieces.start = before.pieces.end;
                self.run = run;
            }
        }
    }

    /// A piece came.
    pub(crate) fn came(&mut self, key: Key, bytes: &Arc<[u8]>) {
        self.open = self.open.saturating_sub(1);
        self.failures = 0;
        if self.keeps {
            self.arrived.push((key, Arc::clone(bytes)));
        }
    }

    /// A piece did not come, and will not.
    pub(crate) fn failed(&mut self, fault: Fault) {
        self.open = self.open.saturating_sub(1);
        self.suffer(fault);
    }

    /// A piece did not come because nobody can be asked: it is wanted again when somebody can.
    pub(crate) fn wait_for_servers(&mut self, key: Key) {
        self.open = self.open.saturating_sub(1);
        self.rest.push_front(Span {
            blob: key.blob,
            pieces: key.piece..key.piece + 1,
        });
    }

    /// No server could be asked for a while.
    pub(crate) fn outage(&mut self, fault: &Fault) {
        // A reader has its own deadline.
        if self.priority != Priority::Demand && !self.rest.is_empty() {
            self.suffer(fault.clone());
        }
    }

    fn suffer(&mut self, fault: Fault) {
        self.failures += 1;
        self.fault = Some(fault);
        self.over |= self.priority == Priority::Demand || self.failures >= FAILURES_MAX;
    }
}

/// The jobs of a fetcher, and whose each ticket is.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    pub(crate) jobs: HashMap<JobId, Job>,
    /// Whose each ticket is, and how many pieces of it are open.
    pub(crate) tickets: HashMap<Ticket, (JobId, usize)>,
    last: JobId,
}

impl Jobs {
    pub(crate) fn add(&mut self, job: Job) -> JobId {
        self.last += 1;
        self.jobs.insert(self.last, job);
        self.last
    }

    pub(crate) fn ticket(&mut self, id: JobId, ticket: Ticket, pieces: usize) {
        self.tickets.insert(ticket, (id, pieces));
        if let Some(job) = self.jobs.get_mut(&id) {
            job.tickets.insert(ticket);
            job.open += pieces;
        }
    }

    /// Returns the job of a ticket of which a piece ended.
    pub(crate) fn ended(&mut self, ticket: Ticket) -> Option<(JobId, &mut Job)> {
        let (id, left) = self.tickets.get_mut(&ticket)?;
        let id = *id;
        *left = left.saturating_sub(1);
        let is_over = *left == 0;
        if is_over {
            self.tickets.remove(&ticket);
        }
        let job = self.jobs.get_mut(&id)?;
        if is_over {
            job.tickets.remove(&ticket);
        }
        Some((id, job))
    }

    /// Removes a job, and returns the tickets that it leaves.
    pub(crate) fn remove(&mut self, id: JobId) -> Option<Job> {
        let job = self.jobs.remove(&id)?;
        for ticket in &job.tickets {
            self.tickets.remove(ticket);
        }
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(spans: &[Range<u32>], gap: u32) -> Vec<u32> {
        let span = |pieces: &Range<u32>| Span {
            blob: 1,
            pieces: pieces.clone(),
        };
        let mut job = Job::new(Priority::Plan, spans.iter().map(span).collect());
        std::iter::from_fn(|| job.next(gap).map(|key| key.piece)).collect()
    }

    #[test]
    fn a_gap_is_fetched_where_it_is_cheap_and_small() {
        assert_eq!(taken(&[0..4, 5..6], 0), [0, 1, 2, 3, 5]);
        assert_eq!(taken(&[0..4, 5..6], 1), [0, 1, 2, 3, 4, 5]);
        assert_eq!(taken(&[0..3, 4..5], 9), [0, 1, 2, 4]);
        assert_eq!(taken(&[0..4, 2..3, 9..10], 9), [0, 1, 2, 3, 2, 9]);
    }

    #[test]
    fn a_feed_ends_after_failures_in_a_row_and_a_reader_at_the_first() {
        let fault = || Fault::new(crate::FaultKind::Busy, "busy");
        let key = Key { blob: 1, piece: 0 };
        let span = || {
            VecDeque::from([Span {
                blob: 1,
                pieces: 0..9,
            }])
        };
        let mut feed = Job::new(Priority::Fill, span());
        for _ in 1..FAILURES_MAX {
            feed.failed(fault());
        }
        feed.came(key, &Arc::from([0; 1]));
        for _ in 1..FAILURES_MAX {
            feed.outage(&fault());
        }
        assert!(!feed.over && feed.arrived.is_empty());
        feed.failed(fault());
        assert!(feed.is_done() && feed.fault.is_some());
        let mut reader = Job::new(Priority::Demand, span());
        reader.outage(&fault());
        assert!(!reader.over);
        reader.failed(fault());
        assert!(reader.is_done());
    }
}
