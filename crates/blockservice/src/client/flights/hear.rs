//! What connections tell the flights of a source: what came, and which of them can be used.

use std::sync::Arc;

use fetch::{Arrival, Outcome, StreamId, Via};

use super::{Arrived, Flights, RAW_TO_SENT};
use crate::client::registered::{Receiver, Reply};
use chunks::Class;

impl Receiver for Flights {
    fn came(&self, connection: usize, via: Via, number: u32, reply: Reply) {
        let Some(id) = self.index.chunk(number) else {
            return;
        };
        let (mut bytes, mut arrived) = (0, None);
        let outcome = match reply {
            // Whoever reads it verifies it: this thread has to take what comes next.
            Reply::Here(stored) => {
                bytes = u32::try_from(stored.bytes.len()).unwrap_or(u32::MAX);
                let class = match via {
                    Via::Request(_) => Class::Demand,
                    Via::Stream(_) => Class::Prefetch,
                };
                arrived = Some(Arc::new(Arrived::new(id, stored, class, connection)));
                Outcome::Here
            }
            Reply::Absent => Outcome::Absent,
            Reply::Busy => Outcome::Busy,
            Reply::Failed => Outcome::Failed,
        };
        let now = self.now();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let peer = state.peers[connection];
        let arrival = state
            .engine
            .on_piece(now, peer, via, number, outcome, bytes);
        let landed = arrived.as_ref().filter(|_| arrival == Arrival::First);
        state.wanted = None;
        self.act(state, now, landed.map(|arrived| (number, arrived)));
        let Some(arrived) = landed else {
            return;
        };
        self.keep(state, now, number, arrived);
        let is_planned = state.planned_until.is_some_and(|until| now < until);
        let is_early = state.kept.is_ahead(number);
        drop(guard);
        if is_early {
            self.check_some(number, arrived);
        }
        if !is_planned {
            let content = |number| self.peek(number);
            let next = self.read_ahead.came(&self.index, number, &content);
            self.want_next(&next);
        }
    }

    fn stream_ended(&self, stream: StreamId) {
        let now = self.now();
        let mut state = self.state.lock();
        state.streams.remove(&stream);
        state.engine.on_stream_end(now, stream);
        self.act(&mut state, now, None);
    }

    fn link_changed(&self, connection: usize) {
        let now = self.now();
        let mut state = self.state.lock();
        let link = self.connections.get(connection);
        let is_up = link.is_up();
        if state.up[connection] != is_up {
            state.up[connection] = is_up;
            let peer = state.peers[connection];
            if is_up {
                // The first of them may have waited for more than the line.
                let service = self.connections.of(link.service());
                let rtt = service.iter().filter_map(|c| c.round_trip()).min();
                state.engine.on_peer_up(now, peer, rtt);
                for other in service.iter().map(|c| c.number()) {
                    let (peer, is_up) = (state.peers[other], state.up[other]);
                    if let Some(rtt) = rtt.filter(|_| is_up) {
                        state.engine.on_round_trip(now, peer, rtt);
                    }
                }
                if link.promotes() {
                    state.engine.allow_promotion(peer);
                }
                if link.resumes() {
                    state.engine.allow_resuming(peer);
                }
                let rate = service.iter().map(|c| c.rate()).max();
                if let Some(rate) = rate.filter(|rate| *rate > 0) {
                    state
                        .engine
                        .on_rate(now, peer, rate.saturating_mul(RAW_TO_SENT));
                }
            } else {
                state.streams.retain(|_, of| of.connection != connection);
                state.engine.on_peer_lost(now, peer);
            }
        }
        self.act(&mut state, now, None);
    }

    fn refused(&self, connection: usize) {
        let now = self.now();
        let mut state = self.state.lock();
        // It stays so until the connection is made again.
        if state.up[connection] {
            let peer = state.peers[connection];
            state.engine.on_peer_lost(now, peer);
        }
        self.act(&mut state, now, None);
    }

    fn progressed(&self, connection: usize) {
        let now = self.now();
        let mut state = self.state.lock();
        if state.up[connection] {
            let peer = state.peers[connection];
            state.engine.on_progress(now, peer);
        }
        self.act(&mut state, now, None);
    }
}
