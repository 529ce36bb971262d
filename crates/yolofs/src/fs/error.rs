//! Why a request was not answered.

use blocks::{SourceError, SourceErrorKind};

/// Why a request to the file system failed.
///
/// A missing name is not among them: it is a result, with a lifetime.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FsError {
    /// The names or the bytes could not be read.
    #[error("the source did not answer")]
    Source(#[from] SourceError),
    /// The number of a file is not one that was ever given out.
    #[error("there is no file {0}")]
    UnknownNode(u64),
    /// A name is longer than 255 bytes.
    #[error("the name is too long")]
    NameTooLong,
    /// The file has no such extended attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// The caller's buffer is smaller than the answer.
    #[error("the answer does not fit into the buffer")]
    TooSmall,
    /// There is neither data nor a hole behind the offset.
    #[error("the offset is beyond the end of the file")]
    BeyondEnd,
    /// The file would become larger.
    #[error("the file has a fixed size")]
    TooLarge,
    /// The request would change the file system.
    #[error("the file system is read-only")]
    ReadOnly,
    /// It is one of several ways to do something, and not supported.
    #[error("this is not supported")]
    Unsupported,
    /// Only directories have entries.
    #[error("not a directory")]
    NotADirectory,
    /// A request of a kind that is not served, or that makes no sense.
    #[error("the request is not supported")]
    Invalid,
    /// The space on the source could not be determined.
    #[error("the source reports no free space")]
    Space(#[source] std::io::Error),
    /// The code that serves it panicked.
    #[error("serving the request panicked")]
    Panicked,
}

impl FsError {
    /// Returns whether the result needs waiting, on a thread that must not wait.
    pub(crate) fn would_wait(&self) -> bool {
        matches!(self, Self::Source(error) if error.kind() == SourceErrorKind::WouldWait)
    }

    /// Returns whether this is a failure here or below, rather than an invalid request.
    pub(super) fn is_failure(&self) -> bool {
        match self {
            Self::Source(_) if self.would_wait() => false,
            Self::Source(_) | Self::Space(_) | Self::Panicked => true,
            Self::UnknownNode(_)
            | Self::NameTooLong
            | Self::NoAttribute
            | Self::TooSmall
            | Self::BeyondEnd
            | Self::TooLarge
            | Self::ReadOnly
            | Self::Unsupported
            | Self::NotADirectory
            | Self::Invalid => false,
        }
    }
}
