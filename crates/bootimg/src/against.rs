//! Comparing an image with a source, byte by byte.

use std::collections::HashMap;
use std::sync::Arc;

use blocks::{BlockRange, BlockSource, Extent, FileId, FileKey, Paths, SourceErrorKind, Tree};

use crate::extents::{Content, EXTENT_BLOCKS_MAX, EXTENT_BYTES_MAX};
use crate::first_of::PATHS_BUDGET;
use crate::layout::{PAGE_BYTES, hash, is_zero, len_usize, len64};
use crate::{AttachReport, Cancelled, DropReason, FirstOf, Image, Progress, Watch};

/// A file whose content differs from the image, although its version is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDifference {
    /// One path of the file, without a leading `/`.
    pub path: Vec<u8>,
    /// The blocks that differ.
    pub ranges: Vec<BlockRange>,
    /// Why the rest of it could not be compared, if it could not.
    pub failed: Option<DropReason>,
}

/// How an image compares with a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgainstReport {
    /// What could be matched; only that is compared.
    pub attach: AttachReport,
    /// Blocks that are the same.
    pub blocks_same: u64,
    /// Files that differ.
    pub differences: FirstOf<FileDifference>,
}

impl Image {
    /// Compares the content of every extent with a source, whose present metadata is `current`.
    ///
    /// # Errors
    /// Only if the watch cancels: differences are reported.
    pub fn verify_against(
        self: &Arc<Self>,
        current: &Tree,
        source: &dyn BlockSource,
        watch: Watch<'_>,
    ) -> Result<AgainstReport, Cancelled> {
        let attached = Arc::clone(self).attach(current);
        let total = attached.report().blocks_kept * PAGE_BYTES;
        let mut report = AgainstReport {
            attach: attached.report().clone(),
            blocks_same: 0,
            differences: FirstOf::default(),
        };
        let mut notes = Notes {
            paths: current.paths_within(PATHS_BUDGET),
            known: HashMap::new(),
        };
        let mut done = 0;
        for (extent, content) in attached.extents() {
            if watch(Progress { done, total }).is_break() {
                return Err(Cancelled);
            }
            done += extent.range.byte_len();
            let Some(key) = current.key(extent.file) else {
                continue;
            };
            match same(source, &key, extent.range, &content) {
                Ok(true) => report.blocks_same += extent.range.len(),
                Ok(false) => notes.add(&mut report.differences, &extent, None),
                Err(reason) => notes.add(&mut report.differences, &extent, Some(reason)),
            }
        }
        Ok(report)
    }
}

/// Collects what differs, by file.
struct Notes<'a> {
    paths: Paths<'a>,
    /// Where a file is in the list of those that differ.
    known: HashMap<FileId, usize>,
}

impl Notes<'_> {
    fn add(
        &mut self,
        found: &mut FirstOf<FileDifference>,
        extent: &Extent,
        failed: Option<DropReason>,
    ) {
        let next = self.known.len();
        let index = *self.known.entry(extent.file).or_insert(next);
        if index == next {
            found.add(|| FileDifference {
                path: self.paths.next(extent.file),
                ranges: Vec::new(),
                failed: None,
            });
        }
        let Some(difference) = found.get_mut(index) else {
            return; // counted, and not kept
        };
        match failed {
            Some(reason) => difference.failed = Some(reason),
            None => difference.ranges.push(extent.range),
        }
    }
}

fn same(
    source: &dyn BlockSource,
    key: &FileKey,
    range: BlockRange,
    content: &Content,
) -> Result<bool, DropReason> {
    let mut buffer = [0; EXTENT_BYTES_MAX];
    let mut rest = range;
    while !rest.is_empty() {
        let (part, after) = rest.split_first(EXTENT_BLOCKS_MAX);
        let data = &mut buffer[..len_usize(part.byte_len())];
        read_blocks(source, key, part, data)?;
        let same = match content {
            Content::Zero => is_zero(data),
            Content::Data { hash: want, .. } => hash(data) == *want,
        };
        if !same {
            return Ok(false);
        }
        rest = after;
    }
    Ok(true)
}

/// Fills `data` with the blocks of `range` of a file, the last one filled up with zeros.
pub(crate) fn read_blocks(
    source: &dyn BlockSource,
    key: &FileKey,
    range: BlockRange,
    data: &mut [u8],
) -> Result<(), DropReason> {
    let offset = range.bytes().start;
    let left = len_usize(key.version.size.saturating_sub(offset));
    let (inside, behind) = data.split_at_mut(left.min(data.len()));
    let mut done = 0;
    while done < inside.len() {
        match source.read_at(key, offset + len64(done), &mut inside[done..]) {
            // It ends before its size: it is being cut.
            Ok(0) => return Err(DropReason::Changed),
            Ok(read) => done += read,
            Err(error) => {
                return Err(match error.kind() {
                    SourceErrorKind::Stale { .. } => DropReason::Changed,
                    SourceErrorKind::NotFound => DropReason::Gone,
                    _ => DropReason::Unreadable,
                });
            }
        }
    }
    behind.fill(0);
    Ok(())
}
