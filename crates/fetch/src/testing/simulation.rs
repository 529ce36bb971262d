//! The caller of an engine, in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::model::Promises;
use super::network::{Behaviour, Connection, Line, Message, Network};
use super::random::Random;
use crate::config::Config;
use crate::counts::Counts;
use crate::engine::Engine;
use crate::exchange::{Action, Lane, Outcome, Peer, Server, StreamId, Via};
use crate::want::{Piece, Priority, Ticket, Verdict};

/// A step of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A caller wants pieces, for at most `patience`. Published ones are not requested.
    Want {
        /// The pieces.
        pieces: Vec<Piece<u32>>,
        /// The priority.
        priority: Priority,
        /// The time limit.
        patience: Duration,
    },
    /// The `nth` caller loses interest.
    Leave {
        /// Counted from 0.
        nth: usize,
    },
    /// The server of a peer begins to send pieces unasked.
    Stream {
        /// The peer that sends them.
        peer: Peer,
        /// The pieces, in this order.
        pieces: Vec<Piece<u32>>,
    },
    /// There is a plan; what is published of it is not lacking.
    Plan {
        /// The peer that begins to send it unasked, if one does.
        sender: Option<Peer>,
        /// The pieces, in this order.
        pieces: Vec<Piece<u32>>,
    },
}

/// Something that will happen.
#[derive(Clone, Debug)]
enum Event {
    Step(Step),
    Up(Peer),
    Lost(Peer),
    /// A request or stream reaches a server.
    Asked(Peer, Via, Vec<Piece<u32>>),
    Skipped(Peer, StreamId, Vec<u32>),
    Promoted(Peer, StreamId, Vec<u32>),
    Cancelled(Peer, Via),
    Arrived(Peer, Message),
}

/// How one piece of a ticket ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The time.
    pub at: Duration,
    /// The piece.
    pub key: u32,
    /// The result.
    pub verdict: Verdict,
}

/// What happened in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Every end, in order.
    pub ended: Vec<Ended>,
    /// The engine's counters.
    pub counts: Counts,
    /// How many pieces were published.
    pub published: usize,
    /// Bytes that lines carried to the engine.
    pub carried_bytes: u64,
    /// Who was asked for the rest of a plan, and from which place on.
    pub resumed: Vec<(Peer, usize)>,
}

impl Report {
    /// Returns when the last piece ended.
    #[must_use]
    pub fn last(&self) -> Duration {
        self.ended.last().map_or(Duration::ZERO, |ended| ended.at)
    }

    /// Returns when a piece first ended.
    #[must_use]
    pub fn of(&self, key: u32) -> Option<Ended> {
        self.ended.iter().find(|ended| ended.key == key).copied()
    }

    /// Returns how many pieces ended in a way.
    #[must_use]
    pub fn ends(&self, verdict: Verdict) -> usize {
        self.ended
            .iter()
            .filter(|ended| ended.verdict == verdict)
            .count()
    }
}

/// One run; see [`testing`](super).
#[derive(Debug)]
pub struct Simulation {
    engine: Engine<u32>,
    model: Promises,
    network: Network,
    servers: BTreeMap<Peer, Server>,
    random: Random,
    events: BTreeMap<(Duration, u64), Event>,
    scheduled: u64,
    now: Duration,
    tickets: Vec<Ticket>,
    streams: u64,
    plan: Vec<Piece<u32>>,
    /// Those that send the rest of a plan.
    resumers: BTreeSet<Peer>,
    resumed: Vec<(Peer, usize)>,
    ended: Vec<Ended>,
    carried_bytes: u64,
    in_flight_max: u64,
}

impl Simulation {
    /// Returns a simulation without peers.
    #[must_use]
    pub fn new(config: Config, seed: u64) -> Self {
        Self {
            engine: Engine::new(config),
            model: Promises::new(config),
            network: Network::default(),
            servers: BTreeMap::new(),
            random: Random::new(seed),
            events: BTreeMap::new(),
            scheduled: 0,
            now: Duration::ZERO,
            tickets: Vec::new(),
            streams: 0,
            plan: Vec::new(),
            resumers: BTreeSet::new(),
            resumed: Vec::new(),
            ended: Vec::new(),
            carried_bytes: 0,
            in_flight_max: config.in_flight_bytes,
        }
    }

    /// Adds a line, and returns its number.
    pub fn line(&mut self, line: Line) -> usize {
        self.network.add_line(line)
    }

