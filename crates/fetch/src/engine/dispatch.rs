//! Assigns queued pieces to peers.

use std::cmp::Reverse;
use std::time::Duration;

use super::wanting::End;
use super::{Alarm, Engine};
use crate::exchange::{Action, Peer, RequestId, Server};
use crate::flights::{Flight, Request};
use crate::want::{Key, Piece, Priority, Verdict};

/// How far behind the first of a queue a piece is looked for that can be requested now.
const SCAN: usize = 256;
/// A fill leaves this part of what may be on its way to what is wanted more, and that waits for as much.
const KEPT_FREE: u64 = 8;
/// So many times as long as else, a response is not late beside a stream of its server.
const BESIDE_STREAM: u32 = 5;

impl<K: Key> Engine<K> {
    /// Queues a flight; ends it if no peer can be asked for it and no stream brings it.
    pub(super) fn enqueue(&mut self, now: Duration, key: K, end: End) {
        let Some(flight) = self.flights.get(&key) else {
            return;
        };
        if flight.queued.is_some() {
            return;
        }
        if self.can_be_asked(flight) {
            let (priority, bytes) = (flight.priority, flight.bytes);
            let turn = match end {
                End::Front => self.queues.push_front(priority, key, bytes),
                End::Back => self.queues.push_back(priority, key, bytes),
            };
            if let Some(flight) = self.flights.get_mut(&key) {
                flight.queued = Some(turn);
            }
        } else if !flight.is_moving() {
            let verdict = self.reason(flight);
            self.finish(now, key, verdict);
        }
    }

    pub(super) fn dequeue(&mut self, key: K) {
        if let Some(flight) = self.flights.get_mut(&key)
            && let Some(turn) = flight.queued.take()
        {
            self.queues.remove(flight.priority, turn);
        }
    }

    /// Ends queued flights without a peer, after a peer was lost.
    pub(super) fn settle_queues(&mut self, now: Duration) {
        let mut vain = Vec::new();
        for priority in [Priority::Demand, Priority::Plan, Priority::Fill] {
            vain.extend(self.queues.at(priority).filter(|key| {
                self.flights
                    .get(key)
                    .is_some_and(|flight| !self.can_be_asked(flight))
            }));
        }
        for key in vain {
            self.dequeue(key);
            self.enqueue(now, key, End::Back);
        }
    }

    /// Why no peer can be asked for a flight.
    fn reason(&self, flight: &Flight) -> Verdict {
        let unreachable = self
            .peers
            .iter()
            .any(|peer| !peer.is_up() && !flight.refused.contains(&peer.server));
        match flight.why {
            Some(why) if !unreachable => why,
            _ => Verdict::Away,
        }
    }

    fn can_be_asked(&self, flight: &Flight) -> bool {
        self.indexes().any(|peer| self.may_ask(peer, flight))
    }

    pub(super) fn indexes(&self) -> impl Iterator<Item = Peer> + use<K> {
        (0..self.peers.len())
            .filter_map(|index| u16::try_from(index).ok())
            .map(Peer)
    }

    /// Returns whether a peer is up, may have a piece, and was not asked for it already.
    pub(super) fn may_ask(&self, peer: Peer, flight: &Flight) -> bool {
        let state = &self.peers[peer.index()];
        state.is_up()
            && !flight.refused.contains(&state.server)
            && !flight.legs.iter().any(|leg| {
                self.requests
                    .get(leg)
                    .is_some_and(|request| request.peer == peer)
            })
    }

    /// Returns the next request, if there is something to request and room for it.
    pub(super) fn dispatch(&mut self, now: Duration) -> Option<Action<K>> {
        for priority in [Priority::Demand, Priority::Plan, Priority::Fill] {
            if let Some((peer, pieces)) = self.batch(priority) {
                return Some(self.request(now, peer, priority, pieces));
            }
            // What is wanted less would be ahead of it.
            if self.queues.bytes(priority) > 0 && priority == Priority::Plan {
                return None;
            }
        }
        None
    }

