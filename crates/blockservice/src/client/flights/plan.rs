//! The plan of a source: what a service sends of it unasked.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use blocks::ContentId;
use fetch::{Peer, StreamId};

use super::{Flights, State};
use crate::client::connection::{StartAnswer, StartRefused, StartRequest};
use crate::wire::Ask;

/// How long what is read is most likely what a plan names, which begins to come.
const PLANNED: Duration = Duration::from_secs(30);

/// A stream that is going on, or was asked for.
#[derive(Debug)]
pub(super) struct OpenStream {
    /// The number of its connection.
    pub(super) connection: usize,
    /// A request for it that was not sent is dropped with this.
    _waiter: Arc<()>,
}

impl OpenStream {
    fn new(connection: usize) -> (Self, std::sync::Weak<()>) {
        let waiter = Arc::new(());
        let weak = Arc::downgrade(&waiter);
        let stream = Self {
            connection,
            _waiter: waiter,
        };
        (stream, weak)
    }
}

impl Flights {
    /// Notes that a stream that has begun on a connection will bring a plan, in order.
    pub(in crate::client) fn streamed(
        &self,
        plan: ContentId,
        order: &[u32],
        (connection, stream): (usize, StreamId),
    ) {
        self.counters.streams.fetch_add(1, Relaxed);
        let now = self.now();
        let pieces = self.pieces(order);
        let mut state = self.state.lock();
        let peer = state.peers[connection];
        let (open, _) = OpenStream::new(connection);
        state.streams.insert(stream, open);
        state.planned_until = Some(now + PLANNED);
        state.plan = Some(plan);
        state.engine.promised(now, peer, stream, &pieces);
        state.engine.plan(&pieces, Some(stream), |_| true);
        self.act(&mut state, now, None);
    }

    /// Has a service send what is lacking of a plan unasked, unless a stream brings that: then it leaves out what is here.
    pub(in crate::client) fn expect(
        &self,
        plan: ContentId,
        order: &[u32],
        has: impl Fn(u32) -> bool,
    ) {
        let here: Vec<u32> = order.iter().copied().filter(|n| has(*n)).collect();
        let pieces = self.pieces(order);
        let now = self.now();
        let mut state = self.state.lock();
        if state.plan != Some(plan) {
            state.plan = Some(plan);
            state.planned_until = Some(now + PLANNED);
            state.engine.plan(&pieces, None, |_| true);
        }
        state.engine.unneeded(now, &here);
        self.act(&mut state, now, None);
    }

    /// Asks a service for the rest of the plan.
    pub(super) fn resume(&self, state: &mut State, peer: Peer, stream: StreamId, first: usize) {
        let (Some(plan), Ok(first)) = (state.plan, u32::try_from(first)) else {
            return;
        };
        self.counters.streams.fetch_add(1, Relaxed);
        let connection = self.connections.get(peer.index());
        let (open, waiter) = OpenStream::new(connection.number());
        state.streams.insert(stream, open);
        let (source, index) = (Arc::clone(&self.source), self.index.id());
        let begin = move |answer: Result<StartAnswer, StartRefused>| {
            let receiver = source.receiver()?;
            let follows = |answer: StartAnswer| answer.id == index && answer.stream.is_some();
            if answer.is_ok_and(follows) {
                return Some(Arc::downgrade(&receiver));
            }
            // It is of an earlier release, or has another plan now.
            receiver.stream_ended(stream);
            None
        };
        connection.start(StartRequest {
            source: Arc::clone(&self.source),
            ask: Ask::Chunks,
            have: index,
            rest: Some((plan, first)),
            stream,
            waiter,
            begin: Box::new(begin),
        });
    }

    fn pieces(&self, numbers: &[u32]) -> Vec<fetch::Piece<u32>> {
        let pieces = numbers.iter().filter_map(|number| self.piece(*number));
        pieces.collect()
    }
}
