//! Requests of callers: tickets, joins and promotions.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Alarm, Engine};
use crate::exchange::{Action, Peer, RequestId, StreamId};
use crate::flights::Flight;
use crate::link::transfer;
use crate::peers::PeerState;
use crate::want::{Key, Piece, Priority, Ticket, Verdict};

/// What a stream may be later than expected before a piece is requested after all: its server may
/// have read a batch from a disk.
const STREAM_GRACE: Duration = Duration::from_millis(5);

/// Where a queued flight goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Front,
    Back,
}

fn bytes_of<K>(piece: &Piece<K>) -> u64 {
    u64::from(piece.bytes)
}

impl<K: Key> Engine<K> {
    /// Requests pieces. Each of them ends with one [`Action::Done`], at the latest at `deadline`.
    ///
    /// A piece that is named twice counts once. Without a peer that is up, they are
    /// [`Verdict::Away`]; over the bounds of the configuration, they are [`Verdict::Busy`].
    pub fn want(
        &mut self,
        now: Duration,
        pieces: &[Piece<K>],
        priority: Priority,
        deadline: Duration,
    ) -> Ticket {
        let ticket = self.tickets.name();
        let has_room = self.tickets.len() < self.config.tickets;
        let mut known = BTreeSet::new();
        let mut taken = BTreeSet::new();
        for piece in pieces {
            if !known.insert(piece.key) {
                continue;
            }
            if has_room && self.takes(&piece.key, taken.len()) {
                taken.insert(piece.key);
            } else {
                self.counts.refused += 1;
                self.actions.push_back(Action::Done {
                    ticket,
                    key: piece.key,
                    verdict: Verdict::Busy,
                });
            }
        }
        if taken.is_empty() {
            return ticket;
        }
        self.timers.set(Alarm::Ticket(ticket), deadline);
        self.tickets.open(ticket, priority, taken.clone());
        // In the caller's order: it is the order of the queue.
        for piece in pieces {
            if taken.remove(&piece.key) {
                self.add_waiter(now, *piece, priority, ticket);
            }
        }
        ticket
    }

    /// Whether the bounds allow one more waiter for a piece, beside `taken` of the same ticket.
    fn takes(&self, key: &K, taken: usize) -> bool {
        self.tickets.waiting() + taken < self.config.waiting
            && (self.flights.contains_key(key) || self.flights.len() + taken < self.config.flights)
    }

    /// Cancels a ticket: none of its pieces is reported any more, and pieces without another ticket are
    /// not fetched.
    pub fn leave(&mut self, now: Duration, ticket: Ticket) {
        self.timers.clear(Alarm::Ticket(ticket));
        for key in self.tickets.close(ticket) {
            self.remove_waiter(now, key, ticket);
        }
        // What ended before this call and was not polled yet.
        self.actions
            .retain(|action| !matches!(action, Action::Done { ticket: of, .. } if *of == ticket));
    }

    /// The deadline of a ticket passed.
    pub(super) fn deadline(&mut self, now: Duration, ticket: Ticket) {
        for key in self.tickets.close(ticket) {
            self.counts.late += 1;
            self.actions.push_back(Action::Done {
                ticket,
                key,
                verdict: Verdict::Late,
            });
            self.remove_waiter(now, key, ticket);
        }
    }

    fn add_waiter(&mut self, now: Duration, piece: Piece<K>, priority: Priority, ticket: Ticket) {
        if let Some(flight) = self.flights.get_mut(&piece.key) {
            self.counts.joins += 1;
            flight.waiters.push(ticket);
            if priority > flight.priority {
                self.counts.promotions += 1;
                self.change_priority(now, piece.key, priority);
            }
            return;
        }
        let mut flight = Flight::new(piece.bytes, priority);
        flight.waiters.push(ticket);
        self.flights.insert(piece.key, flight);
        if self.wait_for_stream(now, piece.key) {
            self.counts.joins += 1;
        } else {
            self.enqueue(now, piece.key, End::Back);
        }
    }