    /// Collects what one peer can be asked for.
    fn batch(&self, priority: Priority) -> Option<(Peer, Vec<Piece<K>>)> {
        let queued = self.queues.bytes(priority);
        let mut states = self.peers.iter();
        // Most polls come while the windows are full: they are to cost little.
        if queued == 0
            || !states.any(|peer| peer.is_up() && peer.room(priority, queued, &self.config) > 0)
        {
            return None;
        }
        let mut open = self.in_flight();
        let limit = self.most_in_flight(priority);
        let room = limit.saturating_sub(open);
        // What nobody waits for goes in few requests: at the limit of all, each answer would make room for a piece.
        let waits = match priority {
            Priority::Fill => open > self.config.in_flight_bytes / 2,
            Priority::Plan => queued > room && room < limit / KEPT_FREE,
            Priority::Demand => false,
        };
        if waits && open > 0 {
            return None;
        }
        let mut chosen: Option<(Peer, u64)> = None;
        let mut chosen_for_all = false;
        let mut pieces = Vec::new();
        for key in self.queues.at(priority).take(SCAN) {
            let Some(flight) = self.flights.get(&key) else {
                continue;
            };
            let bytes = u64::from(flight.bytes);
            if open > 0 && open + bytes > limit {
                break;
            }
            let is_new = flight.is_new();
            let (peer, room) = match chosen {
                Some(choice) if is_new && chosen_for_all => choice,
                Some((peer, room)) if self.suits(peer, flight, priority) => (peer, room),
                Some(_) => continue,
                None => match self.choose(flight, priority) {
                    Some(choice) => choice,
                    // Those that were requested before are ahead of it, and all others are like it.
                    None if is_new => break,
                    None => continue,
                },
            };
            chosen_for_all |= is_new;
            // A piece that is larger than the window goes alone.
            if bytes > room && !(pieces.is_empty() && self.peers[peer.index()].in_flight() == 0) {
                if pieces.is_empty() {
                    continue;
                }
                break;
            }
            pieces.push(Piece {
                key,
                bytes: flight.bytes,
            });
            open += bytes;
            chosen = Some((peer, room.saturating_sub(bytes)));
            if pieces.len() >= self.config.batch {
                break;
            }
        }
        let (peer, _) = chosen?;
        (!pieces.is_empty()).then_some((peer, pieces))
    }

    /// How many bytes may be on their way, with those of a request of a priority.
    const fn most_in_flight(&self, priority: Priority) -> u64 {
        let all = self.config.in_flight_bytes;
        match priority {
            Priority::Fill => all - all / KEPT_FREE,
            Priority::Plan | Priority::Demand => all,
        }
    }

    fn in_flight(&self) -> u64 {
        self.peers.iter().map(|peer| peer.in_flight()).sum()
    }

    /// Whether a peer is to be asked for a piece: not of the server that failed last, not a reserve, and one meant for
    /// the priority, unless there is nobody else.
    fn suits(&self, peer: Peer, flight: &Flight, priority: Priority) -> bool {
        let failed = flight.failed_on;
        let failed_server = failed.map(|failed| self.peers[failed.index()].server);
        let rank = |peer: Peer| {
            let state = &self.peers[peer.index()];
            let server_failed = failed_server == Some(state.server);
            let other_lane = !state.serves(priority);
            (
                server_failed,
                state.reserve,
                failed == Some(peer),
                other_lane,
            )
        };
        self.may_ask(peer, flight)
            && self
                .indexes()
                .filter(|other| self.may_ask(*other, flight))
                .all(|other| rank(peer) <= rank(other))
    }

