//! Making sure that what was read is one version of each file.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, SystemTime};

use blocks::{BlockIndex, BlockRange, FileId, FileKey, Timestamp};

use crate::DropReason;
use crate::against::read_blocks;
use crate::extents::{Content, EXTENT_BLOCKS_MAX, EXTENT_BYTES_MAX, Row};
use crate::layout::{hash, len_usize};
use crate::writer::WriteRequest;

/// Files that had changed so shortly before they were read that a change after it may not show.
#[derive(Debug, Default)]
pub(super) struct Racy {
    files: BTreeSet<FileId>,
    /// When a change of any of them would show.
    settled: Option<Instant>,
}

impl Racy {
    /// Notes that a file is about to be read.
    pub(super) fn note(&mut self, key: &FileKey) {
        if key.version.is_recent(Timestamp::of(SystemTime::now())) {
            self.files.insert(key.file);
            // By our clock from now on: that of a file server may be ahead.
            let settled = Instant::now() + key.version.tick();
            self.settled = Some(self.settled.map_or(settled, |other| other.max(settled)));
        }
    }

    /// Waits until a tick has passed since any of them was read.
    fn settle(&self) {
        let left = self
            .settled
            .map(|settled| settled.saturating_duration_since(Instant::now()));
        // What is waited for is the time itself.
        std::thread::sleep(left.unwrap_or_default());
    }
}

/// Returns the files of the plan that are not in the version that the tree says.
pub(super) fn stale_files(request: &WriteRequest<'_>) -> BTreeMap<FileId, DropReason> {
    let extents = request.plan.extents.iter();
    let firsts: BTreeMap<_, _> = extents.map(|e| (e.file, e.range.start())).collect();
    firsts
        .into_iter()
        .filter_map(|(file, block)| Some((file, probe(request, file, block)?)))
        .collect()
}

/// Returns a file that changed while it was read, if there is one.
pub(super) fn after_reading(
    request: &WriteRequest<'_>,
    rows: &[Row],
    racy: &Racy,
) -> Option<(FileId, DropReason)> {
    racy.settle();
    let mut buffer = [0; EXTENT_BYTES_MAX];
    for row in rows
        .iter()
        .filter(|row| racy.files.contains(&row.extent.file))
    {
        if let Err(reason) = same_again(request, row, &mut buffer) {
            return Some((row.extent.file, reason));
        }
    }
    let extents = rows.iter().map(|row| row.extent);
    let firsts: BTreeMap<_, _> = extents.map(|e| (e.file, e.range.start())).collect();
    firsts
        .into_iter()
        .find_map(|(file, block)| Some((file, probe(request, file, block)?)))
}

/// Reads a row again and compares.
fn same_again(request: &WriteRequest<'_>, row: &Row, buffer: &mut [u8]) -> Result<(), DropReason> {
    let key = request.tree.key(row.extent.file).ok_or(DropReason::Gone)?;
    let mut rest = row.extent.range;
    while !rest.is_empty() {
        let (range, after) = rest.split_first(EXTENT_BLOCKS_MAX);
        let data = &mut buffer[..len_usize(range.byte_len())];
        read_blocks(request.blocks, &key, range, data)?;
        let same = match row.content {
            Content::Zero => crate::layout::is_zero(data),
            Content::Data { hash: before, .. } => hash(data) == before,
        };
        if !same {
            return Err(DropReason::Changed);
        }
        rest = after;
    }
    Ok(())
}

/// Asks for one byte of a block that will be read or was read: the source compares the version.
fn probe(request: &WriteRequest<'_>, file: FileId, block: BlockIndex) -> Option<DropReason> {
    let key = request.tree.key(file)?;
    if key.version.size <= block.byte_offset() {
        return None;
    }
    let range = BlockRange::with_len(block, 1);
    read_blocks(request.blocks, &key, range, &mut [0]).err()
}