    fn remove_waiter(&mut self, now: Duration, key: K, ticket: Ticket) {
        let Some(flight) = self.flights.get_mut(&key) else {
            return;
        };
        flight.waiters.retain(|waiter| *waiter != ticket);
        if flight.waiters.is_empty() {
            self.abandon(now, key);
            return;
        }
        let (before, waiters) = (flight.priority, flight.waiters.clone());
        let highest = waiters
            .iter()
            .filter_map(|waiter| self.tickets.priority(*waiter))
            .max();
        if let Some(priority) = highest
            && priority != before
        {
            self.change_priority(now, key, priority);
        }
    }

    /// Cancels a flight without waiting callers.
    pub(super) fn abandon(&mut self, now: Duration, key: K) {
        let Some(flight) = self.flights.get_mut(&key) else {
            return;
        };
        if flight.legs.is_empty() {
            self.remove_flight(key);
            return;
        }
        // What was requested together with something else comes anyway; it is not requested again.
        let legs = flight.legs.clone();
        self.dequeue(key);
        for leg in legs {
            self.cancel_unless_wanted(now, leg);
        }
    }

    /// Makes a flight more or less urgent.
    fn change_priority(&mut self, now: Duration, key: K, priority: Priority) {
        let Some(flight) = self.flights.get(&key) else {
            return;
        };
        let (queued, waits) = (flight.queued.is_some(), flight.stream.is_some());
        self.dequeue(key);
        if let Some(flight) = self.flights.get_mut(&key) {
            flight.priority = priority;
            if waits {
                flight.stream = None;
            }
        }
        if waits {
            self.timers.clear(Alarm::Flight(key));
            if !self.wait_for_stream(now, key) {
                self.enqueue(now, key, End::Back);
            }
        } else if queued {
            self.enqueue(now, key, End::Back);
        } else {
            self.overtake(now, key);
            self.watch_flight(now, key);
        }
    }

    /// Requests a piece that somebody waits for once more, if it is far behind in a long request.
    fn overtake(&mut self, now: Duration, key: K) {
        let Some(flight) = self.flights.get(&key) else {
            return;
        };
        let [leg] = flight.legs[..] else {
            return;
        };
        let Some(request) = self.requests.get(&leg) else {
            return;
        };
        if flight.priority != Priority::Demand || request.priority == Priority::Demand {
            return;
        }
        let sender = &self.peers[request.peer.index()];
        let rate = sender.rate(&self.config);
        let answered = (request.sent + sender.link.rtt()).saturating_sub(now);
        let expected = answered + transfer(self.ahead(leg, &key), rate);
        let bytes = u64::from(flight.bytes) + self.queues.bytes(Priority::Demand);
        // The two requests share the line.
        if expected > sender.demand_trip(bytes, rate) * 2 {
            if let Some(flight) = self.flights.get_mut(&key) {
                flight.overtakes = true;
            }
            self.enqueue(now, key, End::Back);
        }
    }

    /// Returns the bytes that a peer owes up to the end of a piece of a request.
    fn ahead(&self, id: RequestId, key: &K) -> u64 {
        let Some(request) = self.requests.get(&id) else {
            return 0;
        };
        let before = self.peers[request.peer.index()].requests.range(..id);
        let before = before.filter_map(|other| self.requests.get(other));
        let others: u64 = before.flat_map(|other| &other.pieces).map(bytes_of).sum();
        let at = request.pieces.iter().position(|piece| piece.key == *key);
        let own = request.pieces.iter().take(at.map_or(0, |at| at + 1));
        others + own.map(bytes_of).sum::<u64>()
    }

