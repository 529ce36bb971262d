//! Why a mount could not be made or taken away.

use std::io;
use std::path::{Path, PathBuf};

/// Why a mount could not be made or taken away.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The kernel's device cannot be opened: no FUSE, or no permission.
    #[error("cannot open /dev/fuse")]
    Device(#[source] io::Error),
    /// The target is not a directory that can be mounted over.
    #[error("cannot mount over {}", target.display())]
    Target {
        /// The target.
        target: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A step that has nothing to do with the target failed.
    #[error("{doing} failed")]
    Step {
        /// The step.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The mount could not be taken away: it is in use, or the process may not.
    #[error("cannot unmount {}", target.display())]
    Unmount {
        /// The target.
        target: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another mount covers ours.
    #[error("another mount lies on top of {}", target.display())]
    Covered {
        /// The target.
        target: PathBuf,
    },
    /// The mount was unmounted, but the mount table still shows it.
    #[error("the mount table still shows what was unmounted")]
    Lost,
}

impl MountError {
    pub(crate) fn target(target: &Path, source: io::Error) -> Self {
        Self::Target {
            target: target.to_owned(),
            source,
        }
    }

    pub(crate) fn unmount(target: &Path, source: io::Error) -> Self {
        Self::Unmount {
            target: target.to_owned(),
            source,
        }
    }

    pub(crate) fn step(doing: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Step { doing, source }
    }
}
