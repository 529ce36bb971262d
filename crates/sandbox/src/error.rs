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
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A step failed.
    #[error("{doing} failed")]
    Step {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The filter of system calls cannot be made.
    #[error("confining failed")]
    Confine(#[from] confine::ConfineError),
    /// There is no process.
    #[error("starting a process failed")]
    Start(#[source] StartError),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// There is none of that name.
    #[error("there is no {kind} {name}")]
    Unknown {
        /// A kind of thing.
        kind: &'static str,
        /// What it was called.
        name: String,
    },
    /// There is one of that name.
    #[error("there is a {kind} {name} already")]
    Exists {
        /// A kind of thing.
        kind: &'static str,
        /// What it is called.
        name: String,
    },
    /// All places are taken.
    #[error("there are {0} sandboxes, and no more are allowed: end some, or raise the limit")]
    Full(u32),
    /// What was waited for did not happen.
    #[error("{doing} took longer than {patience:?}")]
    Late {
        /// What was waited for.
        doing: &'static str,
        /// How long.
        patience: Duration,
    },
    /// A Zygote refused, or did not keep to the protocol.
    #[error("the Zygote {zygote} {problem}")]
    Zygote {
        /// Which.
        zygote: String,
        /// What it did.
        problem: String,
    },
    /// Everything is about to end.
    #[error("the sandboxes of this process are being closed")]
    Closed,
}

/// The result of what is done to sandboxes.
pub type Result<T> = std::result::Result<T, SandboxError>;

/// Says of an error what was being done.
pub(crate) fn step<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> SandboxError {
    move |source| SandboxError::Step {
        doing,
        source: source.into(),
    }
}

/// Says of an error what was being done, and to what.
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
