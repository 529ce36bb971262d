//! Why something cannot be done with objects.

use std::io;

use blocks::ContentId;

use super::TierIndex;
use crate::journal::JournalError;

/// Why objects cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The tiers are invalid: none, more than a journal can have, or two with the same directory.
    #[error("cannot use these tiers: {rule}")]
    Tiers {
        /// What does not hold of them.
        rule: &'static str,
    },
    /// A directory has no mark, and a tier that the journal knows is missing: the directory may be
    /// its mount point.
    #[error(
        "{tier} has no mark, and a tier of the journal is missing: is its file system not mounted? \
         (mount it; a new tier can be added when no other is missing, or if it is marked first)"
    )]
    NotMounted {
        /// The tier without a mark.
        tier: TierIndex,
    },
    /// A later program wrote it.
    #[error("cannot use the {what}")]
    Format {
        /// The journal, or which tier.
        what: String,
        /// The cause.
        source: JournalError,
    },
    /// A directory failed.
    #[error("cannot {doing} the {what}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The object of the operation.
        what: String,
        /// The cause.
        source: io::Error,
    },
}

/// Why something cannot be done with an object.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// There is no such object.
    #[error("there is no object {}", id.short())]
    Unknown {
        /// The object.
        id: ContentId,
    },
    /// All tiers that have it are away.
    #[error("object {} is on no tier that is available now", id.short())]
    Away {
        /// The object.
        id: ContentId,
    },
    /// There is no such tier.
    #[error("there is no {tier}")]
    NoTier {
        /// The tier.
        tier: TierIndex,
    },
    /// Its copies are being changed.
    #[error("object {} is being moved already", id.short())]
    Busy {
        /// The object.
        id: ContentId,
    },
    /// The copy is open.
    #[error("object {} is in use on {tier}", id.short())]
    InUse {
        /// The object.
        id: ContentId,
        /// The tier.
        tier: TierIndex,
    },
    /// The copy is the only one that can be read.
    #[error("object {} has no other copy than that on {tier}", id.short())]
    OnlyCopy {
        /// The object.
        id: ContentId,
        /// The tier.
        tier: TierIndex,
    },
    /// The tier is full.
    #[error("object {} needs {need} bytes on {tier}, and {room} are left", id.short())]
    Full {
        /// The object.
        id: ContentId,
        /// The tier.
        tier: TierIndex,
        /// Its length.
        need: u64,
        /// The remaining capacity.
        room: u64,
    },
    /// There are as many objects as there may be.
    #[error("there are {most} objects, which is the limit")]
    TooMany {
        /// The limit.
        most: usize,
    },
    /// The data that was read is not the object: the copies are damaged, or the source gave
    /// other data.
    #[error("the content of object {} does not match its hash", id.short())]
    Damaged {
        /// The object.
        id: ContentId,
    },
    /// The operation was cancelled.
    #[error("moving object {} was cancelled", id.short())]
    Cancelled {
        /// The object.
        id: ContentId,
    },
    /// A tier failed.
    #[error("cannot {doing} object {} on {tier}", id.short())]
    Io {
        /// The operation.
        doing: &'static str,
        /// The object.
        id: ContentId,
        /// The tier.
        tier: TierIndex,
        /// The cause.
        source: io::Error,
    },
    /// The source of the object failed.
    #[error("cannot read the content of object {}", id.short())]
    Input {
        /// The object.
        id: ContentId,
        /// The cause.
        source: io::Error,
    },
    /// The journal failed.
    #[error("cannot write the journal of objects")]
    Journal {
        /// The cause.
        source: io::Error,
    },
}
