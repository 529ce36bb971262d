//! Why an operation on packages failed.

use std::io;
use std::path::PathBuf;

use sandbox::SandboxError;

/// What goes wrong with packages.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackageError {
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
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// There is no such package, or it was not installed.
    #[error("{0}")]
    Unknown(String),
    /// It is in use.
    #[error("the package {package} is used by {by}: end that first")]
    InUse {
        /// The package.
        package: String,
        /// A Zygote or a sandbox.
        by: String,
    },
    /// The sandbox that it was to be done in failed.
    #[error("{doing} needs a sandbox")]
    Sandbox {
        /// The operation.
        doing: &'static str,
        /// The cause.
        source: SandboxError,
    },
    /// The installer failed.
    #[error("{doing} {what} failed: {said}")]
    Installer {
        /// The operation.
        doing: &'static str,
        /// Its subject.
        what: String,
        /// The end of its output.
        said: String,
    },
    /// The installed files are not valid.
    #[error("{package} is refused: {problem}")]
    Hostile {
        /// The package.
        package: String,
        /// The problem.
        problem: String,
    },
}

/// The result of an operation on packages.
pub type Result<T> = std::result::Result<T, PackageError>;

/// Adds the operation and its path to an error.
pub(crate) fn at<E: Into<io::Error>>(
    doing: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(E) -> PackageError {
    let path = path.into();
    move |source| PackageError::Path {
        doing,
        path,
        source: source.into(),
    }
}
