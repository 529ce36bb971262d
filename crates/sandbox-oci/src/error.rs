//! What can go wrong with a container.

use std::io;
use std::path::PathBuf;

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OciError {
    /// A specification asks for what this program does not do. `runc` may.
    #[error("{}", .0.join("; "))]
    NotHonoured(Vec<String>),
    /// There is no such container. The words are those that engines look for.
    #[error("container does not exist: {0}")]
    Unknown(String),
    /// There is one already.
    #[error("container with id exists already: {0}")]
    Exists(String),
    /// A container is not in the state that this takes.
    #[error("{0}")]
    State(String),
    /// What was given is wrong.
    #[error("{0}")]
    Invalid(String),
    /// A container's process told that it could not come to its program. The words are those of runc,
    /// by which engines choose an exit code.
    #[error("unable to start container process: {0}")]
    Process(String),
    /// The kernel refused something.
    #[error("{doing} {}: {source}", .subject.display())]
    System {
        /// What was being done.
        doing: &'static str,
        /// To what.
        subject: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The result of what is done to containers.
pub type Result<T> = std::result::Result<T, OciError>;

/// Says of an error what was being done, and to what.
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
