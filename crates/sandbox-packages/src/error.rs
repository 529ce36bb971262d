//! Why a package cannot be had.

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
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// There is no such package, or nobody has asked for it before.
    #[error("{0}")]
    Unknown(String),
    /// It is used.
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
        /// What was being done.
        doing: &'static str,
        /// Why there is none.
        source: SandboxError,
    },
    /// The installer failed.
    #[error("{doing} {what} failed: {said}")]
    Installer {
        /// What was being done.
        doing: &'static str,
        /// To what.
        what: String,
        /// The end of what it said.
        said: String,
    },
    /// What was installed is not what it should be.
    #[error("{package} is refused: {problem}")]
    Hostile {
        /// The package.
        package: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// The result of what is done to packages.
pub type Result<T> = std::result::Result<T, PackageError>;

/// Says of an error what was being done, and to what.
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
