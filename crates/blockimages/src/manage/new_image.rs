//! What is to be made of a new image.

use lsmt::UpperKind;

/// What is to be made of a new image besides its layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewImage {
    /// What it has on top.
    pub top: Top,
    /// Bytes of the device; `None` for the size of the layers.
    pub size: Option<u64>,
    /// Bytes of data that a pair of files may have.
    pub limit: Option<u64>,
}

impl From<Top> for NewImage {
    fn from(top: Top) -> Self {
        Self {
            top,
            size: None,
            limit: None,
        }
    }
}

impl NewImage {
    /// Returns the same with so many bytes.
    #[must_use]
    pub fn sized(self, size: impl Into<Option<u64>>) -> Self {
        Self {
            size: size.into(),
            ..self
        }
    }
}

/// What a new image has on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Top {
    /// Nothing: it can only be read.
    Sealed,
    /// overlaybd's pair of files.
    Pair(UpperKind),
    /// The directory of a live image, whose garbage is collected while it is in use.
    Live,
}