    /// Adds a connection to a server on a line; it is up from the start, and its round trip measured.
    pub fn peer(&mut self, server: Server, lane: Lane, line: usize, habits: Behaviour) -> Peer {
        let peer = self.engine.add_peer(server, lane);
        self.servers.insert(peer, server);
        if let Some(dies) = habits.dies.clone() {
            self.schedule(dies.start, Event::Lost(peer));
            self.schedule(dies.end, Event::Up(peer));
        }
        let connection = Connection::new(line, habits);
        self.network.connections.insert(peer, connection);
        let rtt = self.network.delay(peer) * 2;
        self.engine.on_peer_up(Duration::ZERO, peer, Some(rtt));
        peer
    }

    /// Has the server of a peer send pieces of streams earlier when it is told to, as long as its connection
    /// stands.
    pub fn allow_promotion(&mut self, peer: Peer) {
        self.engine.allow_promotion(peer);
    }

    /// Has the server of a peer send the rest of a plan when it is asked for it, whenever its connection stands.
    pub fn allow_resuming(&mut self, peer: Peer) {
        self.resumers.insert(peer);
        self.engine.allow_resuming(peer);
    }

    /// Adds a step of the script.
    pub fn at(&mut self, at: Duration, step: Step) {
        self.schedule(at, Event::Step(step));
    }

    /// Runs until nothing happens any more, and checks every step.
    ///
    /// # Panics
    /// If the engine breaks a promise.
    #[must_use]
    pub fn run(mut self) -> Report {
        // Every run ends: tickets have deadlines, and retries are bounded. Loops without progress
        // are found by this bound on the steps.
        for _ in 0..10_000_000_u64 {
            self.settle();
            let next = [
                self.events.first_key_value().map(|((at, _), _)| *at),
                self.network.next(self.now),
                self.engine.next_wake(),
            ];
            let Some(next) = next.into_iter().flatten().min() else {
                self.model.check_end();
                return Report {
                    ended: self.ended,
                    counts: self.engine.counts(),
                    published: self.model.published(),
                    carried_bytes: self.carried_bytes,
                    resumed: self.resumed,
                };
            };
            self.now = self.now.max(next);
            while let Some(event) = self.due() {
                self.happen(event);
                self.follow();
            }
        }
        panic!("the run does not end");
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        self.scheduled += 1;
        self.events.insert((at, self.scheduled), event);
    }

    fn due(&mut self) -> Option<Event> {
        let first = self.events.first_entry()?;
        (first.key().0 <= self.now).then(|| first.remove())
    }

    /// Does what the engine says.
    fn follow(&mut self) {
        while let Some(action) = self.engine.poll(self.now) {
            self.act(action);
            self.model.check(&self.engine);
            let peers = self.servers.keys();
            let in_flight: u64 = peers
                .map(|peer| self.engine.link(*peer).in_flight_bytes)
                .sum();
            assert!(in_flight <= self.in_flight_max, "{in_flight} in flight");
        }
    }

    /// Does what the engine says, and has the lines send.
    fn settle(&mut self) {
        self.follow();
        for sent in self.network.send(self.now, &mut self.random) {
            self.schedule(sent.arrives, Event::Arrived(sent.peer, sent.message));
        }
    }

    fn act(&mut self, action: Action<u32>) {
        match action {
            Action::Request {
                peer,
                request,
                pieces,
                ..
            } => {
                let server = self.servers[&peer];
                self.model
                    .requested(self.now, peer, server, request, &pieces);
                let via = Via::Request(request);
                self.travel(peer, Event::Asked(peer, via, pieces));
            }
            Action::Skip { peer, stream, keys } => {
                self.travel(peer, Event::Skipped(peer, stream, keys));
            }
            Action::Promote { peer, stream, keys } => {
                self.travel(peer, Event::Promoted(peer, stream, keys));
            }
            Action::Cancel { peer, request } => {
                self.model.cancelled(request);
                self.travel(peer, Event::Cancelled(peer, Via::Request(request)));
            }
            Action::Resume {
                peer,
                stream,
                first,
            } => {
                self.resumed.push((peer, first));
                let rest = self.plan[first..].to_vec();
                self.travel(peer, Event::Asked(peer, Via::Stream(stream), rest));
            }
            Action::EndStream { peer, stream } => {
                self.travel(peer, Event::Cancelled(peer, Via::Stream(stream)));
            }
            Action::Stalled { peer } => self.model.lost(peer),
            Action::Done {
                ticket,
                key,
                verdict,
            } => {
                self.model.ended(self.now, ticket, key, verdict);
                let at = self.now;
                self.ended.push(Ended { at, key, verdict });
            }
        }
    }

