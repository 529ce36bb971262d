//! Pieces that are being fetched, and the requests that are open for them.

use std::time::Duration;

use crate::exchange::{Peer, RequestId, Server, StreamId};
use crate::queue::Position;
use crate::want::{Piece, Priority, Ticket, Verdict};

/// One piece that is being fetched, for all its callers (singleflight).
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) bytes: u32,
    pub(crate) priority: Priority,
    pub(crate) waiters: Vec<Ticket>,
    /// Requests that may bring it.
    pub(crate) legs: Vec<RequestId>,
    /// The stream that it waits for.
    pub(crate) stream: Option<StreamId>,
    /// How often it was waited for longer than expected.
    pub(crate) waits: u8,
    /// Its place in the queue of its priority.
    pub(crate) queued: Option<Position>,
    /// Attempts that failed.
    pub(crate) failures: u8,
    /// The peer that failed last: others are tried first.
    pub(crate) failed_on: Option<Peer>,
    /// Whether it is to be requested although a long request will bring it.
    pub(crate) overtakes: bool,
    /// Servers that do not have it.
    pub(crate) refused: Vec<Server>,
    /// How the last attempt failed.
    pub(crate) why: Option<Verdict>,
}

impl Flight {
    pub(crate) const fn new(bytes: u32, priority: Priority) -> Self {
        Self {
            bytes,
            priority,
            waiters: Vec::new(),
            legs: Vec::new(),
            stream: None,
            waits: 0,
            queued: None,
            failures: 0,
            failed_on: None,
            overtakes: false,
            refused: Vec::new(),
            why: None,
        }
    }

    /// Whether it was not requested so far: the choice of a peer is the same for all such flights of a priority.
    pub(crate) const fn is_new(&self) -> bool {
        self.legs.is_empty() && self.failed_on.is_none() && self.refused.is_empty()
    }

    /// Whether something is under way that may bring it, or it is queued for that.
    pub(crate) const fn is_moving(&self) -> bool {
        !self.legs.is_empty() || self.stream.is_some() || self.queued.is_some()
    }
}

/// An open request.
#[derive(Debug)]
pub(crate) struct Request<K> {
    pub(crate) peer: Peer,
    pub(crate) priority: Priority,
    pub(crate) sent: Duration,
    /// Its pieces are late from then on.
    pub(crate) late: Duration,
    /// Its pieces count as lost from then on.
    pub(crate) lost: Duration,
    /// What its peer has to have delivered in all before its pieces can count as lost: as long as less
    /// came, they wait behind others on a line that is slower than it was.
    pub(crate) behind: u64,
    /// Whether no piece of it was answered so far.
    pub(crate) silent: bool,
    /// Pieces without a response.
    pub(crate) pieces: Vec<Piece<K>>,
}
