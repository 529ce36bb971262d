//! Why something cannot be done with objects.

use std::io;

use blocks::ContentId;

use super::TierIndex;
use crate::journal::JournalError;

/// Why objects cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There are none, more than a journal has room for, or two that are the same directory.
    #[error("cannot use these tiers: {rule}")]
    Tiers {
        /// What does not hold of them.
        rule: &'static str,
    },
    /// A later program wrote it.
    #[error("cannot use the {what}")]
    Format {
        /// The journal, or which tier.
        what: String,
        /// Why.
        source: JournalError,
    },
    /// A directory failed.
    #[error("cannot {doing} the {what}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

/// Why something cannot be done with an object.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// Nobody has it.
    #[error("there is no object {}", id.short())]
    Unknown {
        /// Which.
        id: ContentId,
    },
    /// All tiers that have it are away.
    #[error("object {} is on no tier that is available now", id.short())]
    Away {
        /// Which.
        id: ContentId,
    },
    /// There is no such tier.
    #[error("there is no {tier}")]
    NoTier {
        /// Which.
        tier: TierIndex,
    },
    /// Somebody else changes where it lies.
    #[error("object {} is being moved already", id.short())]
    Busy {
        /// Which.
        id: ContentId,
    },
    /// Somebody has the copy open.
    #[error("object {} is in use on {tier}", id.short())]
    InUse {
        /// Which.
        id: ContentId,
        /// Where.
        tier: TierIndex,
    },
    /// The copy is the only one that can be read.
    #[error("object {} has no other copy than that on {tier}", id.short())]
    OnlyCopy {
        /// Which.
        id: ContentId,
        /// Where.
        tier: TierIndex,
    },
    /// There is no room.
    #[error("object {} needs {need} bytes on {tier}, and {room} are left", id.short())]
    Full {
        /// Which.
        id: ContentId,
        /// Where.
        tier: TierIndex,
        /// Its length.
        need: u64,
        /// What is left of the capacity.
        room: u64,
    },
    /// There are as many objects as there may be.
    #[error("there are {most} objects, which is the limit")]
    TooMany {
        /// How many.
        most: usize,
    },
    /// What was read is not the object: the copies have rotted, or who brought it brought
    /// something else.
    #[error("the content of object {} does not match its hash", id.short())]
    Damaged {
        /// Which.
        id: ContentId,
    },
    /// Somebody stopped it.
    #[error("moving object {} was cancelled", id.short())]
    Cancelled {
        /// Which.
        id: ContentId,
    },
    /// A tier failed.
    #[error("cannot {doing} object {} on {tier}", id.short())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To which.
        id: ContentId,
        /// Where.
        tier: TierIndex,
        /// Why it failed.
        source: io::Error,
    },
    /// Who brought the object failed.
    #[error("cannot read the content of object {}", id.short())]
    Input {
        /// Which.
        id: ContentId,
        /// Why.
        source: io::Error,
    },
    /// The journal failed.
    #[error("cannot write the journal of objects")]
    Journal {
        /// Why.
        source: io::Error,
    },
}
