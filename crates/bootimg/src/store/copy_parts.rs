//! A copy of an image that is in parts.

use std::fs::File;

use blocks::ContentId;

/// A thin image, and its segments: sparse ones, with all of its blocks where they belong.
#[derive(Debug)]
pub struct CopyParts {
    /// The image.
    pub image: File,
    /// The segments, by their ids.
    pub segments: Vec<(ContentId, File)>,
}
