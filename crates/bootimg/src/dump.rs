//! The content of an image, row by row, for inspection.

use blocks::{BlockRange, ContentId, FileId};

use crate::Image;
use crate::extents::Content;

/// A row of the table of extents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpRow {
    /// Which file of the image's tree.
    pub file: FileId,
    /// One path of it, without a leading `/`.
    pub path: Vec<u8>,
    /// The blocks.
    pub range: BlockRange,
    /// Time bin of the first use.
    pub bin: u32,
    /// How many of the runs needed it.
    pub seen: u16,
    /// First block in the image's data, and the hash of its blocks; `None` if all are zero.
    pub data: Option<(u64, ContentId)>,
}

impl Image {
    /// Returns every extent, in replay order.
    pub fn dump(&self) -> impl Iterator<Item = DumpRow> {
        self.rows.iter().map(|row| DumpRow {
            file: row.extent.file,
            path: self.tree().path(row.extent.file).unwrap_or_default(),
            range: row.extent.range,
            bin: row.extent.bin,
            seen: row.extent.seen,
            data: match row.content {
                Content::Zero => None,
                Content::Data { place, hash } => Some((place, ContentId(hash))),
            },
        })
    }
}
