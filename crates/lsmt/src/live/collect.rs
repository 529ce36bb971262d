//! Garbage collection: copies the live data of a writable layer to a new one, while it is in use.

use std::sync::Arc;

use super::{LiveImage, Pace, create_files, file_names};
use crate::commit::encode;
use crate::error::{Doing, Result};
use crate::header::{DATA_SECTOR, HEADER_BYTES};
use crate::image::Layers;
use crate::num::{SECTOR, size};
use crate::segment::{Content, Segment};
use crate::storage::Storage;
use crate::upper::{Map, Upper, UpperFiles, UpperKind};

/// Sectors that are copied at once.
const COPY_SECTORS: u64 = 512;
/// Sectors of new data with which the rest is copied while writes wait: 1 MiB.
const REST_SECTORS: u64 = 2048;
/// Rounds after which the rest is copied however much it is.
const ROUNDS: usize = 8;

/// The result of a garbage collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Bytes of data before it.
    pub before: u64,
    /// Bytes of data after it.
    pub after: u64,
    /// Bytes that were copied, of which some were overwritten meanwhile.
    pub copied: u64,
}

impl LiveImage {
    /// Copies the live data of the writable layer to a new one, and removes the old one with its garbage.
    /// Writes continue meanwhile, except during the last mebibyte. A sparse layer has no garbage.
    ///
    /// # Errors
    ///
    /// Fails if another operation is running, if it is canceled, and as the storage does; unless the last
    /// step failed, the image stays as before.
    pub fn collect(&self, pace: &Pace) -> Result<Collected> {
        let mut state = self.begin()?;
        let old = self.image.upper()?;
        let before = old.usage().data_bytes;
        if old.kind() == UpperKind::Sparse {
            return Ok(Collected {
                before,
                after: before,
                copied: 0,
            });
        }
        let frozen = old.freeze()?;
        let mut manifest = state.manifest.clone();
        let number = manifest.take_number();
        let files = create_files(&*self.folder, number)?;
        let mut copy = Copy::new(&old, &files);
        for _ in 0..ROUNDS {
            if copy.round(pace, old.settled())? <= REST_SECTORS {
                break;
            }
        }
        let stopped = old.stop()?;
        // What is left does not wait for the pace: writes wait for it.
        copy.round(&Pace::unlimited(), old.snapshot())?;
        let collected = Collected {
            before,
            after: (copy.at - DATA_SECTOR) * SECTOR,
            copied: copy.copied * SECTOR,
        };
        copy.finish()?;
        self.folder.sync().doing("sync the folder")?;
        let upper = Upper::open(files)?;
        let replaced = std::mem::replace(&mut manifest.upper, number);
        self.store(&manifest, &old)?;
        old.retire();
        let stack = self.image.stack();
        self.image.replace(Layers {
            stack,
            upper: Some(Arc::new(upper)),
        });
        drop((stopped, frozen));
        state.manifest = manifest;
        for name in file_names(replaced) {
            // What stays is removed when the image is opened.
            self.folder
                .remove(&name)
                .doing("remove a collected layer")?;
        }
        Ok(collected)
    }
}

/// A copy under way.
struct Copy<'a> {
    old: &'a Upper,
    files: &'a UpperFiles,
    /// The copied segments, and their new places.
    placed: Map,
    /// Data of the old layer before this sector was copied.
    seen: u64,
    /// Where the next data goes.
    at: u64,
    copied: u64,
}

impl<'a> Copy<'a> {
    fn new(old: &'a Upper, files: &'a UpperFiles) -> Self {
        Self {
            old,
            files,
            placed: Map::default(),
            seen: 0,
            at: DATA_SECTOR,
            copied: 0,
        }
    }

    /// Copies what is new since the last round, and returns how many sectors came meanwhile. No write was under
    /// way when the snapshot was taken.
    ///
    /// Nothing is overwritten in place, so what is new lies behind what there was.
    fn round(&mut self, pace: &Pace, (segments, end): (Vec<Segment>, u64)) -> Result<u64> {
        for segment in segments {
            match segment.content() {
                // Zeros take no copying: all of them are placed again.
                Content::Zeros => self.place(segment, self.at),
                Content::Data if segment.mend() > self.seen => {
                    // New data may have been joined with old data.
                    let old = self.seen.saturating_sub(segment.moffset());
                    let new = segment.clipped(segment.offset() + old, segment.end());
                    self.copy(new, pace)?;
                }
                Content::Data => {}
            }
        }
        self.seen = end;
        Ok(self.old.snapshot().1 - end)
    }

    fn copy(&mut self, segment: Segment, pace: &Pace) -> Result<()> {
        let mut from = segment.offset();
        while from < segment.end() {
            let part = segment.clipped(from, from + COPY_SECTORS);
            let mut data = vec![0; size(part.sectors() * SECTOR)];
            pace.spend(part.sectors() * SECTOR)?;
            self.old.read_segment(part, 0, &mut data)?;
            self.files
                .data
                .write_at(&data, self.at * SECTOR)
                .doing("write the writable layer")?;
            self.place(part, self.at);
            self.at += part.sectors();
            self.copied += part.sectors();
            from = part.end();
        }
        Ok(())
    }

    fn place(&mut self, segment: Segment, at: u64) {
        let content = segment.content();
        self.placed.insert(Segment::new(
            segment.offset(),
            segment.sectors(),
            at,
            content,
        ));
    }

    /// Writes headers and index, and syncs both files.
    fn finish(self) -> Result<()> {
        let (header, index_header) = self.old.headers();
        let sync = |file: &dyn Storage, header: Vec<u8>| {
            file.write_at(&header, 0).doing("write a layer's header")?;
            file.sync().doing("sync a layer")
        };
        sync(&*self.files.data, header)?;
        let entries = encode(&self.placed.segments());
        self.files
            .index
            .write_at(&entries, HEADER_BYTES)
            .doing("write the index")?;
        sync(&*self.files.index, index_header)
    }
}
