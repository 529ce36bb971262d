//! The plan of a source: one stream brings it, and when that breaks off, another one brings what is lacking.

use std::time::Duration;

use super::Engine;
use crate::exchange::{Action, Peer, StreamId};
use crate::plan::Plan;
use crate::want::{Key, Piece};

/// The streams that the engine asks for have numbers from here on.
const RESUMED: u64 = 1 << 63;

impl<K: Key> Engine<K> {
    /// Records the plan of the source, in order, of which the pieces are lacking for which `lacks` holds. `stream` is the
    /// one that brings it, as [`promised`](Self::promised). Without one, or when that breaks off, a peer that can is asked
    /// for the rest by [`Action::Resume`], unless nothing is lacking.
    pub fn plan(
        &mut self,
        pieces: &[Piece<K>],
        stream: Option<StreamId>,
        lacks: impl Fn(&K) -> bool,
    ) {
        self.plan = Some(Plan::new(pieces, stream, lacks));
    }

    /// Records that a peer can be asked for the rest of a plan, until its connection is lost.
    ///
    /// # Panics
    /// If the peer is another engine's.
    pub fn allow_resuming(&mut self, peer: Peer) {
        self.peers[peer.index()].resumes = true;
    }

    /// Asks for what is lacking of the plan, if no stream brings it and a peer can.
    pub(super) fn resume(&mut self, now: Duration) {
        let resumer = self.resumer();
        let (Some(plan), Some(peer)) = (&mut self.plan, resumer) else {
            return;
        };
        if plan.stream.is_some() || plan.is_complete() {
            return;
        }
        self.counts.resumes += 1;
        let stream = StreamId(RESUMED + self.counts.resumes);
        plan.stream = Some(stream);
        let (first, rest) = plan.rest();
        let keys = rest.iter().map(|piece| piece.key);
        let here: Vec<K> = keys.filter(|key| plan.has(key)).collect();
        self.actions.push_back(Action::Resume {
            peer,
            stream,
            first,
        });
        let begins = now + self.peers[peer.index()].link.rtt();
        self.promise(now, peer, stream, begins, &rest);
        here.into_iter().for_each(|key| self.skip(key));
    }

    /// Returns who is asked for the rest of the plan: the first that can be.
    fn resumer(&self) -> Option<Peer> {
        let can = |peer: &Peer| {
            let state = &self.peers[peer.index()];
            state.is_up() && state.resumes
        };
        self.indexes().find(can)
    }

    /// Returns whether a stream brings the plan, and another peer than its own, which was put out, can bring the rest.
    pub(super) fn is_continued_elsewhere(&self, stream: StreamId) -> bool {
        let is_plans = |plan: &Plan<K>| plan.stream == Some(stream);
        self.plan.as_ref().is_some_and(is_plans) && self.resumer().is_some()
    }

    /// Ends a stream that does not go on, and returns what it did not bring.
    pub(super) fn break_off(&mut self, stream: StreamId) -> Vec<K> {
        if let Some(plan) = &mut self.plan
            && plan.stream == Some(stream)
        {
            plan.stream = None;
        }
        self.streams.end(stream).map_or_else(Vec::new, |end| end.1)
    }

    /// Drops the plan if this was its stream: what did not come will not come this way.
    pub(super) fn stream_came_to_its_end(&mut self, stream: StreamId) {
        self.plan.take_if(|plan| plan.stream == Some(stream));
    }

    /// Records that a piece is here.
    pub(super) fn plan_has(&mut self, key: &K) {
        if let Some(plan) = &mut self.plan {
            plan.came(key);
        }
    }
}
