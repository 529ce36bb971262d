//! What can go wrong with block images.

use std::io;

/// An error of this crate: the problem, its place, and a remedy where that is not obvious.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LsmtError {
    /// The storage failed.
    #[error("cannot {doing}")]
    Storage {
        /// The operation.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The bytes are of another kind.
    #[error("this is no {kind}: its magic number is missing")]
    Magic {
        /// What was expected.
        kind: &'static str,
    },
    /// The bytes break a rule of the format.
    #[error("the {part} is invalid: {rule}")]
    Rule {
        /// The part.
        part: &'static str,
        /// The broken rule.
        rule: &'static str,
    },
    /// A number is over the limit of the format or of this crate.
    #[error("the {what} is {found}, at most {limit} is allowed")]
    TooLarge {
        /// The number.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The layers of an image have more segments together than fit into memory.
    #[error(
        "the layers of the image have {found} segments or more together, at most {limit} are allowed: merge or convert \
         them to fewer layers"
    )]
    ImageIndex {
        /// How many they have, as far as they were counted.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// A checksum does not match.
    #[error("the {part} at byte {at} is damaged: its checksum differs; fetch the blob again")]
    Checksum {
        /// The part.
        part: &'static str,
        /// Where it begins.
        at: u64,
    },
    /// Compressed data cannot be decompressed.
    #[error("the {part} at byte {at} is damaged: it cannot be decompressed; fetch the blob again")]
    Compression {
        /// The part.
        part: &'static str,
        /// Where it begins.
        at: u64,
    },
    /// A request goes past the end of the device or the blob.
    #[error("bytes {offset} to {offset}+{len} are not within the {size} bytes there are")]
    Range {
        /// The offset of the request.
        offset: u64,
        /// Its length.
        len: u64,
        /// How many bytes there are.
        size: u64,
    },
    /// A request does not begin and end at sectors.
    #[error("byte {offset} is not a multiple of 512, the size of a sector")]
    Unaligned {
        /// The offset that is not at a boundary.
        offset: u64,
    },
    /// There is no writable layer.
    #[error("the image has no writable layer: add one to write to it")]
    ReadOnly,
    /// An earlier write of the layer failed half way.
    #[error("the writable layer failed before: open the image again")]
    Poisoned,
    /// The writable layer was replaced by another one; an image uses that automatically.
    #[error("the writable layer was replaced")]
    Retired,
    /// The feature is not supported.
    #[error("{what} is not supported")]
    Unsupported {
        /// The feature.
        what: &'static str,
    },
    /// Another operation on the stack is running.
    #[error("another {what} of this image is running: wait for it, or cancel it")]
    Busy {
        /// The operation.
        what: &'static str,
    },
    /// The operation was cancelled.
    #[error("the {what} was cancelled; nothing changed")]
    Canceled {
        /// The operation.
        what: &'static str,
    },
}

/// What functions of this crate return.
pub type Result<T, E = LsmtError> = std::result::Result<T, E>;

/// Adds the operation to an error of the storage.
pub(crate) trait Doing<T> {
    fn doing(self, what: &'static str) -> Result<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &'static str) -> Result<T> {
        self.map_err(|source| LsmtError::Storage { doing, source })
    }
}

pub(crate) fn rule<T>(part: &'static str, rule: &'static str) -> Result<T> {
    Err(LsmtError::Rule { part, rule })
}

/// Fails unless `found` is within the limit.
pub(crate) fn at_most(what: &'static str, found: u64, limit: u64) -> Result<()> {
    match found <= limit {
        true => Ok(()),
        false => Err(LsmtError::TooLarge { what, found, limit }),
    }
}

impl From<LsmtError> for io::Error {
    fn from(error: LsmtError) -> Self {
        let kind = match &error {
            LsmtError::Storage { source, .. } => source.kind(),
            LsmtError::Range { .. } | LsmtError::Unaligned { .. } => io::ErrorKind::InvalidInput,
            LsmtError::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
            LsmtError::Unsupported { .. } => io::ErrorKind::Unsupported,
            LsmtError::Busy { .. } => io::ErrorKind::ResourceBusy,
            LsmtError::Canceled { .. } => io::ErrorKind::Interrupted,
            LsmtError::Poisoned | LsmtError::Retired => io::ErrorKind::Other,
            _ => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}
