//! Why a sandbox cannot be made or used.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rawio::child::StartError;

/// What goes wrong with sandboxes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// A step on a file or directory failed.
    #[error("{doing} {} failed", path.display())]
    Path {
        /// The operation.
        doing: &'static str,
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A step failed.
    #[error("{doing} failed")]
    Step {
        /// The operation.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The filter of system calls cannot be made.
    #[error("confining failed")]
    Confine(#[from] confine::ConfineError),
    /// No process could be started.
    #[error("starting a process failed")]
    Start(#[source] StartError),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// There is no object of this name.
    #[error("there is no {kind} {name}")]
    Unknown {
        /// The kind of object.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// There is one of that name.
    #[error("there is a {kind} {name} already")]
    Exists {
        /// The kind of object.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The limit is reached.
    #[error("there are {0} sandboxes, and no more are allowed: end some, or raise the limit")]
    Full(u32),
    /// An expected event did not happen in time.
    #[error("{doing} took longer than {patience:?}")]
    Late {
        /// The operation.
        doing: &'static str,
        /// The deadline.
        patience: Duration,
    },
    /// A Zygote refused, or did not keep to the protocol.
    #[error("the Zygote {zygote} {problem}")]
    Zygote {
        /// The Zygote.
        zygote: String,
        /// The problem.
        problem: String,
    },
    /// Everything is about to end.
    #[error("the sandboxes of this process are being closed")]
    Closed,
}

/// The result of an operation on sandboxes.
pub type Result<T> = std::result::Result<T, SandboxError>;

/// Adds the operation to an error.
pub(crate) fn step<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> SandboxError {
    move |source| SandboxError::Step {
        doing,
        source: source.into(),
    }
}

/// Adds the operation and its path to an error.
pub(crate) fn at<E: Into<io::Error>>(
    doing: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(E) -> SandboxError {
    let path = path.into();
    move |source| SandboxError::Path {
        doing,
        path,
        source: source.into(),
    }
}
