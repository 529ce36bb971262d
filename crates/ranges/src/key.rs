//! The names of pieces.

/// The name of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) blob: u32,
    pub(crate) piece: u32,
}
