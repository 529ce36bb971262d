//! Which of a client's connections one is.

use serving::transport::Address;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Requests for which somebody waits.
    Demand,
    /// Everything else.
    Background,
}

/// Which of the connections one is.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Its number among all of the client.
    pub(super) number: usize,
    /// The number of its service.
    pub(super) service: usize,
    pub(super) lane: Lane,
    /// Where the service listens.
    pub(super) address: Address,
}
