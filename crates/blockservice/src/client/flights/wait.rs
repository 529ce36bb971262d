//! Requests for chunks, with and without a waiting thread.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use fetch::{Priority, Ticket};
use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::kept::Found;
use super::{Arrived, Chunk, Flights};

/// How long a request may take for which no reader waits.
const AHEAD: Duration = Duration::from_secs(60);

/// A ticket of the engine, and what has become of its chunks.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) priority: Priority,
    /// Chunks that did not end.
    open: usize,
    /// The received chunks, for a waiting thread; `None` without one.
    found: Option<HashMap<u32, Found>>,
    done: Arc<Notify>,
}

impl Waiting {
    fn new(priority: Priority, open: usize, found: Option<HashMap<u32, Found>>) -> Self {
        Self {
            priority,
            open,
            found,
            done: Arc::new(Notify::new()),
        }
    }

    /// Returns whether no thread waits for it.
    pub(super) const fn is_ahead(&self) -> bool {
        self.found.is_none()
    }

    /// Records the result of one chunk, and returns whether the ticket is not needed any more.
    pub(super) fn end(&mut self, number: u32, arrived: Option<&Arc<Arrived>>) -> bool {
        self.open = self.open.saturating_sub(1);
        if let (Some(found), Some(arrived)) = (&mut self.found, arrived) {
            found.insert(number, Found::Packed(Arc::clone(arrived)));
        }
        if self.open == 0 {
            self.done.notify_one();
        }
        self.open == 0 && self.found.is_none()
    }
}

/// A ticket that is taken back when this is dropped.
#[derive(Debug)]
struct Held<'a> {
    flights: &'a Flights,
    ticket: Ticket,
}

impl Held<'_> {
    /// Returns what came so far, and how many chunks did not end.
    fn take(&self) -> (HashMap<u32, Found>, usize) {
        let mut state = self.flights.state.lock();
        let waiting = state.tickets.get_mut(&self.ticket);
        waiting.map_or_else(Default::default, |waiting| {
            let found = waiting.found.as_mut().map(std::mem::take);
            (found.unwrap_or_default(), waiting.open)
        })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.flights.leave(self.ticket);
    }
}

/// Chunks that are fetched without anybody waiting for them, until this is dropped.
#[derive(Debug)]
pub(in crate::client) struct Ahead {
    flights: Arc<Flights>,
    ticket: Ticket,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.flights.leave(self.ticket);
    }
}

/// Chunks for a store, until this is dropped.
#[derive(Debug)]
pub(in crate::client) struct Filling<'a> {
    held: Held<'a>,
    done: Arc<Notify>,
}

impl Filling<'_> {
    /// Waits on the calling thread until all have ended; returns whether they have within `patience`, or never will.
    pub(in crate::client) fn wait(&self, patience: Duration) -> bool {
        let wait = async { tokio::time::timeout(patience, self.done.notified()).await };
        let ended = self.held.flights.driver.block_on(wait);
        ended.is_none_or(|in_time| in_time.is_ok())
    }

    /// Returns what has come of `numbers`.
    pub(in crate::client) fn take(self, numbers: &[u32]) -> Vec<Option<Chunk>> {
        let flights = self.held.flights;
        let (came, open) = self.held.take();
        flights.counters.late.fetch_add(open as u64, Relaxed);
        let open = |number: &u32| flights.open(*number, came.get(number)?, Priority::Fill);
        numbers.iter().map(open).collect()
    }
}

