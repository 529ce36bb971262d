//! Why a request to a source failed.

use std::fmt;
use std::io;

use crate::{FileId, Version};

/// The kind of error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceErrorKind {
    /// The source no longer has such a file or name.
    NotFound,
    /// The file has another version than the requested one.
    Stale {
        /// The present version: request that one, and discard data of the old.
        now: Version,
    },
    /// The source did not respond in time.
    TimedOut,
    /// The result needs waiting, and the calling thread [must not wait](crate::prompt): the request is to be
    /// repeated by a thread that may. Callers that may wait never get this.
    WouldWait,
    /// The source failed.
    Io,
}

/// A failure of a source: what kind, doing what, to which file, and the cause underneath.
#[derive(Debug)]
pub struct SourceError {
    kind: SourceErrorKind,
    doing: &'static str,
    file: Option<FileId>,
    cause: Option<io::Error>,
}

impl SourceError {
    /// Returns the error of `kind` that came up while `doing` (a verb in its -ing form and its
    /// object, as in "reading a block").
    #[must_use]
    pub const fn new(kind: SourceErrorKind, doing: &'static str) -> Self {
        Self {
            kind,
            doing,
            file: None,
            cause: None,
        }
    }

    /// Returns the error for `cause`, which came up while `doing`.
    #[must_use]
    pub fn from_io(doing: &'static str, cause: io::Error) -> Self {
        let kind = match cause.kind() {
            io::ErrorKind::NotFound => SourceErrorKind::NotFound,
            io::ErrorKind::TimedOut => SourceErrorKind::TimedOut,
            _ => SourceErrorKind::Io,
        };
        Self {
            kind,
            doing,
            file: None,
            cause: Some(cause),
        }
    }

    /// Adds which file it was about.
    #[must_use]
    pub fn about(mut self, file: FileId) -> Self {
        self.file = Some(file);
        self
    }

    /// Returns the kind of error.
    #[must_use]
    pub const fn kind(&self) -> SourceErrorKind {
        self.kind
    }

    /// Returns the error number of the cause, if the system gave one.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        self.cause.as_ref().and_then(io::Error::raw_os_error)
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.doing)?;
        if let Some(file) = self.file {
            write!(f, " of file {}", file.0)?;
        }
        match self.kind {
            SourceErrorKind::NotFound => write!(f, ": it is gone"),
            SourceErrorKind::Stale { .. } => write!(f, ": it changed since it was recorded"),
            SourceErrorKind::TimedOut => write!(f, ": no answer in time"),
            SourceErrorKind::WouldWait => write!(f, ": it would take waiting"),
            SourceErrorKind::Io => write!(f, ": the source failed"),
        }
    }
}

impl std::error::Error for SourceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref().map(|cause| cause as _)
    }
}
