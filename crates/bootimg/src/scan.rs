//! Going through all data once, in order, and verifying every extent on the way.

use std::io;

use crate::Image;
use crate::extents::{self, Content, EXTENT_BLOCKS_MAX};
use crate::layout::{PAGE, hash, len_usize, len64};

/// Blocks read at a time: 1 MiB, which the kernel hands to a disk as few operations. Cold, with
/// `POSIX_FADV_SEQUENTIAL`, opening and loading an image of 35 MiB took 4 + 11 operations of a
/// virtio disk, copying the file took 13 (read from /sys/block/vda/stat).
const WINDOW_BLOCKS: u64 = 256;
/// The beginning of an extent that continues in the next window.
const KEEP_BLOCKS: u64 = EXTENT_BLOCKS_MAX - 1;

/// A pass over the data space.
#[derive(Debug)]
pub(crate) struct Scan<'a> {
    image: &'a Image,
    /// Extents in the order of their places, and how many of them were verified.
    order: Vec<(u64, usize)>,
    verified: usize,
    /// The next block to read.
    at: u64,
    /// The content of the buffer: blocks from `base` up to `at`.
    base: u64,
    buffer: Vec<u8>,
}

/// What one step of a scan read.
#[derive(Debug)]
pub(crate) struct Window<'b> {
    /// The first of the blocks, in the data space.
    pub(crate) first: u64,
    /// The blocks. Those of an extent that continues in the next window are not verified yet.
    pub(crate) blocks: &'b [u8],
    /// The extents that ended in this window and are damaged, by index.
    pub(crate) damaged: Vec<usize>,
}

impl<'a> Scan<'a> {
    pub(crate) fn new(image: &'a Image) -> Self {
        image.data.advise_all();
        Self {
            image,
            order: extents::by_place(&image.rows),
            verified: 0,
            at: 0,
            base: 0,
            buffer: vec![0; len_usize(KEEP_BLOCKS + WINDOW_BLOCKS) * PAGE],
        }
    }

    /// Reads and verifies the next window; `None` at the end. Unreadable blocks count as
    /// damaged.
    pub(crate) fn next(&mut self) -> Option<Window<'_>> {
        let total = self.image.info().data_blocks;
        if self.at >= total {
            return None;
        }
        let first = self.at;
        let kept = KEEP_BLOCKS.min(first - self.base);
        let old = len_usize(first - self.base) * PAGE;
        let kept_bytes = len_usize(kept) * PAGE;
        self.buffer.copy_within(old - kept_bytes..old, 0);
        self.base = first - kept;
        let count = WINDOW_BLOCKS.min(total - first);
        let new = kept_bytes..kept_bytes + len_usize(count) * PAGE;
        if let Err(error) = self.read(first, new.clone()) {
            log::warn!("cannot read {count} blocks of a boot image: {error}");
        }
        self.at = first + count;
        let damaged = self.verify();
        Some(Window {
            first,
            blocks: &self.buffer[new],
            damaged,
        })
    }

    fn read(&mut self, first: u64, new: std::ops::Range<usize>) -> io::Result<()> {
        let out = &mut self.buffer[new];
        self.image.data.read(first, out).inspect_err(|_| {
            // No block of the data space is zero, so none of these passes for right.
            out.fill(0);
        })
    }

    /// Verifies the extents that end before `at`, and returns the damaged ones.
    fn verify(&mut self) -> Vec<usize> {
        let mut damaged = Vec::new();
        while let Some((place, index)) = self.order.get(self.verified).copied() {
            let row = &self.image.rows[index];
            let len = row.extent.range.len();
            if place + len > self.at {
                break;
            }
            let start = len_usize(place - self.base) * PAGE;
            let bytes = &self.buffer[start..start + len_usize(len) * PAGE];
            if !matches!(row.content, Content::Data { hash: want, .. } if hash(bytes) == want) {
                damaged.push(index);
            }
            self.verified += 1;
        }
        damaged
    }

    /// Returns the bytes read so far.
    pub(crate) fn done(&self) -> u64 {
        self.at * len64(PAGE)
    }
}
