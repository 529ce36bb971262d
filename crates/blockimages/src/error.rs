//! Why a block image cannot be used.

use std::io;
use std::path::PathBuf;

/// An error of opening a block image or its cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// A file cannot be used.
    #[error("{doing} {}", .path.display())]
    File {
        /// The operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The configuration of an image is invalid.
    #[error("the configuration {} is invalid", .path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// The configuration of an image breaks a rule.
    #[error("the configuration {} is invalid: {rule}", .path.display())]
    Rule {
        /// The file.
        path: PathBuf,
        /// The rule.
        rule: &'static str,
    },
    /// A layer cannot be opened.
    #[error("layer {number} (from the bottom, {name}) cannot be opened")]
    Layer {
        /// Which one, from 1 on.
        number: usize,
        /// Its name.
        name: String,
        /// The cause.
        source: lsmt::LsmtError,
    },
    /// The writable layer cannot be used.
    #[error("{doing} the writable layer {}", .path.display())]
    Upper {
        /// The operation.
        doing: &'static str,
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: lsmt::LsmtError,
    },
    /// Another process, or another device of this one, owns the writable layer.
    #[error("{} is in use, and one process owns a writable layer: stop its export first", .0.display())]
    UpperInUse(PathBuf),
    /// The file system of an image cannot be written to.
    #[error(
        "there is no ext4 in {}, and no other file system can be written to here: convert the image to an ext4",
        .0.display()
    )]
    NotWritable(PathBuf),
    /// A file system that was not unmounted cannot be mounted.
    #[error("the file system on {} was not unmounted, and cannot be checked: {why}", .path.display())]
    Unchecked {
        /// The device.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// An image that is to be made cannot be.
    #[error("{} cannot be made: {rule}", .path.display())]
    Create {
        /// The path.
        path: PathBuf,
        /// The reason.
        rule: &'static str,
    },
    /// The layers do not make a device.
    #[error("the layers do not make a device")]
    Stack(#[source] lsmt::LsmtError),
    /// A trace of a start cannot be used.
    #[error("the trace {} cannot be used", .path.display())]
    Trace {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: lsmt::LsmtError,
    },
    /// A plan of a start cannot be used.
    #[error("the plan {} cannot be used", .path.display())]
    Plan {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: crate::plan::PlanError,
    },
    /// The origin of a blob cannot be used.
    #[error("blob {digest} cannot be fetched")]
    Origin {
        /// The digest.
        digest: String,
        /// The cause.
        source: io::Error,
    },
    /// A blob is not here, and there is nowhere to fetch it from.
    #[error("blob {digest} is not on this machine: name a cache directory (`cache`) to fetch it")]
    Remote {
        /// The digest.
        digest: String,
    },
    /// Another process owns a cache directory.
    #[error("another process owns the cache {}: stop it, or choose another directory", .0.display())]
    CacheInUse(PathBuf),
}

/// Adds the operation and the file to an error.
pub(crate) fn file(
    doing: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(io::Error) -> ImageError {
    let path = path.into();
    move |source| ImageError::File {
        doing,
        path,
        source,
    }
}
