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
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A part of the image is not there.
    #[error("{path} has no {name:?}: it is not an image, or only a part of one")]
    Missing {
        /// The directory or archive.
        path: PathBuf,
        /// What is missing.
        name: String,
    },
    /// A blob is not what its name says.
    #[error("the blob {digest} is damaged")]
    Blob {
        /// Which blob.
        digest: Digest,
        /// What is wrong with it.
        source: BlobError,
    },
    /// A document of the image cannot be used.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// A file that leads to the image cannot be decoded.
    #[error("the {what} cannot be decoded")]
    Json {
        /// Which file.
        what: &'static str,
        /// Where it goes wrong.
        source: serde_json::Error,
    },
    /// A file that leads to the image breaks a rule.
    #[error("the {what} is invalid: {rule}")]
    Rule {
        /// Which file.
        what: &'static str,
        /// What is wrong.
        rule: &'static str,
    },
    /// A part is larger than is sensible.
    #[error("the {what} is too large: {bytes} bytes, at most {limit} are allowed")]
    TooLarge {
        /// Which part.
        what: &'static str,
        /// How large it is.
        bytes: u64,
        /// How large it may be.
        limit: u64,
    },
    /// There is no image of that name.
    #[error("{path} has no image {wanted:?}; it has {have}")]
    NoSuchImage {
        /// The directory or archive.
        path: PathBuf,
        /// What was asked for.
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
        /// Which archive.
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
