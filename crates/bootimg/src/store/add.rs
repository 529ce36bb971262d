//! Adding an image: blocks that the store has already are shared, the rest becomes a segment.

use std::sync::atomic::Ordering::Relaxed;

use blocks::{ContentId, SourceId};

use crate::data::{self, Run};
use crate::durable::Steps;
use crate::header::{SectionKind, Variant};
use crate::layout::{HASH, PAGE, PAGE_BYTES, hash, len64};
use crate::store::gc::segment_bytes;
use crate::store::homes::Homes;
use crate::store::places::file_bytes;
use crate::store::segment::SegmentWriter;
use crate::store::{GcMode, catalog, names};
use crate::writer::assemble::Assembler;
use crate::{AddReport, Image, ImageId, Store, StoreError, Watch, WriteError};

/// A segment that has fewer of the blocks than this is not worth a descriptor and a seek, unless it has all of them.
const SHARED_BLOCKS_MIN: usize = 8;
/// How much of what is left of its size a process adds to a store before it looks at all files again: others add, too, so that
/// each may exceed the size by that.
const UNMEASURED_PART: u64 = 64;

impl Store {
    pub(super) fn add_locked(
        &self,
        image: &Image,
        name: Option<&str>,
        watch: Watch<'_>,
    ) -> Result<AddReport, StoreError> {
        let id = image.info().id;
        let name = match name {
            Some(name) => {
                names::check(name)?;
                name.to_owned()
            }
            None => self.derived_name(image)?,
        };
        // One that is there but cannot be opened, or whose blocks rotted, is written again.
        let there = match catalog::open_image(&self.places, &id) {
            Ok(there) => there.verify(&mut *watch)?.is_sound(),
            Err(_) => false,
        };
        let (new_bytes, shared_bytes) = if there {
            self.places.touch(&id);
            (0, image.info().data_blocks * PAGE_BYTES)
        } else {
            self.store_image(image, watch)?
        };
        let added = segment_bytes(new_bytes / PAGE_BYTES) + file_bytes(&self.places.image(&id))?;
        let (replaced, evicted) = self.name_added(&id, &name, added, &self.image_steps())?;
        Ok(AddReport {
            id,
            name,
            new_bytes,
            shared_bytes,
            replaced,
            evicted,
        })
    }

    /// Names an image with which so many bytes came into the store, and makes room if that is too large now. Returns the image that
    /// is replaced, and those that had to go.
    pub(super) fn name_added(
        &self,
        id: &ImageId,
        name: &str,
        added: u64,
        steps: &Steps,
    ) -> Result<(Option<ImageId>, Vec<ImageId>), StoreError> {
        let had = self.places.named(name)?;
        let former = had.filter(|former| former != id);
        let has_more = former.is_some_and(|former| self.has_other_segments(&former, id));
        self.places.set_name(name, id, steps)?;
        let replaced = self.replaced(had, id)?;
        // Looking at every image for each that comes would make many of them slow to add, such as those of the layers of an
        // image that is recorded again.
        let may_free = replaced.is_some() && has_more;
        let evicted = if may_free || self.is_too_large(added)? {
            self.gc_locked(GcMode::Apply, Some(*id))?.evicted
        } else {
            Vec::new()
        };
        Ok((replaced, evicted))
    }

    /// Returns whether a former image has segments that the one which replaces it has not, or may have.
    fn has_other_segments(&self, former: &ImageId, id: &ImageId) -> bool {
        let segments = |id| catalog::describe(&self.places, id).map(|image| image.segments);
        match (segments(former), segments(id)) {
            (Ok(former), Ok(segments)) => former.iter().any(|one| !segments.contains(one)),
            _ => true,
        }
    }

    /// Returns the name for an image that was given no name: that of its source, with a part of the
    /// source's id if another source has it.
    fn derived_name(&self, image: &Image) -> Result<String, StoreError> {
        let source = &image.info().source;
        let name = names::derive(&source.label);
        let taken = self.places.names()?.into_iter().find(|(n, _)| *n == name);
        let Some((_, Some(holder))) = taken else {
            return Ok(name);
        };
        let SourceId(source_id) = source.id;
        match catalog::open_image(&self.places, &holder) {
            Ok(holder) if holder.info().source.id != source.id => {
                Ok(format!("{name}-{}", source_id.short()))
            }
            _ => Ok(name),
        }
    }

    /// Removes the image that had a name before `id` got it, if it has no other and is not pinned.
    pub(super) fn replaced(
        &self,
        had: Option<ImageId>,
        id: &ImageId,
    ) -> Result<Option<ImageId>, StoreError> {
        let Some(old) = had.filter(|old| old != id) else {
            return Ok(None);
        };
        if !self.names_of(&old)?.is_empty() || self.places.pins()?.contains(&old) {
            return Ok(None);
        }
        self.remove_locked(&old)?;
        Ok(Some(old))
    }

