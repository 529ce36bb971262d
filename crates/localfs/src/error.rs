//! Why a source cannot be used.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::qcow2::Qcow2Error;
use crate::timed::NoAnswer;

/// What keeps a source from being opened or scanned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// The path cannot be opened.
    #[error("cannot open the source {}", path.display())]
    Open {
        /// The path as it was given.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The path is a device, a pipe or a socket.
    #[error("{} is neither a directory nor a disk image in a regular file", path.display())]
    NotASource {
        /// The path as it was given.
        path: PathBuf,
    },
    /// The path leads elsewhere than where the source was opened.
    #[error(
        "{} was opened at {}: give the path without symbolic links",
        path.display(),
        place.display()
    )]
    Elsewhere {
        /// The path as it was given.
        path: PathBuf,
        /// The directory that was opened.
        place: PathBuf,
    },
    /// A file of a chain of disk images cannot be opened.
    #[error("cannot open the disk image {name:?}, which {wanted_by:?} is based on")]
    Backing {
        /// The file that is missing.
        name: String,
        /// The image that names it.
        wanted_by: String,
        /// Why it cannot be opened.
        source: io::Error,
    },
    /// The header of a qcow2 image makes no sense, or names files that cannot be served with it.
    #[error("the qcow2 image {name:?} cannot be served")]
    Qcow2 {
        /// The image.
        name: String,
        /// The error in it.
        source: Qcow2Error,
    },
    /// The source as a whole cannot be read.
    #[error("cannot scan the source {}", path.display())]
    Scan {
        /// The source's path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The source does not respond.
    #[error(
        "the source {} has not answered for {} s: check its server or its disk",
        path.display(),
        waited.as_secs_f32()
    )]
    NoAnswer {
        /// The source's path.
        path: PathBuf,
        /// How long it was waited for.
        waited: Duration,
    },
    /// No thread can be started to read the source.
    #[error("cannot query the source {}", path.display())]
    Ask {
        /// The source's path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The source has more names, or more bytes in names, than a tree can hold.
    #[error("the source is too large: its names and attributes take more than 4 GiB")]
    TooLarge,
    /// The tables of the scan do not make a tree, which only a bug can cause.
    #[error("the scanned names do not form a tree")]
    Tree(#[from] blocks::TreeError),
}

impl LocalError {
    /// Returns the error for a source that gave no response.
    pub(crate) fn no_answer(why: NoAnswer, path: &Path, waited: Duration) -> Self {
        let path = path.to_path_buf();
        let source = match why {
            NoAnswer::Late => return Self::NoAnswer { path, waited },
            NoAnswer::Died => io::Error::other("the thread that asked it panicked"),
            NoAnswer::NoThread(error) => error,
        };
        Self::Ask { path, source }
    }
}
