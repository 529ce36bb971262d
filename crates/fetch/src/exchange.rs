//! The messages between the engine and the code that does its I/O.

use crate::want::{Piece, Priority, Ticket, Verdict};

/// A path to a server: one connection, or several that are used as one. Named by
/// [`Engine::add_peer`](crate::Engine::add_peer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer(pub(crate) u16);

impl Peer {
    /// Returns its index: peers are counted from 0, in the order in which they were added.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A server, by a number that the caller chooses. What one peer of a server does not have, its other
/// peers do not have either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Server(pub u16);

/// The requests that a peer is meant for. Other requests use it only if no other peer can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Requests for which a caller waits.
    Demand,
    /// Plans, readahead and fills.
    Background,
    /// All requests.
    Any,
}

/// The name of one [`Action::Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u64);

impl RequestId {
    /// Returns its number, which no other request of the same engine has.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// Names a stream of pieces that a peer sends unasked; the caller chooses the number, below 2⁶³, and never
/// uses it again. The engine chooses those of [`Action::Resume`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// What a piece came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The response to a request.
    Request(RequestId),
    /// A stream.
    Stream(StreamId),
}

/// What a peer answered for one piece, after the caller verified it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its bytes, and they are right.
    Here,
    /// The server does not have it.
    Absent,
    /// The server is too busy: it can be asked again later.
    Busy,
    /// The server could not read it, or the response was cut short.
    Failed,
    /// Bytes, but not those of the piece.
    Wrong,
}

/// What to do with the bytes of a call of [`Engine::on_piece`](crate::Engine::on_piece).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Arrival {
    /// They are the first copy: publish them before the next poll, which notifies the waiting callers.
    First,
    /// Not the first copy, not wanted by a caller, or no bytes at all: drop them.
    Unneeded,
}

/// What the caller has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<K> {
    /// Send a request.
    Request {
        /// The peer.
        peer: Peer,
        /// Its name, for [`Via::Request`].
        request: RequestId,
        /// What for: 1 to [`Config::batch`](crate::Config::batch) pieces, in the order in which they
        /// are needed.
        pieces: Vec<Piece<K>>,
        /// How urgent it is.
        priority: Priority,
    },
    /// Notify the sender of a stream not to send these.
    Skip {
        /// The sender.
        peer: Peer,
        /// The stream.
        stream: StreamId,
        /// The unneeded keys: 1 to [`Config::batch`](crate::Config::batch).
        keys: Vec<K>,
    },
    /// Notify the sender of a stream to send these next, in this order: callers wait for them.
    Promote {
        /// The sender.
        peer: Peer,
        /// The stream.
        stream: StreamId,
        /// The needed keys: 1 to [`Config::batch`](crate::Config::batch).
        keys: Vec<K>,
    },
    /// Notify a peer that the rest of a request is not wanted any more.
    Cancel {
        /// The peer.
        peer: Peer,
        /// The request.
        request: RequestId,
    },
    /// Ask a peer for the rest of the plan of [`Engine::plan`](crate::Engine::plan), as a stream, from one of its pieces
    /// on. A peer that does not send it: report the end of the stream.
    Resume {
        /// The peer.
        peer: Peer,
        /// The name of the stream.
        stream: StreamId,
        /// The place of its first piece in the plan.
        first: usize,
    },
    /// Notify the sender of a stream to end it: its server is not trusted any more, or another one is asked for the rest.
    EndStream {
        /// The sender.
        peer: Peer,
        /// The stream.
        stream: StreamId,
    },
    /// A peer is silent although responses are due: check its connection. It is asked again after
    /// [`Engine::on_progress`](crate::Engine::on_progress) or
    /// [`Engine::on_peer_up`](crate::Engine::on_peer_up).
    Stalled {
        /// The peer.
        peer: Peer,
    },
    /// A piece of a ticket ended. Each ends exactly once, unless the ticket was left before.
    Done {
        /// The ticket.
        ticket: Ticket,
        /// The piece.
        key: K,
        /// The result.
        verdict: Verdict,
    },
}