impl Flights {
    /// Requests chunks for a store, behind all else.
    pub(in crate::client) fn fill(&self, numbers: &[u32]) -> Filling<'_> {
        let held = self.want(numbers, Priority::Fill, Instant::now() + AHEAD);
        let state = self.state.lock();
        let waiting = state.tickets.get(&held.ticket);
        let done = waiting.map_or_else(Default::default, |waiting| Arc::clone(&waiting.done));
        drop(state);
        Filling { held, done }
    }

    /// Returns chunks by their numbers: those in memory, and those that arrive until `deadline`. Waits on
    /// the calling thread. Returns early when no more will arrive, and when the client
    /// is dropped.
    pub(in crate::client) fn fetch(
        &self,
        numbers: &[u32],
        priority: Priority,
        deadline: Instant,
    ) -> Vec<Option<Chunk>> {
        let mut found = self.at_hand(numbers, priority);
        // What one service sent wrong, another one is asked for at once.
        for _ in 0..self.connections.services() {
            let lies = self.counters.lies.load(Relaxed);
            self.fetch_lacking(&mut found, numbers, priority, deadline);
            if found.iter().all(Option::is_some) || self.counters.lies.load(Relaxed) == lies {
                break;
            }
        }
        found
    }

    /// Fetches what was not found.
    fn fetch_lacking(
        &self,
        found: &mut [Option<Chunk>],
        numbers: &[u32],
        priority: Priority,
        deadline: Instant,
    ) {
        let lacking = found
            .iter()
            .zip(numbers)
            .filter(|(chunk, _)| chunk.is_none());
        let lacking: Vec<_> = lacking.map(|(_, number)| *number).collect();
        if lacking.is_empty() {
            return;
        }
        // Who drives for a moment only keeps those away who would make the connection again.
        if !self.is_there() {
            self.counters.away.fetch_add(lacking.len() as u64, Relaxed);
            return;
        }
        // Asked by whoever drives: then nobody has to be woken for it.
        let came = async {
            let held = self.want(&lacking, priority, deadline);
            let done = {
                let state = self.state.lock();
                Arc::clone(&state.tickets.get(&held.ticket)?.done)
            };
            let _in_time = timeout_at(deadline.into(), done.notified()).await;
            let (came, open) = held.take();
            self.counters.late.fetch_add(open as u64, Relaxed);
            Some(came)
        };
        let Some(came) = self.driver.block_on(came).flatten() else {
            self.counters.away.fetch_add(lacking.len() as u64, Relaxed);
            return;
        };
        for (place, number) in found.iter_mut().zip(numbers) {
            if place.is_none() {
                let came = came.get(number);
                *place = came.and_then(|found| self.open(*number, found, priority));
            }
        }
    }

    /// Fetches chunks soon; they are cached in memory for later reads.
    pub(in crate::client) fn ahead(self: &Arc<Self>, numbers: &[u32]) -> Ahead {
        let ticket = self.want_ahead(numbers, Priority::Plan);
        Ahead {
            flights: Arc::clone(self),
            ticket,
        }
    }

    /// As [`ahead`](Self::ahead), until they arrived or it takes too long. Nothing is requested of a service that is not
    /// believed, where there is another source.
    pub(in crate::client) fn want_ahead(&self, numbers: &[u32], priority: Priority) -> Ticket {
        let now = self.now();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let is_left_alone = self.is_left_alone();
        let lacking = numbers.iter().filter(|number| {
            !is_left_alone && state.kept.peek(**number).is_none() && self.zeros(**number).is_none()
        });
        let pieces: Vec<_> = lacking.filter_map(|number| self.piece(*number)).collect();
        let ticket = state.engine.want(now, &pieces, priority, now + AHEAD);
        if !pieces.is_empty() {
            // However late it comes, it is kept for who reads it.
            let waiting = Waiting::new(Priority::Plan, pieces.len(), None);
            state.tickets.insert(ticket, waiting);
        }
        self.act(state, now, None);
        ticket
    }

    fn at_hand(&self, numbers: &[u32], priority: Priority) -> Vec<Option<Chunk>> {
        let look = |number: &u32| {
            let kept = match priority {
                Priority::Demand => self.recent(*number),
                Priority::Plan | Priority::Fill => self.peek(*number),
            };
            kept.or_else(|| self.zeros(*number))
        };
        numbers.iter().map(look).collect()
    }

    /// Asks for chunks.
    fn want(&self, numbers: &[u32], priority: Priority, deadline: Instant) -> Held<'_> {
        let now = self.now();
        let deadline = deadline.saturating_duration_since(self.epoch);
        let mut guard = self.state.lock();
        let state = &mut *guard;
        // What came since we looked is found at once, and what is named twice is wanted once.
        let (mut found, mut pieces) = (HashMap::new(), Vec::new());
        let mut known = std::collections::HashSet::new();
        for number in numbers.iter().filter(|number| known.insert(**number)) {
            match state.kept.peek(*number) {
                Some(kept) => {
                    found.insert(*number, kept);
                }
                None => pieces.extend(self.piece(*number)),
            }
        }
        let ticket = state.engine.want(now, &pieces, priority, deadline);
        let waiting = Waiting::new(priority, pieces.len(), Some(found));
        if pieces.is_empty() {
            waiting.done.notify_one();
        }
        state.tickets.insert(ticket, waiting);
        self.act(state, now, None);
        drop(guard);
        Held {
            flights: self,
            ticket,
        }
    }

    fn leave(&self, ticket: Ticket) {
        let now = self.now();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.tickets.remove(&ticket);
        state.engine.leave(now, ticket);
        self.act(state, now, None);
    }
}
