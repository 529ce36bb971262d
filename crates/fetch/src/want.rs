//! The request of a caller, and the result for each piece.

use std::fmt::Debug;
use std::hash::Hash;

/// The name of a piece: the hash of a chunk, its number in an index, or an offset of a blob.
///
/// Implemented for every type with these traits.
pub trait Key: Copy + Eq + Hash + Ord + Debug {}

impl<K: Copy + Eq + Hash + Ord + Debug> Key for K {}

/// One thing that can be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<K> {
    /// Its name.
    pub key: K,
    /// Its length in bytes, before compression. Windows and expected times are computed from it.
    pub bytes: u32,
}

/// How urgent a request is; a greater one is more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Fills a cache; not needed soon.
    Fill,
    /// A plan or a readahead expects that it will be read soon.
    Plan,
    /// A caller waits for it.
    Demand,
}

/// The name of one call of [`Engine::want`](crate::Engine::want).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) u64);

/// How a piece of a ticket ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It came, and was verified.
    Here,
    /// Every server that could be asked reported that it does not have it.
    Absent,
    /// It was tried as often as allowed, and each attempt failed.
    Failed,
    /// The received data was wrong, and there is no other server to ask.
    Wrong,
    /// The engine or the servers have too much to do.
    Busy,
    /// No server that can be asked is reachable: use another source.
    Away,
    /// The deadline of the ticket passed.
    Late,
}