    /// Lets a flight wait for a stream if one brings it in time, perhaps earlier than it would by itself, and
    /// returns whether it does.
    pub(super) fn wait_for_stream(&mut self, now: Duration, key: K) -> bool {
        let Some((stream, peer, ahead)) = self.streams.coming(&key) else {
            return false;
        };
        let Some(flight) = self.flights.get(&key) else {
            return false;
        };
        let urgent = flight.priority == Priority::Demand;
        let begins = self.streams.begins(stream).max(now);
        let Some(alarm) = self.stream_alarm(now, begins, peer, ahead, flight.bytes) else {
            return false;
        };
        let (later, mut alarm) = alarm;
        if urgent && later {
            // Another request would bring it twice if it is on its way already.
            if !self.peers[peer.index()].promotes || !self.streams.promote(&key) {
                return false;
            }
            self.counts.reordered += 1;
            let bytes = self.flights.get(&key).map_or(0, |flight| flight.bytes);
            let first = self.stream_alarm(now, begins, peer, u64::from(bytes), bytes);
            alarm = first.map_or(alarm, |(_, alarm)| alarm);
        }
        if urgent {
            self.timers.set(Alarm::Flight(key), alarm);
        }
        if let Some(flight) = self.flights.get_mut(&key) {
            flight.stream = Some(stream);
        }
        true
    }

    /// Returns whether a stream that comes from `begins` on brings something later than a request of its own would, and
    /// when to ask after all; `None` if the stream's peer cannot be waited for.
    fn stream_alarm(
        &self,
        now: Duration,
        begins: Duration,
        peer: Peer,
        ahead: u64,
        bytes: u32,
    ) -> Option<(bool, Duration)> {
        let sender = &self.peers[peer.index()];
        if !self.is_up(peer) {
            return None;
        }
        let rate = sender.rate(&self.config);
        let expected = begins.saturating_sub(now) + transfer(ahead, rate);
        // Connections to one server share a line: one that brought little was not measured.
        let rate_of = |other: &PeerState| match other.server == sender.server {
            true => other.rate(&self.config).min(rate),
            false => other.rate(&self.config),
        };
        let own = self
            .peers
            .iter()
            .filter(|other| other.is_up() && other.serves(Priority::Demand))
            .map(|other| other.demand_trip(u64::from(bytes), rate_of(other)))
            .min()
            .unwrap_or_else(|| sender.demand_trip(u64::from(bytes), rate));
        let grace = sender.link.variation().min(own).max(STREAM_GRACE);
        Some((expected > own, now + expected + own + grace))
    }

    /// Records that a peer will send pieces unasked, in this order, behind those that it promised before on
    /// the same stream. Pieces that were requested already are skipped.
    ///
    /// # Panics
    /// If the peer is another engine's.
    pub fn promised(&mut self, now: Duration, peer: Peer, stream: StreamId, pieces: &[Piece<K>]) {
        self.promise(now, peer, stream, now, pieces);
    }

    /// The same of a stream that comes from `begins` on.
    pub(super) fn promise(
        &mut self,
        now: Duration,
        peer: Peer,
        stream: StreamId,
        begins: Duration,
        pieces: &[Piece<K>],
    ) {
        let most = self.config.promised;
        let fresh = self.streams.promise(peer, stream, begins, pieces, most);
        for piece in fresh {
            let Some(flight) = self.flights.get(&piece.key) else {
                continue;
            };
            if flight.legs.is_empty() && flight.stream.is_none() {
                self.dequeue(piece.key);
                self.timers.clear(Alarm::Flight(piece.key));
                if !self.wait_for_stream(now, piece.key) {
                    self.enqueue(now, piece.key, End::Back);
                }
            } else {
                self.skip(piece.key);
            }
        }
        self.watch(now, peer);
    }

    /// Records that pieces are not needed from any stream: their senders are notified.
    pub fn unneeded(&mut self, now: Duration, keys: &[K]) {
        for key in keys {
            self.plan_has(key);
            let sender = self.streams.coming(key).map(|(_, peer, _)| peer);
            if self
                .flights
                .get(key)
                .is_none_or(|flight| flight.stream.is_none())
            {
                self.skip(*key);
            }
            if let Some(peer) = sender {
                self.watch(now, peer);
            }
        }
    }
}
