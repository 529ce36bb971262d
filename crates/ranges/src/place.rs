//! Where a blob is, and who receives it.

use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use fetch::Server;

/// A range that is being read.
pub type Reading<'a> = Pin<Box<dyn Future<Output = Result<(), Fault>> + Send + 'a>>;

/// The transport: one blob at one server.
pub trait Place: Send + Sync + 'static {
    /// Reads a range, and hands its bytes to `take` in order, as they come, and no others.
    ///
    /// It may return before the end of the range: what did not come is requested again.
    fn read<'a>(
        &'a self,
        range: Range<u64>,
        take: &'a mut (dyn FnMut(&[u8]) + Send),
    ) -> Reading<'a>;

    /// Returns what its server is called in messages.
    fn name(&self) -> String {
        "a server".to_owned()
    }

    /// How many reads its server takes at a time, as far as is known now.
    fn parallel(&self) -> usize;
}

/// Who stores the pieces of a blob.
pub trait Receiver: Send + Sync + 'static {
    /// Returns whether a piece is here. It is called with a lock held, and must not wait.
    fn has(&self, piece: u32) -> bool;

    /// Stores a piece, if that is possible. A piece may come more than once.
    fn publish(&self, piece: u32, bytes: &[u8], from: Server);

    /// Is told that a request is sent.
    fn requested(&self);
}

/// How a blob is cut into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the blob.
    pub size: u64,
    /// Bytes of each piece but the last.
    pub piece_bytes: u32,
}

impl Layout {
    /// Returns the bytes that pieces have.
    #[must_use]
    pub fn bytes(self, pieces: &Range<u32>) -> Range<u64> {
        let at = |piece: u32| (u64::from(piece) * u64::from(self.piece_bytes)).min(self.size);
        at(pieces.start)..at(pieces.end)
    }

    /// Returns the pieces that have some of these bytes.
    #[must_use]
    pub fn pieces_of(self, bytes: &Range<u64>) -> Range<u32> {
        let len = u64::from(self.piece_bytes.max(1));
        let number = |piece: u64| u32::try_from(piece).unwrap_or(u32::MAX);
        number(bytes.start / len)..number(bytes.end.min(self.size).div_ceil(len))
    }

    /// Returns the length of a piece.
    #[must_use]
    pub fn len(self, piece: u32) -> u32 {
        let range = self.bytes(&(piece..piece.saturating_add(1)));
        u32::try_from(range.end - range.start).unwrap_or(self.piece_bytes)
    }
}

/// What went wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The server does not have the blob, does not give it to us, or not in parts.
    Absent,
    /// The server is too busy, or hung up in the middle: it can be asked again.
    Busy,
    /// The server cannot be reached.
    Away,
    /// It sent something else than was requested.
    Wrong,
}

/// Why a request failed.
#[derive(Clone, Debug)]
pub struct Fault {
    /// What is to be done about it.
    pub kind: FaultKind,
    /// For messages.
    pub why: Arc<str>,
}

impl Fault {
    /// Returns a fault.
    pub fn new(kind: FaultKind, why: impl Into<Arc<str>>) -> Self {
        let why = why.into();
        Self { kind, why }
    }
}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> Self {
        let kind = match fault.kind {
            FaultKind::Absent => io::ErrorKind::NotFound,
            FaultKind::Busy => io::ErrorKind::ConnectionReset,
            FaultKind::Away => io::ErrorKind::NotConnected,
            FaultKind::Wrong => io::ErrorKind::InvalidData,
        };
        Self::new(kind, &*fault.why)
    }
}
