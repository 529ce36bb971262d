//! Going through the blocks of an image without leaving them in memory.

use std::io;

use blocks::{BlockCache, BlockRange, FileKey, Lookup};
use parking_lot::Mutex;

use super::{Attached, Ways};
use crate::data::DataSpace;
use crate::extents::Content;
use crate::layout::{PAGE, len_usize, len64};
use crate::{Image, Residue};

/// Blocks that are read at a time, 1 MiB: extents are small, and a disk is best at large pieces.
const WINDOW_BLOCKS: u64 = 256;

/// The blocks of an image for a caller that reads all of them, in their order, and stores them
/// elsewhere: they are read in large pieces, and pages that were not in the page cache before are
/// dropped.
///
/// Blocks that many files have, as clones of a disk do, are read from the disk once: they stay in the page
/// cache until the last file has been read.
#[derive(Debug)]
pub struct Passing<'a> {
    attached: &'a Attached,
    /// The pages that were in the page cache before, if blocks are read again and again.
    shared: Option<Residue>,
    window: Mutex<Window>,
}

/// What was read last of the data space, from block `start` on.
#[derive(Debug, Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Attached {
    /// Returns the blocks for a caller that reads all of them.
    #[must_use]
    pub fn passing(&self) -> Passing<'_> {
        Passing {
            attached: self,
            shared: are_shared(&self.image).then(|| self.image.residue()),
            window: Mutex::default(),
        }
    }
}

/// Returns whether files of an image have so many blocks in common that it is worth to keep these for a while.
fn are_shared(image: &Image) -> bool {
    let rows = image.rows.iter();
    let data = rows.filter(|row| row.content != Content::Zero);
    let named: u64 = data.map(|row| row.extent.range.len()).sum();
    let blocks = image.info().data_blocks;
    named.saturating_sub(blocks) > blocks / 2
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        if let Some(before) = &self.shared {
            before.drop_since();
        }
    }
}

impl Passing<'_> {
    fn read(&self, data: &DataSpace, place: u64, out: &mut [u8]) -> io::Result<()> {
        let image = &self.attached.image;
        if !std::ptr::eq(data, &raw const image.data) {
            return data.read_once(place, out); // what a copy has lost, from the store's own file
        }
        let mut window = self.window.lock();
        if !window.has(place, out.len()) {
            if place < window.start && self.shared.is_none() {
                return data.read_once(place, out); // one of a few that occur twice: what comes next lies ahead
            }
            let left = image.info().data_blocks.saturating_sub(place);
            let blocks = WINDOW_BLOCKS.min(left).max(len64(out.len() / PAGE));
            let mut bytes = std::mem::take(&mut window.bytes);
            bytes.resize(len_usize(blocks) * PAGE, 0);
            if self.read_data(data, place, &mut bytes).is_err() {
                // Something in it cannot be read; that may be no part of what is wanted.
                return self.read_data(data, place, out);
            }
            *window = Window {
                start: place,
                bytes,
            };
        }
        let skip = len_usize(place - window.start) * PAGE;
        out.copy_from_slice(&window.bytes[skip..skip + out.len()]);
        Ok(())
    }

    fn read_data(&self, data: &DataSpace, place: u64, out: &mut [u8]) -> io::Result<()> {
        match self.shared {
            Some(_) => data.read(place, out),
            None => data.read_once(place, out),
        }
    }
}

impl Window {
    fn has(&self, place: u64, len: usize) -> bool {
        let skip = place.checked_sub(self.start).map(len_usize);
        let skip = skip.and_then(|skip| skip.checked_mul(PAGE));
        let end = skip.and_then(|skip| skip.checked_add(len));
        end.is_some_and(|end| end <= self.bytes.len())
    }
}

impl BlockCache for Passing<'_> {
    fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        let read = |data: &DataSpace, place, out: &mut [u8]| self.read(data, place, out);
        let ways = Ways {
            whole: &read,
            part: &read,
        };
        self.attached.get_by(file, range, out, &ways)
    }
}
