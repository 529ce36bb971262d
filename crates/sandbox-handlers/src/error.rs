//! Why a call of a handler failed.

use std::time::Duration;

use sandbox::SandboxError;
use sandbox_packages::PackageError;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// There is no such handler.
    #[error("there is no handler {0}")]
    Unknown(String),
    /// There is one of that name, another one.
    #[error("there is another handler {0} already: remove it first")]
    Exists(String),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// All of its sandboxes are busy, and as many requests wait as may.
    #[error("the handler {0} has as many requests as it may: ask again later")]
    Busy(String),
    /// It did not respond in time.
    #[error("the handler {name} did not answer within {patience:?}")]
    Late {
        /// The handler.
        name: String,
        /// The deadline.
        patience: Duration,
    },
    /// Its code raised an error, or cannot be loaded.
    #[error("the handler {name} failed: {said}")]
    Failed {
        /// The handler.
        name: String,
        /// Its message.
        said: String,
    },
    /// It could not get a sandbox.
    #[error("the handler {name} has no sandbox")]
    Sandbox {
        /// The handler.
        name: String,
        /// The cause.
        source: SandboxError,
    },
    /// It cannot be kept for, or removed from, the next start.
    #[error("the handler {name} is as it was: free space for the settings, and try again")]
    Settings {
        /// The handler.
        name: String,
        /// The cause.
        source: SandboxError,
    },
    /// It could not get its packages.
    #[error("the handler {name} does not have its packages")]
    Packages {
        /// The handler.
        name: String,
        /// The cause.
        source: PackageError,
    },
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, CallError>;
