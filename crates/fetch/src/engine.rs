//! The state machine.

mod arrivals;
mod dispatch;
mod lateness;
mod partners;
mod resuming;
mod servers;
mod wanting;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use crate::budget::HedgeBudget;
use crate::config::Config;
use crate::counts::{Counts, PeerCounts};
use crate::exchange::{Action, Peer, RequestId, Server};
use crate::flights::{Flight, Request};
use crate::peers::PeerState;
use crate::plan::Plan;
use crate::queue::Queues;
use crate::streams::Streams;
use crate::tickets::Tickets;
use crate::timers::Timers;
use crate::want::{Key, Ticket, Verdict};

/// What an alarm is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm<K> {
    /// The deadline of a ticket.
    Ticket(Ticket),
    /// A flight is late, or may be tried again.
    Flight(K),
    /// What was not answered of a request may be lost.
    Request(RequestId),
    /// A peer may have stalled.
    Peer(Peer),
    /// A server may be believed again.
    Server(Server),
}

/// The measured properties of the path to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// The smoothed round trip, with what responses wait for at the server.
    pub rtt: Duration,
    /// The highest rate of late in bytes per second; 0 before the first measurement.
    pub rate: u64,
    /// How many bytes may be requested at a time.
    pub window_bytes: u64,
    /// How many bytes are requested and did not come.
    pub in_flight_bytes: u64,
}

/// Decides what is requested, from which peer, and when; see the documentation of the crate.
#[derive(Debug)]
pub struct Engine<K> {
    config: Config,
    peers: Vec<PeerState>,
    /// How many wrong pieces each server sent.
    wrong: BTreeMap<Server, u32>,
    /// Whether a reader found a wrong piece after it was published.
    verified_later: bool,
    flights: HashMap<K, Flight>,
    requests: HashMap<RequestId, Request<K>>,
    requested: u64,
    queues: Queues<K>,
    streams: Streams<K>,
    plan: Option<Plan<K>>,
    tickets: Tickets<K>,
    timers: Timers<Alarm<K>>,
    actions: VecDeque<Action<K>>,
    budget: HedgeBudget,
    counts: Counts,
}

