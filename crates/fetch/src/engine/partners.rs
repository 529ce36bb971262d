//! Peers: connection, loss, and the pending requests of a lost one.

use std::time::Duration;

use super::wanting::End;
use super::{Alarm, Engine};
use crate::exchange::{Action, Lane, Peer, Server, StreamId};
use crate::flights::Flight;
use crate::peers::{PeerState, State, Trust};
use crate::want::{Key, Verdict};

/// Why a peer is taken out of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Out {
    Lost,
    Stalled,
    /// Its server is not believed.
    Disbelieved(Trust),
}

impl<K: Key> Engine<K> {
    /// Adds a peer, which is down at first.
    ///
    /// # Panics
    /// With more than 65 536 peers.
    pub fn add_peer(&mut self, server: Server, lane: Lane) -> Peer {
        let index = u16::try_from(self.peers.len()).expect("at most 65 536 peers");
        self.peers.push(PeerState::new(server, lane, &self.config));
        Peer(index)
    }

    /// Records that a peer is connected, and the round trip of its handshake.
    ///
    /// # Panics
    /// If the peer is another engine's.
    pub fn on_peer_up(&mut self, now: Duration, peer: Peer, rtt: Option<Duration>) {
        let state = &mut self.peers[peer.index()];
        if let Some(rtt) = rtt {
            state.link.round_trip(now, rtt);
        }
        state.state = State::Up;
        state.heard = now;
        self.watch(now, peer);
        self.watch_closer(now);
    }

    /// Records a round trip that was measured on another connection to the server of a peer, unless one of its own is
    /// shorter.
    ///
    /// # Panics
    /// If the peer is another engine's.
    pub fn on_round_trip(&mut self, now: Duration, peer: Peer, rtt: Duration) {
        let link = &mut self.peers[peer.index()].link;
        if rtt < link.rtt() {
            link.round_trip(now, rtt);
        }
    }

    /// Keeps a peer for pieces that no peer without this can be asked for: the origin behind a mirror.
    ///
    /// # Panics
    /// If the peer is another engine's.
    pub fn reserve(&mut self, peer: Peer) {
        self.peers[peer.index()].reserve = true;
    }

    /// Records that a peer supports [`Action::Promote`], until its connection is lost.
    ///
    /// # Panics
    /// If the peer is another engine's.
    pub fn allow_promotion(&mut self, peer: Peer) {
        self.peers[peer.index()].promotes = true;
    }

    /// Records the rate of a line, in bytes per second, that the caller measured with other data than pieces: the
    /// first window follows from it.
    ///
    /// # Panics
    /// If the peer is another engine's.
    pub fn on_rate(&mut self, now: Duration, peer: Peer, rate: u64) {
        self.peers[peer.index()].link.rate_was(now, rate);
    }

    /// Records that the connection of a peer is lost, with all requests and streams on it. Its pending
    /// pieces are requested from others, or end as [`Verdict::Away`].
    ///
    /// # Panics
    /// If the peer is another engine's.
    pub fn on_peer_lost(&mut self, now: Duration, peer: Peer) {
        let state = &mut self.peers[peer.index()];
        (state.promotes, state.resumes) = (false, false);
        self.put_out(now, peer, Out::Lost);
    }

    /// Records the end of a stream. Promised pieces that did not arrive are requested if they are wanted.
    pub fn on_stream_end(&mut self, now: Duration, stream: StreamId) {
        self.stream_came_to_its_end(stream);
        let Some((peer, missing)) = self.streams.end(stream) else {
            return;
        };
        self.hear(now, peer);
        let left = self.leave_stream(stream, &missing);
        self.ask_for(now, &left);
        self.watch(now, peer);
    }

    /// Returns whether a peer can be asked.
    ///
    /// # Panics
    /// If the peer is another engine's.
    #[must_use]
    pub fn is_up(&self, peer: Peer) -> bool {
        self.peers[peer.index()].is_up()
    }

