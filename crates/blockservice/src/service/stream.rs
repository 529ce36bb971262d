//! A stream: the chunks of a plan, one after the other, as fast as its client accepts them.
//!
//! A stream has one job in the schedule, which sends the next chunk and goes back to the end of the
//! queue. So a stream takes turns with other machines, demand goes before it, and no more of it is in
//! memory than its connection may queue.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::OwnedSemaphorePermit;

use super::counters::MachineCounters;
use super::machine::{Identity, Vm};
use super::outgoing::Outgoing;
use crate::wire::{Frame, Message, Status};
use chunks::index::{CHUNK_BYTES, Index};
use chunks::{ChunkId, Stored};

/// The most chunks that a stream was requested to send before their turn, and whose turn has not come.
const PROMOTED_MAX: usize = 65_536;

/// The most chunks of which something is said before the order of a stream is known.
const EARLY_MAX: usize = 65_536;

/// Counts of streams since the service began.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamCounters {
    pub(crate) streams: Counter,
    pub(crate) running: Gauge,
    pub(crate) chunks: Counter,
    pub(crate) skipped: Counter,
    pub(crate) promoted: Counter,
    pub(crate) plan_bytes: Counter,
}

impl StreamCounters {
    /// Registers the counts.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let counters = [
            (
                "streams",
                "Streams of chunks that were begun",
                &self.streams,
            ),
            ("streamed_chunks", "Chunks that streams sent", &self.chunks),
            (
                "skipped_chunks",
                "Chunks of streams that were not sent, because clients had them",
                &self.skipped,
            ),
            (
                "promoted_chunks",
                "Chunks that clients had streams send before their turn",
                &self.promoted,
            ),
            (
                "plan_bytes",
                "Bytes of plans that were sent",
                &self.plan_bytes,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        let help = "Streams that are not over";
        registry.register("streams_running", help, self.running.clone());
    }
}

/// A stream to one client.
pub(crate) struct Stream {
    request: u64,
    index: Arc<Index>,
    client: Receiver,
    cancelled: Arc<AtomicBool>,
    counts: StreamCounters,
    state: Mutex<State>,
}

/// Counts a stream among all that are not over.
struct Seat {
    running: Gauge,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.running.dec();
    }
}

/// The receiver of the chunks.
#[derive(Clone)]
pub(crate) struct Receiver {
    pub(crate) to: Arc<Outgoing>,
    pub(crate) vm: Arc<Vm>,
    pub(crate) machine: Arc<MachineCounters>,
}

/// What a client says of chunks of a stream.
#[derive(Clone, Copy)]
enum Said {
    Skip,
    Promote,
}

struct State {
    /// What was said before the order was known; `None` from then on.
    early: Option<Vec<(Said, Vec<u32>)>>,
    /// The next chunks, in order.
    order: VecDeque<u32>,
    /// What of it is still to be sent.
    wanted: HashSet<u32>,
    sent: u32,
    skipped: u32,
    failed: u32,
    /// `None` when it is over; its connection keeps the stream longer.
    seat: Option<Seat>,
}

impl State {
    /// Returns whether the order is not known yet: what is said of it is done when it is.
    fn is_early(&mut self, said: Said, chunks: &[u32]) -> bool {
        let Some(early) = &mut self.early else {
            return false;
        };
        let known: usize = early.iter().map(|(_, chunks)| chunks.len()).sum();
        if known + chunks.len() <= EARLY_MAX {
            early.push((said, chunks.to_vec()));
        }
        true
    }
}

impl Stream {
    /// Returns a stream that has nothing to send yet.
    pub(crate) fn new(
        request: u64,
        index: Arc<Index>,
        client: Receiver,
        cancelled: Arc<AtomicBool>,
        counts: &StreamCounters,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        counts.streams.inc();
        counts.running.inc();
        Self {
            request,
            index,
            client,
            cancelled,
            counts: counts.clone(),
            state: Mutex::new(State {
                early: Some(Vec::new()),
                order: VecDeque::new(),
                wanted: HashSet::new(),
                sent: 0,
                skipped: 0,
                failed: 0,
                seat: Some(Seat {
                    running: counts.running.clone(),
                    _permit: permit,
                }),
            }),
        }
    }

