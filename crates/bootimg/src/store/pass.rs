//! Loading many images into memory in one pass over the disk of the store.
//!
//! Images share segments, and have their blocks in many places of them. Image by image, a disk would seek between
//! these places again and again. A pass first determines which blocks of which segments are needed, reads these in the
//! order of the segments on the disk, including small gaps between them if reading a gap takes less time
//! than a seek, which is measured, and verifies each block once, by the table of its segment.

mod choice;
mod device;
mod order;
mod reading;
mod requests;

use std::collections::{BTreeMap, BTreeSet};

use blocks::{BlockIndex, BlockRange, ContentId, RangeSet};
use rawio::resident::{Resident, is_only_copy};

use crate::backing::Backing;
use crate::data::segment_offset;
use crate::layout::PAGE_BYTES;
use crate::reader::open_regular;
use crate::store::catalog::{self, Described};
use crate::{Image, ImageId, Store, StoreError, Watch};
pub(super) use order::read_soon;

/// What a pass did with an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedImage {
    /// The image.
    pub id: ImageId,
    /// Bytes of its data.
    pub bytes: u64,
    /// Of these, the ones that no image before it in the pass has.
    pub new_bytes: u64,
    /// Whether it was skipped, because its new bytes exceed the budget.
    pub over_budget: bool,
    /// Extents that cannot be served, or are not right.
    pub damaged: u64,
}

/// The result of a pass, and the data that is needed to undo a part of it.
#[derive(Debug, Default)]
pub struct Pass {
    /// The images, in the order of the request.
    pub images: Vec<PassedImage>,
    /// Bytes that were read and verified.
    pub bytes: u64,
    /// Bytes between them that were read, too, because that took less time than to seek.
    pub gap_bytes: u64,
    /// In how many requests, each for no more than the disk takes at once.
    pub requests: u64,
    /// By segment: the blocks that each image needs.
    pub(super) wanted: BTreeMap<ContentId, Vec<(ImageId, RangeSet)>>,
    /// By segment: the pages that were in the page cache before.
    before: BTreeMap<ContentId, Resident>,
}

impl Store {
    /// Reads the data of images in one pass into the page cache, and verifies it. An image whose bytes,
    /// without those of images before it, exceed the rest of `budget` is skipped.
    ///
    /// # Errors
    /// If an image is missing or cannot be opened, or the watch cancels; damage is reported.
    pub fn load_all(
        &self,
        ids: &[ImageId],
        budget: Option<u64>,
        watch: Watch<'_>,
    ) -> Result<Pass, StoreError> {
        let mut pass = Pass::default();
        read_soon(ids.iter().map(|id| self.places.image(id)));
        let mut all: BTreeMap<ContentId, RangeSet> = BTreeMap::new();
        let mut left = budget.unwrap_or(u64::MAX);
        for id in ids {
            let described = catalog::describe(&self.places, id)?;
            let wanted = by_segment(&described);
            let new = wanted.iter().map(|(segment, set)| match all.get(segment) {
                Some(had) => set.len() - set.common_len(had),
                None => set.len(),
            });
            let new_bytes = new.sum::<u64>() * PAGE_BYTES;
            let over_budget = new_bytes > left;
            pass.images.push(PassedImage {
                id: *id,
                bytes: described.data_blocks * PAGE_BYTES,
                new_bytes,
                over_budget,
                damaged: 0,
            });
            if over_budget {
                continue;
            }
            left -= new_bytes;
            self.places.touch(id);
            for (segment, set) in wanted {
                let had = all.entry(segment).or_default();
                had.extend(set.runs().iter().copied());
                pass.wanted.entry(segment).or_default().push((*id, set));
            }
        }
        self.read_segments(all, &mut pass, watch)?;
        Ok(pass)
    }

    /// Reads what is wanted of all segments, and looks closer at images of which something was not right.
    fn read_segments(
        &self,
        wanted: BTreeMap<ContentId, RangeSet>,
        pass: &mut Pass,
        watch: Watch<'_>,
    ) -> Result<(), StoreError> {
        let mut suspect: BTreeSet<ImageId> = BTreeSet::new();
        for id in wanted.keys() {
            if let Ok(file) = open_regular(&self.places.segment(id))
                && let Some(before) = Backing::file(file).resident()
            {
                pass.before.insert(*id, before);
            }
        }
        let read = reading::read(&self.places, wanted, &mut *watch)?;
        (pass.bytes, pass.gap_bytes) = (read.bytes, read.gap_bytes);
        pass.requests = read.requests;
        for (segment, bad) in &read.bad {
            let users = pass.wanted.get(segment).into_iter().flatten();
            let hit = users.filter(|(_, set)| set.common_len(bad) > 0);
            suspect.extend(hit.map(|(id, _)| *id));
        }
        for image in &mut pass.images {
            if suspect.contains(&image.id) {
                let opened: Image = catalog::open_image(&self.places, &image.id)?;
                image.damaged = opened.load(&mut *watch)?.damaged.len();
            }
        }
        Ok(())
    }

    /// Makes the kernel drop the pages of `images` that a pass loaded, except those of other images of the pass: they
    /// are stored elsewhere now.
    pub fn drop_passed(&self, pass: &Pass, images: &BTreeSet<ImageId>) {
        for (segment, users) in &pass.wanted {
            let Some(before) = pass.before.get(segment) else {
                continue;
            };
            let mut gone = RangeSet::new();
            let mut kept = RangeSet::new();
            for (id, set) in users {
                let to = if images.contains(id) {
                    &mut gone
                } else {
                    &mut kept
                };
                to.extend(set.runs().iter().copied());
            }
            for run in kept.runs() {
                gone.remove(*run);
            }
            let Ok(file) = open_regular(&self.places.segment(segment)) else {
                continue;
            };
            if is_only_copy(&file).unwrap_or(true) {
                continue;
            }
            for run in gone.runs() {
                let (start, end) = (run.start().0, run.end().0);
                let bytes = segment_offset(start)..segment_offset(end);
                // What cannot be dropped stays: only memory is lost.
                before.drop_others(&file, bytes).unwrap_or_default();
            }
        }
    }
}

/// Returns what an image has of each of its segments.
fn by_segment(image: &Described) -> BTreeMap<ContentId, RangeSet> {
    let mut wanted: BTreeMap<ContentId, RangeSet> = BTreeMap::new();
    for run in &image.runs {
        if let Some(segment) = image.segments.get(run.segment) {
            let range = BlockRange::with_len(BlockIndex(run.at), run.blocks);
            wanted.entry(*segment).or_default().insert(range);
        }
    }
    wanted
}
