//! Adding an image: blocks that the store has already are shared, the rest becomes a segment.

use std::collections::HashMap;

use blocks::{ContentId, SourceId};

use crate::data::{self, Run};
use crate::durable::Steps;
use crate::header::{SectionKind, Variant};
use crate::layout::{HASH, PAGE, PAGE_BYTES, hash, len64};
use crate::store::segment::{Segment, SegmentWriter};
use crate::store::{GcMode, catalog, names};
use crate::writer::assemble::Assembler;
use crate::{AddReport, Image, ImageId, Store, StoreError, Watch, WriteError};

/// Segments that an image may share, besides one of its own: SEGMENTS has room for 64, and an
/// open image holds a descriptor for each.
const SHARED_SEGMENTS_MAX: usize = 63;
/// A segment that has fewer of the blocks than this is not worth a descriptor and a seek, unless it has all of them.
const SHARED_BLOCKS_MIN: usize = 8;

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
        let before = self.places.names()?;
        self.places.set_name(&name, &id, &self.image_steps())?;
        let replaced = self.replaced(&before, &name, &id)?;
        // Looking at every image for each that comes would make many of them slow to add.
        let evicted = if replaced.is_some() || self.places.bytes()? > self.config.max_bytes {
            self.gc_locked(GcMode::Apply, Some(id))?.evicted
        } else {
            Vec::new()
        };
        Ok(AddReport {
            id,
            name,
            new_bytes,
            shared_bytes,
            replaced,
            evicted,
        })
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

    /// Removes the image that had the name, if it has no other and is not pinned.
    pub(super) fn replaced(
        &self,
        before: &[(String, Option<ImageId>)],
        name: &str,
        id: &ImageId,
    ) -> Result<Option<ImageId>, StoreError> {
        let had = before
            .iter()
            .find(|(n, _)| n == name)
            .and_then(|(_, id)| *id);
        let Some(old) = had.filter(|old| old != id) else {
            return Ok(None);
        };
        let other_name = before.iter().any(|(n, id)| n != name && *id == Some(old));
        let pinned = self.places.pins()?.contains(&old);
        if other_name || pinned || self.places.must_have(&old).is_err() {
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
        let (mut segments, mut homes) = self.shared(&hashes)?;
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

    /// Finds blocks that the store has. Returns segments, and for each hash the index of one of
    /// them and the block in it.
    #[expect(
        clippy::type_complexity,
        reason = "two lists that belong together, used once"
    )]
    fn shared(
        &self,
        hashes: &[[u8; HASH]],
    ) -> Result<(Vec<ContentId>, Vec<Option<(usize, u64)>>), StoreError> {
        let wanted: HashMap<_, _> = hashes.iter().zip(0usize..).collect();
        let enough = SHARED_BLOCKS_MIN.min(wanted.len()).max(1);
        let mut found = Vec::new();
        for id in self.places.segments()? {
            let path = self.places.segment(&id);
            let opened = Segment::open(&path).and_then(|s| s.table().map(|table| (s, table)));
            let Ok((segment, table)) = opened else {
                log::warn!("{} is damaged; nothing is shared with it", path.display());
                continue;
            };
            let here: Vec<(usize, u64)> = (0u64..)
                .zip(&table)
                .filter_map(|(at, hash)| wanted.get(hash).map(|index| (*index, at)))
                .collect();
            if here.len() >= enough {
                found.push((id, segment, here));
            }
        }
        found.sort_by_key(|(id, _, here)| (std::cmp::Reverse(here.len()), *id));
        let mut segments = Vec::new();
        let mut homes = vec![None; hashes.len()];
        let mut block = [0; PAGE];
        for (id, segment, mut here) in found {
            here.retain(|(index, _)| homes[*index].is_none());
            if segments.len() == SHARED_SEGMENTS_MAX || here.len() < enough {
                continue;
            }
            // A block that rotted must not be shared, or it could never be recorded again.
            here.retain(|(index, at)| segment.read(*at, &hashes[*index], &mut block));
            for (index, at) in &here {
                homes[*index] = Some((segments.len(), *at));
            }
            if !here.is_empty() {
                segments.push(id);
            }
        }
        Ok((segments, homes))
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
