//! Chunks that one thread fetches at a time, for itself and for other threads that want one of them
//! meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::time::timeout_at;

use super::super::connection::{Connection, Reads, Want};
use super::super::responses::{Reply, Response, Responses};
use super::{Chunk, Inner};
use crate::wire::Priority;
use chunks::ChunkId;

/// Chunks to fetch. Threads that joined the flight of one get its result, or nothing when this is
/// dropped.
pub(super) struct Batch<'a> {
    of: &'a Inner,
    priority: Priority,
    items: Vec<Item>,
}

struct Item {
    number: u32,
    id: ChunkId,
    /// Requests for it without a response.
    open: u8,
    /// Whether it was requested on the second connection, too.
    asked_again: bool,
    is_settled: bool,
}

/// The fetched chunks, by place in the batch.
type Found = Vec<(usize, Chunk)>;

impl<'a> Batch<'a> {
    pub(super) const fn new(of: &'a Inner, priority: Priority) -> Self {
        Self {
            of,
            priority,
            items: Vec::new(),
        }
    }

    /// Adds a chunk of which the caller leads the flight.
    pub(super) fn add(&mut self, number: u32, id: ChunkId) {
        self.items.push(Item {
            number,
            id,
            open: 0,
            asked_again: false,
            is_settled: false,
        });
    }

    /// Fetches the chunks, and gives up those that are missing at the deadline.
    ///
    /// Demand is asked for on the first connection, and on the second one, too, what has not come
    /// after a while; all else on the second one. What a lost connection leaves unanswered is asked
    /// for on the other.
    pub(super) fn fetch(mut self, deadline: Instant) -> Found {
        let mut found = Vec::new();
        if self.items.is_empty() {
            return found;
        }
        if !self.of.is_there() {
            self.give_up(&self.of.counters.away);
            return found;
        }
        let (demand, asked) = (self.priority == Priority::Demand, Instant::now());
        let hedge = asked + self.of.shared.config.patience.hedge;
        let [first, second] = &self.of.connections;
        let (mut connection, other) = if demand {
            (first, second)
        } else {
            (second, first)
        };
        let responses = Responses::new(self.items.len(), !demand);
        let mut ask: Vec<usize> = (0..self.items.len()).collect();
        let mut may_hedge = demand;
        // Patience is with the service: what we do with what came does not count.
        let mut busy = Duration::ZERO;
        loop {
            let until = if may_hedge {
                hedge.min(deadline)
            } else {
                deadline
            };
            let Some(came) = self.wait(&responses, connection, &ask, until + busy) else {
                self.give_up(&self.of.counters.away);
                return found;
            };
            let now = Instant::now();
            let (is_over, is_late) = (now >= deadline + busy, now >= hedge + busy);
            for response in came {
                self.settle(&responses, response, &mut found);
            }
            busy += now.elapsed();
            if self.items.iter().all(|item| item.is_settled) {
                break;
            }
            if is_over {
                self.fall_silent();
                break;
            }
            let hedged = may_hedge && is_late;
            if hedged {
                may_hedge = false;
                responses.wake_on_each();
            }
            ask = self.unanswered(hedged);
            connection = other;
        }
        if asked.elapsed() > self.of.shared.config.patience.hedge + busy {
            // The requests that lost the race, or all.
            (0..self.items.len()).for_each(|place| responses.settle(place));
            self.of
                .connections
                .iter()
                .for_each(|connection| connection.cancel_unwanted());
        }
        found
    }

    /// Requests chunks, and waits for responses; `None` if the client was dropped.
    fn wait(
        &mut self,
        responses: &Arc<Responses>,
        connection: &Connection,
        ask: &[usize],
        until: Instant,
    ) -> Option<Vec<Response>> {
        let want = |place: &usize| {
            let item = &mut self.items[*place];
            item.open += 1;
            Want {
                number: item.number,
                responder: responses.responder(*place),
            }
        };
        let reads = Reads {
            source: Arc::clone(&self.of.source),
            priority: self.priority,
            wants: ask.iter().map(want).collect(),
        };
        // Asked by whoever drives: then nobody has to be woken for it.
        let came = async {
            connection.read(reads);
            timeout_at(until.into(), responses.next()).await.ok()
        };
        let came = self.of.driver.block_on(came)?;
        Some(came.unwrap_or_else(|| responses.take()))
    }

    /// Returns the places of what is to be asked for on the other connection: what has no answer to
    /// come, or everything that has not come if it is `hedged`.
    fn unanswered(&mut self, hedged: bool) -> Vec<usize> {
        let mut ask = Vec::new();
        for (place, item) in self.items.iter_mut().enumerate() {
            if item.is_settled || item.asked_again || (item.open > 0 && !hedged) {
                continue;
            }
            if item.open > 0 {
                self.of.counters.hedged.fetch_add(1, Relaxed);
            }
            item.asked_again = true;
            ask.push(place);
        }
        ask
    }

    /// Processes a response.
    fn settle(&mut self, responses: &Responses, response: Response, found: &mut Found) {
        let Response { place, reply } = response;
        let (of, item) = (self.of, &mut self.items[place]);
        item.open -= 1;
        if item.is_settled {
            return;
        }
        let chunk = match reply {
            // The other answer may come, or it is asked for again.
            Reply::Lost if item.open > 0 || !item.asked_again => return,
            // Whatever is wrong with it, it is not the chunk.
            Reply::Here(stored) => match stored.open(&item.id) {
                Ok(raw) => Some(Arc::new(raw)),
                Err(_) => {
                    of.lied();
                    None
                }
            },
            none => {
                let counter = match none {
                    Reply::NotNow => &of.counters.late,
                    Reply::Lost => &of.counters.away,
                    _ => &of.counters.absent,
                };
                counter.fetch_add(1, Relaxed);
                None
            }
        };
        item.is_settled = true;
        responses.settle(place);
        let number = item.number;
        if let Some(chunk) = &chunk {
            of.counters.chunks.fetch_add(1, Relaxed);
            of.counters.bytes.fetch_add(chunk.len() as u64, Relaxed);
            if self.priority != Priority::Prefetch {
                of.remember(number, chunk);
            }
            found.push((place, Arc::clone(chunk)));
        }
        of.single_flight.complete(&number, &chunk);
    }

    /// The deadline is over.
    fn fall_silent(&self) {
        self.give_up(&self.of.counters.late);
        if self.priority == Priority::Demand && !self.of.shared.silent.swap(true, Relaxed) {
            log::warn!("the block service does not respond: requests do not wait for it");
        }
    }

    /// Counts the chunks that were not received.
    fn give_up(&self, counter: &AtomicU64) {
        let left = self.items.iter().filter(|item| !item.is_settled);
        counter.fetch_add(left.count() as u64, Relaxed);
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        for item in self.items.iter().filter(|item| !item.is_settled) {
            self.of.single_flight.complete(&item.number, &None);
        }
    }
}
