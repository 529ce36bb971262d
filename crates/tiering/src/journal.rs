//! The journal: which copies of which objects count. `docs/tiering-journal-format.md`.

mod format;
mod log;

pub use format::JournalError;
pub(crate) use format::{TIER_FILE_LEN, TIERS_MAX, TierId, decode_tier, encode_tier};
pub use log::Found;
pub(crate) use log::{Journal, Known, OBJECTS_MAX, OpenJournalError, tiers_of};

use blocks::ContentId;

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The tier has a whole copy, and readers may use it.
    Settled,
    /// The tier's copy is not used from here on.
    Left,
}

/// A change of which copies count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// What changes.
    pub(crate) kind: Kind,
    /// Which tier, by its place in the header.
    pub(crate) tier: u8,
    /// Length of the object.
    pub(crate) len: u64,
    /// The object.
    pub(crate) object: ContentId,
}
