//! Data from peers.

use std::time::Duration;

use super::{Alarm, Engine};
use crate::exchange::{Arrival, Outcome, Peer, RequestId, StreamId, Via};
use crate::peers::Trust;
use crate::want::{Key, Verdict};

/// Whether a piece was owed by whoever sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// On this request or stream, so many bytes before compression.
    Bytes(u32),
    No,
}

impl<K: Key> Engine<K> {
    /// Records that data came from a peer, a part of a piece for example: it is not stalled.
    ///
    /// # Panics
    /// If the peer is another engine's.
    pub fn on_progress(&mut self, now: Duration, peer: Peer) {
        self.hear(now, peer);
    }

    /// Records the result for one piece, of `bytes` bytes; the caller has verified it. Returns
    /// what to do with the bytes. Where [`on_wrong`](Self::on_wrong) tells that pieces are verified later, those of a server
    /// that is left are unneeded.
    ///
    /// # Panics
    /// If the peer is another engine's.
    pub fn on_piece(
        &mut self,
        now: Duration,
        peer: Peer,
        via: Via,
        key: K,
        outcome: Outcome,
        bytes: u32,
    ) -> Arrival {
        self.hear(now, peer);
        let owed = match via {
            Via::Request(request) => self.answered(now, peer, request, key),
            Via::Stream(stream) => self.streamed(peer, stream, key),
        };
        let length = match owed {
            Expected::Bytes(length) => length,
            Expected::No => bytes,
        };
        self.counts.received_bytes += u64::from(bytes);
        let state = &mut self.peers[peer.index()];
        state.counts.received_bytes += u64::from(bytes);
        if outcome == Outcome::Here {
            state.counts.pieces += 1;
            state.link.delivered(now, u64::from(length));
        }
        let is_doubted = self.verified_later && state.trust != Trust::Full;
        let arrival = match outcome {
            Outcome::Here if is_doubted => self.duplicate(bytes),
            Outcome::Here => self.here(now, key, via, owed, bytes),
            Outcome::Absent | Outcome::Busy | Outcome::Failed | Outcome::Wrong => {
                self.not_here(now, peer, key, via, outcome);
                Arrival::Unneeded
            }
        };
        self.watch(now, peer);
        arrival
    }

    /// Takes one piece out of a request.
    fn answered(&mut self, now: Duration, peer: Peer, id: RequestId, key: K) -> Expected {
        let Some(request) = self.requests.get_mut(&id) else {
            return Expected::No;
        };
        let at = request.pieces.iter().position(|piece| piece.key == key);
        let (true, Some(at)) = (request.peer == peer, at) else {
            return Expected::No;
        };
        let piece = request.pieces.remove(at);
        let state = &mut self.peers[peer.index()];
        state.settled(request.priority, u64::from(piece.bytes));
        if request.silent {
            request.silent = false;
            state.link.round_trip(now, now.saturating_sub(request.sent));
        }
        if request.pieces.is_empty() {
            self.requests.remove(&id);
            state.requests.remove(&id);
            self.timers.clear(Alarm::Request(id));
        }
        if let Some(flight) = self.flights.get_mut(&key) {
            flight.legs.retain(|leg| *leg != id);
        }
        Expected::Bytes(piece.bytes)
    }

    /// Takes one piece out of a stream.
    fn streamed(&mut self, peer: Peer, id: StreamId, key: K) -> Expected {
        let sender = self.streams.coming(&key).map(|(_, sender, _)| sender);
        if sender.is_some_and(|sender| sender != peer) {
            return Expected::No;
        }
        self.streams
            .came(id, &key)
            .map_or(Expected::No, Expected::Bytes)
    }

    fn here(&mut self, now: Duration, key: K, via: Via, owed: Expected, bytes: u32) -> Arrival {
        let expected = matches!(via, Via::Stream(_)) && owed != Expected::No;
        if self.flights.contains_key(&key) {
            self.skip(key);
            self.plan_has(&key);
            self.finish(now, key, Verdict::Here);
            Arrival::First
        } else if expected || self.streams.coming(&key).is_some() {
            // A stream that took over from the one that brings it need not.
            self.skip(key);
            self.plan_has(&key);
            Arrival::First
        } else {
            self.duplicate(bytes)
        }
    }

    /// Counts bytes that came before, or come once more.
    fn duplicate(&mut self, bytes: u32) -> Arrival {
        self.counts.duplicates += 1;
        self.counts.duplicate_bytes += u64::from(bytes);
        Arrival::Unneeded
    }

    fn not_here(&mut self, now: Duration, peer: Peer, key: K, via: Via, outcome: Outcome) {
        let server = self.peers[peer.index()].server;
        let why = match outcome {
            Outcome::Absent => Verdict::Absent,
            Outcome::Busy => Verdict::Busy,
            Outcome::Wrong => Verdict::Wrong,
            Outcome::Failed | Outcome::Here => Verdict::Failed,
        };
        if let Some(flight) = self.flights.get_mut(&key) {
            if matches!(outcome, Outcome::Absent | Outcome::Wrong)
                && !flight.refused.contains(&server)
            {
                flight.refused.push(server);
            }
            if matches!(outcome, Outcome::Failed | Outcome::Busy) {
                flight.failed_on = Some(peer);
            }
            if let Via::Stream(id) = via
                && flight.stream == Some(id)
            {
                flight.stream = None;
            }
            self.failed(now, key, why);
        }
        if outcome == Outcome::Wrong {
            self.count_wrong(now, peer);
        }
    }
}