impl<K: Key> Engine<K> {
    /// Returns an engine without peers.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            peers: Vec::new(),
            wrong: BTreeMap::new(),
            verified_later: false,
            flights: HashMap::new(),
            requests: HashMap::new(),
            requested: 0,
            queues: Queues::new(),
            streams: Streams::new(),
            plan: None,
            tickets: Tickets::new(),
            timers: Timers::new(),
            actions: VecDeque::new(),
            budget: HedgeBudget::new(),
            counts: Counts::default(),
        }
    }

    /// Returns the next action. Call it until it returns `None`, after each other call and at
    /// [`next_wake`](Self::next_wake). Report received pieces before polling: a poll decides which peers are late.
    pub fn poll(&mut self, now: Duration) -> Option<Action<K>> {
        while let Some(alarm) = self.timers.pop(now) {
            self.ring(now, alarm);
        }
        self.resume(now);
        self.actions
            .pop_front()
            .or_else(|| self.dispatch(now))
            .or_else(|| self.next_promotion())
            .or_else(|| self.next_skip())
    }

    /// Returns when to poll again if nothing happens until then; `None` if nothing is expected.
    #[must_use]
    pub fn next_wake(&self) -> Option<Duration> {
        self.timers.next()
    }

    /// Returns what happened so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the properties of the path to a peer.
    ///
    /// # Panics
    /// If the peer is another engine's.
    #[must_use]
    pub fn link(&self, peer: Peer) -> LinkState {
        let peer = &self.peers[peer.index()];
        LinkState {
            rtt: peer.link.rtt(),
            rate: peer.link.measured_rate().unwrap_or(0),
            window_bytes: peer.window(&self.config),
            in_flight_bytes: peer.in_flight(),
        }
    }

    /// Returns what came from a peer so far.
    ///
    /// # Panics
    /// If the peer is another engine's.
    #[must_use]
    pub fn peer_counts(&self, peer: Peer) -> PeerCounts {
        self.peers[peer.index()].counts
    }

    /// Returns how many pieces are being fetched or queued.
    #[must_use]
    pub fn flights(&self) -> usize {
        self.flights.len()
    }

    /// Returns how many pieces of tickets did not end.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.tickets.waiting()
    }

    fn ring(&mut self, now: Duration, alarm: Alarm<K>) {
        match alarm {
            Alarm::Ticket(ticket) => self.deadline(now, ticket),
            Alarm::Flight(key) => self.flight_late(now, key),
            Alarm::Request(id) => self.request_late(now, id),
            Alarm::Peer(peer) => self.peer_silent(now, peer),
            Alarm::Server(server) => self.believe(now, server),
        }
    }

    fn next_promotion(&mut self) -> Option<Action<K>> {
        let (peer, stream, keys) = self.streams.next_promotion(self.config.batch)?;
        Some(Action::Promote { peer, stream, keys })
    }

    fn next_skip(&mut self) -> Option<Action<K>> {
        let (peer, stream, keys) = self.streams.next_skip(self.config.batch)?;
        Some(Action::Skip { peer, stream, keys })
    }

    /// Ends a flight: tells all who wait, and gives up the requests that nobody needs now.
    fn finish(&mut self, now: Duration, key: K, verdict: Verdict) {
        let Some(flight) = self.remove_flight(key) else {
            return;
        };
        for ticket in flight.waiters {
            self.actions.push_back(Action::Done {
                ticket,
                key,
                verdict,
            });
            if self.tickets.end_one(ticket, &key) {
                self.timers.clear(Alarm::Ticket(ticket));
            }
        }
        for leg in flight.legs {
            self.cancel_unless_wanted(now, leg);
        }
    }

    /// Takes a flight out of the table, the queue and the timers.
    fn remove_flight(&mut self, key: K) -> Option<Flight> {
        let flight = self.flights.remove(&key)?;
        if let Some(turn) = flight.queued {
            self.queues.remove(flight.priority, turn);
        }
        self.timers.clear(Alarm::Flight(key));
        Some(flight)
    }

    /// Cancels a request if no caller waits for any part of it.
    fn cancel_unless_wanted(&mut self, now: Duration, id: RequestId) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let wanted = request.pieces.iter().any(|piece| {
            self.flights
                .get(&piece.key)
                .is_some_and(|flight| flight.legs.contains(&id) && !flight.waiters.is_empty())
        });
        if !wanted {
            self.cancel(now, id);
        }
    }

    /// Cancels a request, and drops the flights that only it was for.
    fn cancel(&mut self, now: Duration, id: RequestId) {
        let Some(request) = self.drop_request(now, id) else {
            return;
        };
        self.counts.cancelled += 1;
        self.actions.push_back(Action::Cancel {
            peer: request.peer,
            request: id,
        });
        for piece in request.pieces {
            self.lose_leg(piece.key, id);
        }
    }

    /// Takes a request out of a flight, and drops the flight if nothing is left of it.
    fn lose_leg(&mut self, key: K, id: RequestId) {
        let Some(flight) = self.flights.get_mut(&key) else {
            return;
        };
        flight.legs.retain(|leg| *leg != id);
        if flight.waiters.is_empty() && !flight.is_moving() {
            self.remove_flight(key);
        }
    }

    /// Takes a request out of the tables, with what was not answered of it.
    fn drop_request(&mut self, now: Duration, id: RequestId) -> Option<Request<K>> {
        let request = self.requests.remove(&id)?;
        self.timers.clear(Alarm::Request(id));
        let peer = &mut self.peers[request.peer.index()];
        peer.requests.remove(&id);
        for piece in &request.pieces {
            peer.settled(request.priority, u64::from(piece.bytes));
        }
        self.watch(now, request.peer);
        Some(request)
    }
}
