//! Reading what a plan names, and finding what of it is zero or was there before.

use std::collections::{BTreeMap, HashMap};

use blocks::{BLOCK_SIZE, BlockIndex, BlockRange, Extent, FileId};

use crate::against::read_blocks;
use crate::extents::{
    Content, EXTENT_BLOCKS_MAX, EXTENT_BYTES_MAX, Row, ZERO_BLOCKS_MAX, file_blocks,
};
use crate::layout::{HASH, hash, is_zero, len_usize, len64};
use crate::writer::assemble::Assembler;
use crate::writer::recheck::Racy;
use crate::writer::{WriteRequest, recheck};
use crate::{DropReason, Progress, Watch, WriteError};

/// What came of a pass over the plan.
#[derive(Debug)]
pub(super) enum Collected {
    /// All rows of the table of extents; their data is in the file.
    All(Vec<Row>),
    /// A file has to be left out: begin again without it.
    Dropped(FileId, DropReason),
}

/// One pass over the plan.
#[derive(Debug)]
pub(super) struct Collector<'a, 'o, 's> {
    request: &'a WriteRequest<'a>,
    dropped: &'a BTreeMap<FileId, DropReason>,
    out: &'o mut Assembler<'s>,
    rows: Vec<Row>,
    /// Places of the blocks that are in the data space.
    known: HashMap<[u8; HASH], u64>,
    racy: Racy,
}

impl<'a, 'o, 's> Collector<'a, 'o, 's> {
    pub(super) fn new(
        request: &'a WriteRequest<'a>,
        dropped: &'a BTreeMap<FileId, DropReason>,
        out: &'o mut Assembler<'s>,
    ) -> Self {
        Self {
            request,
            dropped,
            out,
            rows: Vec::new(),
            known: HashMap::new(),
            racy: Racy::default(),
        }
    }

    pub(super) fn run(mut self, watch: Watch<'_>) -> Result<Collected, WriteError> {
        let plan = &self.request.plan.extents;
        let total = plan.iter().map(|extent| extent.range.byte_len()).sum();
        let mut done = 0;
        for extent in plan {
            if watch(Progress { done, total }).is_break() {
                return Err(WriteError::Cancelled);
            }
            done += extent.range.byte_len();
            if self.dropped.contains_key(&extent.file) {
                continue;
            }
            if let Err(reason) = self.extent(extent)? {
                return Ok(Collected::Dropped(extent.file, reason));
            }
        }
        // What was read last may have changed what was read first.
        if let Some((file, reason)) = recheck::after_reading(self.request, &self.rows, &self.racy) {
            return Ok(Collected::Dropped(file, reason));
        }
        if watch(Progress { done, total }).is_break() {
            return Err(WriteError::Cancelled);
        }
        Ok(Collected::All(self.rows))
    }

    fn extent(&mut self, extent: &Extent) -> Result<Result<(), DropReason>, WriteError> {
        let Some(key) = self.request.tree.key(extent.file) else {
            return Ok(Err(DropReason::Gone));
        };
        // A boot may ask for more than there is.
        let file = BlockRange::with_len(BlockIndex(0), file_blocks(key.version.size));
        let mut rest = extent.range.intersect(file);
        let mut buffer = [0; EXTENT_BYTES_MAX];
        while !rest.is_empty() {
            // Cut where reads of 64 KiB and more are cut too.
            let cut = (rest.start().0 / EXTENT_BLOCKS_MAX + 1) * EXTENT_BLOCKS_MAX;
            let (range, after) = rest.split_at(BlockIndex(cut));
            let data = &mut buffer[..len_usize(range.byte_len())];
            self.racy.note(&key);
            if let Err(reason) = read_blocks(self.request.blocks, &key, range, data) {
                return Ok(Err(reason));
            }
            self.chunk(&Extent { range, ..*extent }, data)?;
            rest = after;
        }
        Ok(Ok(()))
    }

    /// Makes rows of up to 16 blocks: a new row begins wherever the places are not contiguous.
    fn chunk(&mut self, extent: &Extent, data: &[u8]) -> Result<(), WriteError> {
        let mut first = 0;
        let mut content: Option<Option<u64>> = None;
        let mut len = 0u64;
        for (index, block) in data.chunks_exact(BLOCK_SIZE).enumerate() {
            let here = self.place(block)?;
            let goes_on = match content {
                Some(None) => here.is_none(),
                Some(Some(place)) => here == Some(place + len),
                None => false,
            };
            if goes_on {
                len += 1;
                continue;
            }
            if let Some(content) = content {
                self.row(
                    extent,
                    first,
                    &data[first * BLOCK_SIZE..index * BLOCK_SIZE],
                    content,
                );
            }
            (first, content, len) = (index, Some(here), 1);
        }
        if let Some(content) = content {
            self.row(extent, first, &data[first * BLOCK_SIZE..], content);
        }
        Ok(())
    }

    /// Returns where a block is in the data space, where it is put if it is new; `None` for
    /// zeros.
    fn place(&mut self, block: &[u8]) -> Result<Option<u64>, WriteError> {
        if is_zero(block) {
            return Ok(None);
        }
        let next = len64(self.known.len());
        let place = *self.known.entry(hash(block)).or_insert(next);
        if place == next {
            self.out.data(block)?;
        }
        Ok(Some(place))
    }

    fn row(&mut self, extent: &Extent, first: usize, data: &[u8], place: Option<u64>) {
        let start = BlockIndex(extent.range.start().0 + len64(first));
        let range = BlockRange::with_len(start, len64(data.len() / BLOCK_SIZE));
        let content = match place {
            None => Content::Zero,
            Some(place) => Content::Data {
                place,
                hash: hash(data),
            },
        };
        if let (Content::Zero, Some(last)) = (content, self.rows.last_mut()) {
            let joined = BlockRange::new(last.extent.range.start(), range.end());
            let same = Extent {
                range: last.extent.range,
                ..*extent
            };
            if last.content == Content::Zero
                && last.extent == same
                && same.range.end() == range.start()
                && joined.len() <= ZERO_BLOCKS_MAX
            {
                last.extent.range = joined;
                return;
            }
        }
        let extent = Extent { range, ..*extent };
        self.rows.push(Row { extent, content });
    }
}
