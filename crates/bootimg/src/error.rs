//! What can go wrong with boot images, one enum for each family of operations.

use std::io;
use std::path::PathBuf;

use blocks::{Broken, DecodeTreeError, TreeError};

/// Why the bytes of a boot image cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// Not even a header and a footer fit.
    #[error("too short for a boot image: {len} bytes")]
    TooShort {
        /// Length of the file.
        len: u64,
    },
    /// It is another kind of file.
    #[error("not a boot image")]
    Magic,
    /// It was written by another release.
    #[error("format version {found} is not known; use the yolofs that wrote it, or record again")]
    Version {
        /// The version in the header.
        found: u32,
    },
    /// It needs features that this release lacks.
    #[error("needs features that this release lacks (bits {bits:#x}); use a newer yolofs")]
    Incompatible {
        /// The unknown bits.
        bits: u64,
    },
    /// It was cut off, or something was appended.
    #[error("the header says {header} bytes, the file has {file}")]
    Length {
        /// Length in the header.
        header: u64,
        /// Length of the file.
        file: u64,
    },
    /// A hash does not match.
    #[error("the {what} is damaged: its hash differs")]
    Hash {
        /// The part.
        what: &'static str,
    },
    /// A part breaks a rule of the format.
    #[error("the {what} is invalid: {rule}")]
    Rule {
        /// The part.
        what: &'static str,
        /// The rule.
        rule: &'static str,
    },
    /// A part is larger than the format allows.
    #[error("the {what} is too large: {bytes} bytes, at most {limit} are allowed")]
    TooLarge {
        /// The part.
        what: &'static str,
        /// How large it would be.
        bytes: u64,
        /// How large it may be.
        limit: u64,
    },
    /// The tables of the tree are no tree.
    #[error("the tree is not well formed")]
    Tree(#[source] TreeError),
}

impl FormatError {
    /// Returns whether another release wrote it, so that nothing is known about it: it may be whole, and is not to be
    /// removed as damaged.
    #[must_use]
    pub const fn is_of_another_release(&self) -> bool {
        matches!(self, Self::Version { .. } | Self::Incompatible { .. })
    }
}

impl From<Broken> for FormatError {
    fn from(broken: Broken) -> Self {
        let Broken { what, rule } = broken;
        Self::Rule { what, rule }
    }
}

impl From<DecodeTreeError> for FormatError {
    fn from(error: DecodeTreeError) -> Self {
        match error {
            DecodeTreeError::Broken(broken) => broken.into(),
            DecodeTreeError::Tree(error) => Self::Tree(error),
        }
    }
}

/// Why a boot image could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file could not be read.
    #[error("cannot read the boot image {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It is damaged, or not a boot image.
    #[error("{path} cannot be used")]
    Format {
        /// The file.
        path: PathBuf,
        /// The error in it.
        source: FormatError,
    },
    /// It is a thin image, which only its store can open.
    #[error("{path} is part of a store; open it through the store, or export it")]
    Thin {
        /// The file.
        path: PathBuf,
    },
}

impl OpenError {
    /// Returns whether another release wrote it: see [`FormatError::is_of_another_release`].
    #[must_use]
    pub const fn is_of_another_release(&self) -> bool {
        matches!(self, Self::Format { source, .. } if source.is_of_another_release())
    }
}

/// Why a boot image could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The disk is full. No file is left.
    #[error("no space left for {path}; free some space, or choose another place")]
    DiskFull {
        /// The file that was to be written.
        path: PathBuf,
    },
    /// The file could not be written. No file is left.
    #[error("cannot write {path}: failed {doing}")]
    Io {
        /// The file that was to be written.
        path: PathBuf,
        /// Which step, a verb in its -ing form.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The input breaks a rule or a limit of the format.
    #[error("cannot be kept in a boot image")]
    Format(#[from] FormatError),
    /// The plan does not fit the tree.
    #[error("extent {extent} of the plan is invalid: {problem}")]
    Plan {
        /// Index of the extent.
        extent: usize,
        /// The error.
        problem: &'static str,
    },
    /// The image that was to be copied is damaged.
    #[error("the image to copy is damaged at block {place} of its data")]
    Damaged {
        /// Block of the data space.
        place: u64,
    },
    /// The images to merge are of different sources.
    #[error("the images were recorded from different sources")]
    OtherSource,
    /// There is no image to merge.
    #[error("no images were given")]
    Nothing,
    /// The watch cancelled. No file is left.
    #[error("cancelled")]
    Cancelled,
}

impl WriteError {
    /// Returns the error for `source`, which came up while `doing` something to `path`.
    pub(crate) fn io(path: impl Into<PathBuf>, doing: &'static str, source: io::Error) -> Self {
        let path = path.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { path },
            _ => Self::Io {
                path,
                doing,
                source,
            },
        }
    }
}

/// Why an operation of the store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file or directory of the store could not be used.
    #[error("the store cannot be used: {doing} {path} failed")]
    Io {
        /// The path.
        path: PathBuf,
        /// Which step, a verb in its -ing form.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The directory is not empty, and no store.
    #[error(
        "{path} is not a store of boot images: it contains {found}; name the directory of a store, \
         or one that is empty or not there yet; if it was the store of an earlier release that has no \
         boot images any more, move {found} elsewhere"
    )]
    NotAStore {
        /// The directory.
        path: PathBuf,
        /// What a store would not have.
        found: PathBuf,
    },
    /// The store was made by a later release.
    #[error("the store {path} has version {version}, which is not known; use a newer yolofs")]
    Version {
        /// The store.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// Another process kept the store locked.
    #[error(transparent)]
    Locked(rawio::file_lock::Busy),
    /// No image has this name, id or source.
    #[error("there is no boot image {what}; `bootimg ls` lists all")]
    NotFound {
        /// The requested name or id.
        what: String,
    },
    /// More than one image's id starts like this.
    #[error("the ids of {count} boot images start with {what}; give more digits")]
    Ambiguous {
        /// The requested name or id.
        what: String,
        /// The number of matches.
        count: usize,
    },
    /// A name that cannot be a file's.
    #[error("{name:?} is not a valid name: use 1 to 200 letters, digits, and . _ - : @ +")]
    Name {
        /// The name.
        name: String,
    },
    /// An image could not be opened.
    #[error("an image cannot be opened")]
    Open(#[from] OpenError),
    /// An image could not be written.
    #[error("an image cannot be written")]
    Write(#[from] WriteError),
    /// What describes a container image cannot be used.
    #[error("{path} cannot be used")]
    Stack {
        /// The file.
        path: PathBuf,
        /// The error in it.
        source: crate::StackError,
    },
    /// The image to import is damaged.
    #[error("{path} is damaged: {damaged} of its extents do not match their hashes")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The number of damaged extents.
        damaged: u64,
    },
}

impl StoreError {
    pub(crate) fn io(path: impl Into<PathBuf>, doing: &'static str, source: io::Error) -> Self {
        if matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        ) {
            return Self::Write(WriteError::DiskFull { path: path.into() });
        }
        Self::Io {
            path: path.into(),
            doing,
            source,
        }
    }
}
