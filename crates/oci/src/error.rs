//! Why an image in a directory or a tar cannot be used.

use std::io;
use std::path::{Path, PathBuf};

use blocks::Digest;

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
    /// A document cannot be decoded.
    #[error("the {what} cannot be decoded")]
    Json {
        /// Which document.
        what: &'static str,
        /// Where it goes wrong.
        source: serde_json::Error,
    },
    /// A document is well formed and says what cannot be.
    #[error("the {what} is invalid: {rule}")]
    Rule {
        /// Which document.
        what: &'static str,
        /// Which rule.
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
    /// It is another kind of artifact.
    #[error("it is not a container image: its configuration is of type {media_type:?}")]
    NotAnImage {
        /// The type of its configuration.
        media_type: String,
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
    /// There is no image for this kind of machine.
    #[error("there is no image for {wanted}; there is {have}")]
    NoSuchPlatform {
        /// The platform that is needed.
        wanted: String,
        /// The platforms that are there, cut short.
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

/// Returns the names for a message: the first few, and how many more there are.
pub(crate) fn shown(names: impl IntoIterator<Item = String>) -> String {
    const SHOWN: usize = 8;
    let mut names: Vec<String> = names.into_iter().collect();
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    let short = |name: &String| name.chars().take(80).collect::<String>();
    let list: Vec<String> = names.iter().map(short).collect();
    match (list.is_empty(), more) {
        (true, _) => "none with a name".to_owned(),
        (false, 0) => list.join(", "),
        (false, _) => format!("{} and {more} more", list.join(", ")),
    }
}
