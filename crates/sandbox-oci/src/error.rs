//! What can go wrong with a container.

use std::io;
use std::path::PathBuf;

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OciError {
    /// A specification has fields that this program does not honour. `runc` may.
    #[error("{}", .0.join("; "))]
    NotHonoured(Vec<String>),
    /// There is no such container. The message is the one that engines look for.
    #[error("container does not exist: {0}")]
    Unknown(String),
    /// There is one of this name already.
    #[error("container with id exists already: {0}")]
    Exists(String),
    /// A container is not in the required state.
    #[error("{0}")]
    State(String),
    /// The input is invalid.
    #[error("{0}")]
    Invalid(String),
    /// A container's process failed before its program started. The message is that of runc,
    /// by which engines choose an exit code.
    #[error("unable to start container process: {0}")]
    Process(String),
    /// A system call failed.
    #[error("{doing} {}: {source}", .subject.display())]
    System {
        /// The operation.
        doing: &'static str,
        /// Its path.
        subject: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// The result of an operation on containers.
pub type Result<T> = std::result::Result<T, OciError>;

/// Adds the operation and its path to an error.
pub(crate) fn at<E: Into<io::Error>>(
    doing: &'static str,
    subject: impl Into<PathBuf>,
) -> impl FnOnce(E) -> OciError {
    let subject = subject.into();
    move |source| OciError::System {
        doing,
        subject,
        source: source.into(),
    }
}

/// An argument that is wrong.
pub(crate) fn invalid<T>(problem: impl Into<String>) -> Result<T> {
    Err(OciError::Invalid(problem.into()))
}