    fn travel(&mut self, peer: Peer, event: Event) {
        self.schedule(self.now + self.network.delay(peer), event);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Step(step) => self.step(step),
            Event::Up(peer) => {
                let rtt = self.network.delay(peer) * 2;
                self.engine.on_peer_up(self.now, peer, Some(rtt));
                if self.resumers.contains(&peer) {
                    self.engine.allow_promotion(peer);
                    self.engine.allow_resuming(peer);
                }
            }
            Event::Lost(peer) => {
                self.connection(peer).close();
                self.events.retain(|_, event| !event.is_of(peer));
                self.model.lost(peer);
                self.engine.on_peer_lost(self.now, peer);
            }
            Event::Asked(peer, via, pieces) => self.connection(peer).ask(via, &pieces),
            Event::Skipped(peer, stream, keys) => {
                let via = Via::Stream(stream);
                self.connection(peer).drop_unsent(via, Some(&keys));
            }
            Event::Promoted(peer, stream, keys) => {
                self.connection(peer).promote(Via::Stream(stream), &keys);
            }
            Event::Cancelled(peer, via) => self.connection(peer).drop_unsent(via, None),
            Event::Arrived(peer, message) => self.arrived(peer, message),
        }
    }

    fn connection(&mut self, peer: Peer) -> &mut Connection {
        let connections = &mut self.network.connections;
        connections.get_mut(&peer).expect("a peer of this run")
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Want {
                mut pieces,
                priority,
                patience,
            } => {
                pieces.retain(|piece| !self.model.has(piece.key));
                // One piece that is larger than the bound goes alone.
                let largest = pieces.iter().map(|piece| u64::from(piece.bytes)).max();
                self.in_flight_max = self.in_flight_max.max(largest.unwrap_or(0));
                let deadline = self.now + patience;
                let ticket = self.engine.want(self.now, &pieces, priority, deadline);
                self.model.wanted(ticket, &pieces, deadline);
                self.tickets.push(ticket);
            }
            Step::Leave { nth } => {
                if let Some(ticket) = self.tickets.get(nth).copied() {
                    self.engine.leave(self.now, ticket);
                    self.model.left(ticket);
                }
            }
            Step::Stream { peer, mut pieces } => {
                pieces.retain(|piece| !self.model.has(piece.key));
                let _begun = self.stream(peer, &pieces);
            }
            Step::Plan { sender, pieces } => {
                let lacking = pieces.iter().copied();
                let lacking: Vec<_> = lacking.filter(|piece| !self.model.has(piece.key)).collect();
                let stream = sender.and_then(|peer| self.stream(peer, &lacking));
                let model = &self.model;
                let lacks = |key: &u32| !model.has(*key);
                self.engine.plan(&pieces, stream, lacks);
                self.plan = pieces;
            }
        }
    }

    /// Has a peer send pieces unasked, if it can.
    fn stream(&mut self, peer: Peer, pieces: &[Piece<u32>]) -> Option<StreamId> {
        if !self.engine.is_up(peer) {
            return None;
        }
        self.streams += 1;
        let stream = StreamId(self.streams);
        self.engine.promised(self.now, peer, stream, pieces);
        // The promise came with the stream's head: its pieces are right behind.
        self.connection(peer).ask(Via::Stream(stream), pieces);
        Some(stream)
    }

    fn arrived(&mut self, peer: Peer, message: Message) {
        match message {
            Message::Piece {
                via,
                piece,
                outcome,
            } => {
                let bytes = match outcome {
                    Outcome::Here | Outcome::Wrong => piece.bytes,
                    Outcome::Absent | Outcome::Busy | Outcome::Failed => 0,
                };
                self.carried_bytes += u64::from(bytes);
                let key = piece.key;
                let arrival = self
                    .engine
                    .on_piece(self.now, peer, via, key, outcome, bytes);
                if let Via::Request(request) = via {
                    self.model.answered(request, key);
                }
                let server = self.servers[&peer];
                self.model.came(server, key, outcome, arrival);
            }
            Message::StreamEnd(stream) => self.engine.on_stream_end(self.now, stream),
            Message::Part => self.engine.on_progress(self.now, peer),
        }
    }
}

impl Event {
    /// Whether it is lost with a peer's connection.
    fn is_of(&self, peer: Peer) -> bool {
        match self {
            Self::Asked(of, ..)
            | Self::Skipped(of, ..)
            | Self::Promoted(of, ..)
            | Self::Cancelled(of, _)
            | Self::Arrived(of, _) => *of == peer,
            Self::Step(_) | Self::Up(_) | Self::Lost(_) => false,
        }
    }
}
