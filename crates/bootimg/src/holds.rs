//! Whether bytes from elsewhere are those that an image has of an extent.

use crate::Image;
use crate::extents::Content;
use crate::layout::hash;

impl Image {
    /// Returns whether an extent of the plan, by its number there, has these bytes. The part of its last block behind
    /// the end of the file is zero.
    #[must_use]
    pub fn holds(&self, extent: usize, bytes: &[u8]) -> bool {
        match self.rows.get(extent).map(|row| &row.content) {
            Some(Content::Data { hash: wanted, .. }) => hash(bytes) == *wanted,
            Some(Content::Zero) => bytes.iter().all(|byte| *byte == 0),
            None => false,
        }
    }

    /// Returns whether an extent of the plan has data: one of zeros is alike in all files.
    #[must_use]
    pub fn has_data(&self, extent: usize) -> bool {
        let row = self.rows.get(extent);
        row.is_some_and(|row| matches!(row.content, Content::Data { .. }))
    }
}
