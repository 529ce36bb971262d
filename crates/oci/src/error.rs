//! Why an image in a directory or a tar cannot be used.

use std::io;
use std::path::{Path, PathBuf};

use blocks::Digest;
use distribution::image::DocumentError;
use serde::de::DeserializeOwned;

use crate::BlobError;

/// Why an image cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// A file could not be read.
    #[error("cannot read {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A part of the image is missing.
    #[error("{path} has no {name:?}: it is not an image, or only a part of one")]
    Missing {
        /// The directory or archive.
        path: PathBuf,
        /// The missing part.
        name: String,
    },
    /// A blob does not match its name.
    #[error("the blob {digest} is damaged")]
    Blob {
        /// The blob.
        digest: Digest,
        /// The error.
        source: BlobError,
    },
    /// A document of the image cannot be used.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// A file that leads to the image cannot be decoded.
    #[error("the {what} cannot be decoded")]
    Json {
        /// The file.
        what: &'static str,
        /// The error, with its place.
        source: serde_json::Error,
    },
    /// A file that leads to the image breaks a rule.
    #[error("the {what} is invalid: {rule}")]
    Rule {
        /// The file.
        what: &'static str,
        /// The broken rule.
        rule: &'static str,
    },
    /// A part is larger than is sensible.
    #[error("the {what} is too large: {bytes} bytes, at most {limit} are allowed")]
    TooLarge {
        /// The part.
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// How large it may be.
        limit: u64,
    },
    /// There is no image of that name.
    #[error("{path} has no image {wanted:?}; it has {have}")]
    NoSuchImage {
        /// The directory or archive.
        path: PathBuf,
        /// The requested name.
        wanted: String,
        /// The names that are there, cut short.
        have: String,
    },
    /// There are several images, and none was named.
    #[error("{path} has several images: name one of {have}")]
    Ambiguous {
        /// The directory or archive.
        path: PathBuf,
        /// The names that are there, cut short.
        have: String,
    },
    /// An archive is compressed as a whole, so its parts cannot be found.
    #[error("{path} is compressed: decompress it first (gunzip, unzstd)")]
    Compressed {
        /// The archive.
        path: PathBuf,
    },
}

impl ImageError {
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

/// Decodes a file whose length was bounded before it was read.
pub(crate) fn decode<T: DeserializeOwned>(
    what: &'static str,
    bytes: &[u8],
) -> Result<T, ImageError> {
    serde_json::from_slice(bytes).map_err(|source| ImageError::Json { what, source })
}