    /// Writes segment and image, and returns how many bytes were new and how many shared.
    fn store_image(&self, image: &Image, watch: Watch<'_>) -> Result<(u64, u64), StoreError> {
        let mut hashes: Vec<[u8; HASH]> = Vec::new();
        image.each_window(&mut *watch, &mut |_, blocks| {
            hashes.extend(blocks.chunks_exact(PAGE).map(hash));
            Ok(())
        })?;
        let Homes {
            mut segments,
            at: mut homes,
            ..
        } = self.homes(&hashes)?;
        let new: Vec<bool> = homes.iter().map(Option::is_none).collect();
        let new_hashes: Vec<_> = pick(&hashes, &new).copied().collect();
        let new_blocks = len64(new_hashes.len());
        if new_blocks > 0 {
            let mut writer = SegmentWriter::create(&self.places, new_hashes, &self.steps)?;
            image.each_window(watch, &mut |first, blocks| {
                let (_, new) = new.split_at(crate::layout::len_usize(first));
                let blocks: Vec<_> = blocks.chunks_exact(PAGE).collect();
                pick(&blocks, new).try_for_each(|block| writer.put(block))
            })?;
            segments.push(writer.finish()?);
            let own = segments.len() - 1;
            let missing = homes.iter_mut().filter(|home| home.is_none());
            for (at, home) in (0..).zip(missing) {
                *home = Some((own, at));
            }
        }
        let runs = join_runs(homes.into_iter().flatten());
        self.write_thin(image, &segments, &runs, &self.image_steps())?;
        let all = image.info().data_blocks;
        Ok((new_blocks * PAGE_BYTES, (all - new_blocks) * PAGE_BYTES))
    }

    /// Finds the blocks that the store has: in the segments of the image that this one is made of, and only if there are others,
    /// in those of the whole store.
    fn homes<'a>(&self, hashes: &'a [[u8; HASH]]) -> Result<Homes<'a>, StoreError> {
        let mut homes = Homes::of(hashes);
        if let Some(from) = &self.derived_from {
            match catalog::describe(&self.places, from) {
                Ok(described) => homes.look_in(&self.places, described.segments, 1),
                // It went just now: its blocks may be found all the same.
                Err(error) => log::debug!("boot image {}: {error}", from.short()),
            }
        }
        if !homes.are_all() {
            let mut others = self.places.segments()?;
            others.retain(|id| !homes.segments.contains(id));
            let enough = SHARED_BLOCKS_MIN.min(hashes.len()).max(1);
            homes.look_in(&self.places, others, enough);
        }
        Ok(homes)
    }

    /// Returns whether the store takes more than it may, now that it has got `added` bytes. All of its files are looked at only
    /// when what was added since uses up a part of what was left then. The holder of the lock asks.
    fn is_too_large(&self, added: u64) -> Result<bool, StoreError> {
        if let Some(unmeasured) = self.unmeasured.load(Relaxed).checked_sub(added) {
            self.unmeasured.store(unmeasured, Relaxed);
            return Ok(false);
        }
        let bytes = self.places.bytes()?;
        let left = self.config.max_bytes.saturating_sub(bytes);
        self.unmeasured.store(left / UNMEASURED_PART, Relaxed);
        Ok(bytes > self.config.max_bytes)
    }

    /// Writes the file of an image whose data is in segments.
    pub(super) fn write_thin(
        &self,
        image: &Image,
        segments: &[ContentId],
        runs: &[Run],
        steps: &Steps,
    ) -> Result<(), WriteError> {
        let path = self.places.image(&image.info().id);
        let tmp = self.places.tmp();
        let mut out = Assembler::create(&path, Some(&tmp), Variant::Thin, steps)?;
        out.data_elsewhere(image.info().data_blocks);
        image.copy_sections(&mut out)?;
        let ids: Vec<[u8; HASH]> = segments.iter().map(|id| id.0).collect();
        out.section(SectionKind::Segments, ids.as_flattened())?;
        out.section(SectionKind::Runs, &data::encode_runs(runs))?;
        out.finish(&path)?;
        Ok(())
    }
}

/// Returns the elements whose mark is set.
fn pick<'a, T>(all: &'a [T], marks: &'a [bool]) -> impl Iterator<Item = &'a T> {
    all.iter()
        .zip(marks)
        .filter(|(_, mark)| **mark)
        .map(|(one, _)| one)
}

/// Joins the homes of a data space's blocks (segment and block in it), in order, to runs.
pub(super) fn join_runs(homes: impl IntoIterator<Item = (usize, u64)>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (place, (segment, at)) in (0..).zip(homes) {
        match runs.last_mut() {
            Some(run) if run.segment == segment && run.at + run.blocks == at => run.blocks += 1,
            _ => runs.push(Run {
                place,
                blocks: 1,
                segment,
                at,
            }),
        }
    }
    runs
}