    /// Sets which chunks are to be sent, in order.
    pub(crate) fn set_order(&self, order: &[u32]) {
        let mut state = self.state.lock();
        state.wanted = order.iter().copied().collect();
        state.order = order.iter().copied().collect();
        let early = state.early.take();
        drop(state);
        for (said, chunks) in early.into_iter().flatten() {
            match said {
                Said::Skip => self.skip(&chunks),
                Said::Promote => self.promote(&chunks),
            }
        }
    }

    /// Leaves out chunks that were not sent yet.
    pub(crate) fn skip(&self, chunks: &[u32]) {
        let mut state = self.state.lock();
        if state.is_early(Said::Skip, chunks) {
            return;
        }
        for chunk in chunks {
            if state.wanted.remove(chunk) {
                state.skipped += 1;
                self.counts.skipped.inc();
            }
        }
    }

    /// Sends chunks next that were not sent yet, the first of them first.
    pub(crate) fn promote(&self, chunks: &[u32]) {
        let mut state = self.state.lock();
        if state.is_early(Said::Promote, chunks) {
            return;
        }
        let State { order, wanted, .. } = &mut *state;
        // Where one was before, it is passed over when it has been sent.
        for chunk in chunks.iter().rev().filter(|chunk| wanted.contains(chunk)) {
            // Who promotes the same chunks again and again makes the order no longer than this.
            if order.len() < wanted.len() + PROMOTED_MAX {
                order.push_front(*chunk);
                self.counts.promoted.inc();
            }
        }
    }

    /// Takes the next chunk to send; `None` if there is none, or the client is gone.
    pub(crate) fn take(&self) -> Option<(u32, ChunkId)> {
        if self.cancelled.load(Relaxed) || self.client.to.is_over() {
            return None;
        }
        let mut state = self.state.lock();
        let State { order, wanted, .. } = &mut *state;
        let number = loop {
            let next = order.pop_front()?;
            if wanted.remove(&next) {
                break next;
            }
        };
        drop(state);
        Some((number, self.index.chunk(number)?))
    }

    /// Sends a chunk, or the reason why it is missing.
    pub(crate) fn send(&self, chunk: u32, found: Result<Stored, Status>) {
        let mut state = self.state.lock();
        match &found {
            Ok(_) => state.sent += 1,
            Err(_) => state.failed += 1,
        }
        drop(state);
        let (status, codec, raw_len, data) = match found {
            Ok(stored) => {
                self.counts.chunks.inc();
                (
                    Status::Here,
                    stored.codec as u8,
                    stored.raw_len,
                    stored.bytes,
                )
            }
            Err(status) => (status, 0, 0, Vec::new()),
        };
        let message = Message::Streamed {
            chunk,
            status,
            codec,
            raw_len,
        };
        let request = self.request;
        let frame = Frame {
            request,
            message,
            data,
        };
        self.client.to.send(frame, None);
    }

    /// Notifies the client of the end.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.seat = None;
        let end = Message::StreamEnd {
            sent: state.sent,
            skipped: state.skipped,
            failed: state.failed,
        };
        drop(state);
        self.client.to.send(Frame::new(self.request, end), None);
    }

    /// Ends it without a message: its START was refused.
    pub(crate) fn give_up(&self) {
        self.state.lock().seat = None;
    }

    /// Returns whether its end was sent.
    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().seat.is_none()
    }

    /// Returns the number of its request.
    pub(crate) const fn request(&self) -> u64 {
        self.request
    }

    /// Returns how many raw bytes the next chunk has, about.
    pub(crate) fn cost(&self) -> u64 {
        let next = self.state.lock().order.front().copied();
        let place = next.and_then(|number| self.index.place(number));
        place.map_or(CHUNK_BYTES, |place| u64::from(place.len))
    }

    /// Returns the machine in whose turns it is sent.
    pub(crate) fn owner(&self) -> &Identity {
        &self.client.vm.identity
    }

    /// Returns the receiver of the chunks.
    pub(crate) const fn client(&self) -> &Receiver {
        &self.client
    }
}
