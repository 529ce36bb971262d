//! What an engine promises, checked with plain lists.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::config::Config;
use crate::engine::Engine;
use crate::exchange::{Arrival, Outcome, Peer, RequestId, Server};
use crate::want::{Key, Piece, Ticket, Verdict};

/// One ticket.
#[derive(Debug)]
struct Held {
    open: BTreeSet<u32>,
    deadline: Duration,
}

/// The naive model: it receives each step, and panics when a promise is broken.
#[derive(Debug)]
pub struct Promises {
    config: Config,
    tickets: BTreeMap<Ticket, Held>,
    /// The published pieces.
    published: BTreeSet<u32>,
    /// The servers that reported, since a caller waits for a key, that they do not have it.
    refused: BTreeSet<(u32, Server)>,
    /// The keys, peer and time of each open request.
    open: BTreeMap<RequestId, (Peer, Duration, BTreeSet<u32>)>,
    /// How often a key was requested since a caller waits for it.
    attempts: BTreeMap<u32, usize>,
    wrong: BTreeMap<Server, u32>,
}

impl Promises {
    /// Returns the model of an engine with a configuration.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            tickets: BTreeMap::new(),
            published: BTreeSet::new(),
            refused: BTreeSet::new(),
            open: BTreeMap::new(),
            attempts: BTreeMap::new(),
            wrong: BTreeMap::new(),
        }
    }

    /// Whether a key was published.
    #[must_use]
    pub fn has(&self, key: u32) -> bool {
        self.published.contains(&key)
    }

    /// Returns the keys that were published.
    #[must_use]
    pub fn published(&self) -> usize {
        self.published.len()
    }

    /// Records a ticket.
    pub fn wanted(&mut self, ticket: Ticket, pieces: &[Piece<u32>], deadline: Duration) {
        let open = pieces.iter().map(|piece| piece.key).collect();
        if pieces.is_empty() {
            return;
        }
        let before = self.tickets.insert(ticket, Held { open, deadline });
        assert!(before.is_none(), "a ticket has one name");
    }

    /// Records that a ticket was cancelled.
    pub fn left(&mut self, ticket: Ticket) {
        if let Some(held) = self.tickets.remove(&ticket) {
            for key in held.open {
                self.forget(key);
            }
        }
    }

    /// Checks a request.
    pub fn requested(
        &mut self,
        now: Duration,
        peer: Peer,
        server: Server,
        request: RequestId,
        pieces: &[Piece<u32>],
    ) {
        assert!(!pieces.is_empty() && pieces.len() <= self.config.batch);
        assert!(
            self.wrong.get(&server).copied().unwrap_or(0) < self.config.wrong_limit,
            "a server that lies is left"
        );
        for piece in pieces {
            let key = piece.key;
            assert!(self.is_wanted(key), "{key} is requested for nobody");
            assert!(!self.has(key), "{key} is requested although it is there");
            assert!(
                !self.refused.contains(&(key, server)),
                "{key} is requested from one who does not have it"
            );
            // What was not answered for long may be asked for again.
            let recent = self.open.values().any(|(of, since, keys)| {
                *of == peer && keys.contains(&key) && now < *since + self.config.stall_floor
            });
            assert!(!recent, "{key} is requested twice from one peer");
            let attempts = self.attempts.entry(key).or_default();
            *attempts += 1;
            // Each attempt may be hedged once; who does not have it costs no retry.
            let refusals = self.refused.iter().filter(|(of, _)| *of == key).count();
            let most = 2 * (usize::from(self.config.retries) + 1 + refusals);
            assert!(*attempts <= most, "{key} is requested {attempts} times");
        }
        let keys = pieces.iter().map(|piece| piece.key).collect();
        self.open.insert(request, (peer, now, keys));
    }

    /// Records that a request is over before all of its pieces had a response.
    pub fn cancelled(&mut self, request: RequestId) {
        self.open.remove(&request);
    }

    /// Records that all requests to a peer are over.
    pub fn lost(&mut self, peer: Peer) {
        self.open.retain(|_, (of, ..)| *of != peer);
    }

    /// Records a piece without a response in time, which is requested elsewhere.
    pub fn answered(&mut self, request: RequestId, key: u32) {
        if let Some((.., keys)) = self.open.get_mut(&request) {
            keys.remove(&key);
            if keys.is_empty() {
                self.open.remove(&request);
            }
        }
    }

    /// Checks the engine's decision about received data.
    pub fn came(&mut self, server: Server, key: u32, outcome: Outcome, arrival: Arrival) {
        match outcome {
            Outcome::Wrong => {
                *self.wrong.entry(server).or_default() += 1;
                self.refuse(key, server);
            }
            Outcome::Absent => self.refuse(key, server),
            Outcome::Here | Outcome::Busy | Outcome::Failed => {}
        }
        if arrival == Arrival::First {
            assert_eq!(outcome, Outcome::Here, "only right bytes are published");
            assert!(self.published.insert(key), "{key} is published twice");
        } else {
            assert!(
                outcome != Outcome::Here || self.has(key) || !self.is_wanted(key),
                "{key} is dropped although somebody waits"
            );
        }
    }

    /// Checks the end of a piece.
    pub fn ended(&mut self, now: Duration, ticket: Ticket, key: u32, verdict: Verdict) {
        let held = self.tickets.get_mut(&ticket).expect("a ticket that waits");
        assert!(held.open.remove(&key), "{key} ends once");
        assert!(now <= held.deadline, "{key} ends after its deadline");
        assert_eq!(
            verdict == Verdict::Late,
            now == held.deadline && verdict == Verdict::Late
        );
        if held.open.is_empty() {
            self.tickets.remove(&ticket);
        }
        assert_eq!(
            verdict == Verdict::Here,
            self.has(key),
            "{key} is here if it was published: {verdict:?}"
        );
        self.forget(key);
    }

    /// Checks what holds between any two steps.
    pub fn check<K: Key>(&self, engine: &Engine<K>) {
        let (flights, waiting) = (engine.flights(), engine.waiting());
        let counts = engine.counts();
        assert!(flights <= self.config.flights, "{flights} flights");
        assert!(waiting <= self.config.waiting, "{waiting} wait");
        assert!(
            counts.hedges <= 8 + counts.requested / 20,
            "too many hedges: {counts:?}"
        );
    }

    /// Checks that no caller waits any more.
    pub fn check_end(&self) {
        assert!(self.tickets.is_empty(), "{:?} wait for ever", self.tickets);
    }

    fn is_wanted(&self, key: u32) -> bool {
        self.tickets.values().any(|held| held.open.contains(&key))
    }

    fn refuse(&mut self, key: u32, server: Server) {
        if self.is_wanted(key) {
            self.refused.insert((key, server));
        }
    }

    /// Forgets the attempts for a key if nobody waits for it any more.
    fn forget(&mut self, key: u32) {
        if !self.is_wanted(key) {
            self.attempts.remove(&key);
            self.refused.retain(|(refused, _)| *refused != key);
        }
    }
}