    /// Chooses who is asked for a piece, and says how many bytes of room it has: who has room and
    /// will answer first.
    fn choose(&self, flight: &Flight, priority: Priority) -> Option<(Peer, u64)> {
        let queued = self.queues.bytes(priority);
        self.indexes()
            .map(|peer| {
                let room = self.peers[peer.index()].room(priority, queued, &self.config);
                (peer, room)
            })
            .filter(|(peer, room)| *room > 0 && self.suits(*peer, flight, priority))
            .min_by_key(|(peer, room)| {
                let state = &self.peers[peer.index()];
                let expected = state.expected(u64::from(flight.bytes), &self.config);
                (expected, Reverse(*room), *peer)
            })
    }

    /// Opens a request.
    fn request(
        &mut self,
        now: Duration,
        peer: Peer,
        priority: Priority,
        pieces: Vec<Piece<K>>,
    ) -> Action<K> {
        self.requested += 1;
        let id = RequestId(self.requested);
        self.counts.requests += 1;
        self.counts.requested += pieces.len() as u64;
        self.budget.earn(pieces.len());
        let bytes = pieces.iter().map(|piece| u64::from(piece.bytes)).sum();
        // What a stream of the same server brings on the same line goes before the response: that is not late.
        let beside_stream = self.is_streamed_by(self.peers[peer.index()].server);
        let hedge_floor = self.config.hedge_floor * if beside_stream { BESIDE_STREAM } else { 1 };
        let state = &mut self.peers[peer.index()];
        let expected = state.expected(bytes, &self.config);
        let patience = state.patience(&self.config);
        state.requested(priority, bytes);
        state.requests.insert(id);
        state.counts.requests += 1;
        let request = Request {
            peer,
            priority,
            sent: now,
            late: now + (expected * 2).max(hedge_floor),
            // Only what its server forgot is lost without any other sign.
            lost: now + patience + expected * 8,
            behind: state.link.delivered_bytes() + state.in_flight(),
            silent: true,
            pieces: pieces.clone(),
        };
        self.timers.set(Alarm::Request(id), request.lost);
        self.requests.insert(id, request);
        for piece in &pieces {
            self.dequeue(piece.key);
            if let Some(flight) = self.flights.get_mut(&piece.key) {
                let overtakes = std::mem::take(&mut flight.overtakes);
                match flight.legs.is_empty() {
                    true => {}
                    false if overtakes => self.counts.overtakes += 1,
                    false => self.counts.hedges += 1,
                }
                flight.legs.push(id);
            }
            self.skip(piece.key);
            self.watch_flight(now, piece.key);
        }
        self.watch(now, peer);
        Action::Request {
            peer,
            request: id,
            pieces,
            priority,
        }
    }

    /// Whether a peer of a server sends a stream.
    fn is_streamed_by(&self, server: Server) -> bool {
        self.indexes().any(|peer| {
            let state = &self.peers[peer.index()];
            state.server == server && state.is_up() && self.streams.owes(peer)
        })
    }

    /// Notifies the sender of a stream that a piece is not needed.
    pub(super) fn skip(&mut self, key: K) {
        if self.streams.skip(&key) {
            self.counts.skips += 1;
        }
    }

    /// Sets the alarm of a requested flight that a caller waits for: when it is late, and when it is lost. For all
    /// others there is the alarm of the request.
    pub(super) fn watch_flight(&mut self, now: Duration, key: K) {
        let Some(flight) = self.flights.get(&key) else {
            return;
        };
        if flight.priority != Priority::Demand {
            return;
        }
        let requests = || flight.legs.iter().filter_map(|leg| self.requests.get(leg));
        let Some(lost) = requests().map(|request| request.lost).min() else {
            return;
        };
        // It was lost, but may still be behind others: look again.
        let lost = if lost > now {
            lost
        } else {
            now + self.config.stall_floor
        };
        let late = requests().map(|request| request.late).max().unwrap_or(lost);
        let hedges = flight.legs.len() == 1 && late > now;
        let at = if hedges { late.min(lost) } else { lost };
        self.timers.set(Alarm::Flight(key), at);
    }
}