    /// Returns whether any peer can be asked.
    #[must_use]
    pub fn any_up(&self) -> bool {
        self.peers.iter().any(PeerState::is_up)
    }

    /// Has nothing wait for a stream any more, and returns what did.
    fn leave_stream(&mut self, stream: StreamId, keys: &[K]) -> Vec<K> {
        let mut left = Vec::new();
        for key in keys {
            if let Some(flight) = self.flights.get_mut(key)
                && flight.stream == Some(stream)
            {
                flight.stream = None;
                self.timers.clear(Alarm::Flight(*key));
                left.push(*key);
            }
        }
        left
    }

    /// Requests what waited for a stream that is over, unless another one brings it.
    fn ask_for(&mut self, now: Duration, keys: &[K]) {
        for key in keys {
            let is_left = |flight: &Flight| flight.stream.is_none();
            if self.flights.get(key).is_some_and(is_left) {
                self.enqueue(now, *key, End::Back);
            }
        }
    }

    /// Records that a peer is alive.
    pub(super) fn hear(&mut self, now: Duration, peer: Peer) {
        let state = &mut self.peers[peer.index()];
        state.heard = now;
        if state.state == State::Stalled {
            state.state = State::Up;
            state.returned();
            self.watch(now, peer);
        }
    }

    /// Begins or ends the watch over a peer, as it owes something or not.
    pub(super) fn watch(&mut self, now: Duration, peer: Peer) {
        let state = &self.peers[peer.index()];
        let owes = state.is_up() && (!state.requests.is_empty() || self.streams.owes(peer));
        let watched = self.timers.get(Alarm::Peer(peer)).is_some();
        let state = &mut self.peers[peer.index()];
        if owes && !watched {
            state.heard = now;
            state.link.busy(now);
            let silent = self.silent_from(peer);
            self.timers.set(Alarm::Peer(peer), silent);
        } else if !owes && watched {
            state.link.idle();
            self.timers.clear(Alarm::Peer(peer));
        }
    }

    /// Takes a peer out of use, and requests its pending pieces from others.
    pub(super) fn put_out(&mut self, now: Duration, peer: Peer, out: Out) {
        let state = &mut self.peers[peer.index()];
        match out {
            Out::Lost => state.state = State::Down,
            Out::Stalled => state.state = State::Stalled,
            Out::Disbelieved(trust) => state.trust = trust,
        }
        state.link.idle();
        self.timers.clear(Alarm::Peer(peer));
        self.share_rate(now, peer);
        self.believe_if_alone(now);
        self.drop_requests(now, peer, out);
        let mut left = Vec::new();
        for stream in self.streams.ids_of(peer) {
            let missing = match out {
                // It may go on: what then comes first is welcome.
                Out::Stalled if !self.is_continued_elsewhere(stream) => {
                    self.streams.expected_of(stream)
                }
                Out::Lost => self.break_off(stream),
                Out::Stalled | Out::Disbelieved(_) => {
                    self.actions.push_back(Action::EndStream { peer, stream });
                    self.break_off(stream)
                }
            };
            left.extend(self.leave_stream(stream, &missing));
        }
        // First, so that what waited is not requested if another stream brings it.
        self.resume(now);
        self.ask_for(now, &left);
        self.settle_queues(now);
    }

    /// Gives up all requests to a peer.
    fn drop_requests(&mut self, now: Duration, peer: Peer, out: Out) {
        let open = std::mem::take(&mut self.peers[peer.index()].requests);
        for id in open {
            let Some(request) = self.drop_request(now, id) else {
                continue;
            };
            if out != Out::Lost {
                self.actions.push_back(Action::Cancel { peer, request: id });
            }
            for piece in request.pieces {
                let Some(flight) = self.flights.get_mut(&piece.key) else {
                    continue;
                };
                if flight.legs.contains(&id) {
                    flight.legs.retain(|leg| *leg != id);
                    self.failed(now, piece.key, Verdict::Away);
                }
            }
        }
    }
}
