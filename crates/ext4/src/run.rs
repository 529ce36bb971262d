//! Pieces of a device that are written.

/// Consecutive blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first one.
    pub block: u32,
    /// What they contain.
    pub bytes: Vec<u8>,
}
