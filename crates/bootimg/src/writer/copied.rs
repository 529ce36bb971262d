//! Finding that a copy of a source has the very blocks of an image: then only its metadata has to be written.

use blocks::FileKey;

use crate::against::read_blocks;
use crate::extents::{Content, EXTENT_BLOCKS_MAX, EXTENT_BYTES_MAX, Row, file_blocks};
use crate::layout::{PAGE_BYTES, hash, is_zero, len_usize};
use crate::writer::recheck::{self, Racy};
use crate::writer::{WriteRequest, check_plan};
use crate::{Image, Progress, Watch, WriteError};

/// Returns the table of extents of an image of `request` that has the data space of `origin`; `None` if the source has other blocks,
/// or not all, or if a block of `origin` rotted: nobody is to share that.
pub(crate) fn rows_of_copy(
    origin: &Image,
    request: &WriteRequest<'_>,
    watch: Watch<'_>,
) -> Result<Option<Vec<Row>>, WriteError> {
    check_plan(request)?;
    let wanted = &request.plan.extents;
    if wanted.len() != origin.rows.len() {
        return Ok(None);
    }
    let total = request.plan.block_count() * PAGE_BYTES;
    let mut done = 0;
    let mut racy = Racy::default();
    let mut rows = Vec::with_capacity(wanted.len());
    for (extent, was) in wanted.iter().zip(&origin.rows) {
        if watch(Progress { done, total }).is_break() {
            return Err(WriteError::Cancelled);
        }
        done += extent.range.byte_len();
        let Some(key) = request.tree.key(extent.file) else {
            return Ok(None);
        };
        let fits = extent.range.end().0 <= file_blocks(key.version.size);
        if extent.range != was.extent.range || !fits {
            return Ok(None);
        }
        racy.note(&key);
        if !has(origin, was, request, &key) {
            return Ok(None);
        }
        rows.push(Row {
            extent: *extent,
            content: was.content,
        });
    }
    // What was read last may have changed what was read first.
    let is_settled = recheck::after_reading(request, &rows, &racy).is_none();
    Ok(is_settled.then_some(rows))
}

/// Returns whether the source has in a file what `origin` has in a row.
fn has(origin: &Image, row: &Row, request: &WriteRequest<'_>, key: &FileKey) -> bool {
    let mut buffer = [0; EXTENT_BYTES_MAX];
    let mut rest = row.extent.range;
    while !rest.is_empty() {
        let (part, after) = rest.split_first(EXTENT_BLOCKS_MAX);
        let data = &mut buffer[..len_usize(part.byte_len())];
        if read_blocks(request.blocks, key, part, data).is_err() {
            return false;
        }
        let same = match row.content {
            Content::Zero => is_zero(data),
            // A row with data is no longer than what is read at a time.
            Content::Data { place, hash: want } => {
                hash(data) == want && is_stored(origin, place, data)
            }
        };
        if !same {
            return false;
        }
        rest = after;
    }
    true
}

/// Returns whether `origin` has these blocks, unharmed.
fn is_stored(origin: &Image, place: u64, data: &[u8]) -> bool {
    let mut stored = [0; EXTENT_BYTES_MAX];
    let stored = &mut stored[..data.len()];
    origin.data.read(place, stored).is_ok() && stored == data
}
