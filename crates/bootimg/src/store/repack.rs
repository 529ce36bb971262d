//! Moving the live blocks of mostly dead segments into a new one.
//!
//! The new segment is durable before any image refers to it, and the old ones are removed after all
//! images refer to the new one: at every step every image has all of its blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use blocks::ContentId;

use crate::data::Run;
use crate::layout::{HASH, PAGE};
use crate::reader::ReadError;
use crate::store::add::join_runs;
use crate::store::catalog::{self, Catalog, Held};
use crate::store::reading;
use crate::store::segment::{Segment, SegmentWriter};
use crate::{ImageId, Store, StoreError};

/// Where the blocks of the old segments are in the new one.
type Moves = BTreeMap<ContentId, BTreeMap<u64, u64>>;
/// Blocks of a segment, with their hashes.
type HashedBlocks = Vec<(u64, [u8; HASH])>;

impl Store {
    pub(super) fn repack(
        &self,
        catalog: &Catalog,
        gone: &BTreeSet<ImageId>,
        segments: &[ContentId],
    ) -> Result<(), StoreError> {
        let users = catalog.users(|id| !gone.contains(id));
        let mut moves = Moves::new();
        let mut hashes = Vec::new();
        let mut live = Vec::new();
        for id in segments {
            let counts = users.counts.get(id).map_or(&[][..], Vec::as_slice);
            let used = (0u64..).zip(counts).filter(|(_, users)| **users > 0);
            let blocks = match self.sound_blocks(id, used.map(|(at, _)| at)) {
                Ok(Some(blocks)) => blocks,
                Ok(None) => {
                    log::warn!("segment {} is damaged and stays as it is", id.short());
                    continue;
                }
                Err(error) => {
                    log::warn!("segment {} stays as it is: {error}", id.short());
                    continue;
                }
            };
            for (at, hash) in blocks {
                let to = hashes.len() as u64;
                moves.entry(*id).or_default().insert(at, to);
                hashes.push(hash);
                live.push((*id, at));
            }
        }
        if hashes.is_empty() {
            return Ok(());
        }
        let new = self.move_blocks(hashes, &live)?;
        let images = catalog.images.iter();
        for held in images.filter(|held| !gone.contains(&held.info.id)) {
            if held.segments.iter().any(|id| moves.contains_key(id)) {
                self.move_image(held, &moves, new)?;
            }
        }
        for id in moves.keys().filter(|id| **id != new) {
            self.places.remove_segment(id, &self.steps)?;
        }
        Ok(())
    }

    /// Returns the hashes of these blocks of a segment, if all of them are right. An error says that this
    /// could not be found out.
    fn sound_blocks(
        &self,
        id: &ContentId,
        blocks: impl Iterator<Item = u64>,
    ) -> io::Result<Option<HashedBlocks>> {
        let opened = Segment::open(&self.places.segment(id))
            .and_then(|segment| segment.table().map(|table| (segment, table)));
        let (segment, table) = match opened {
            Ok(opened) => opened,
            Err(ReadError::Io(error)) => return Err(error),
            Err(ReadError::Format(_)) => return Ok(None),
        };
        let mut block = [0; PAGE];
        let mut sound = Vec::new();
        for at in blocks {
            let hash = usize::try_from(at).ok().and_then(|at| table.get(at));
            match hash {
                Some(hash) if segment.read(at, hash, &mut block)? => sound.push((at, *hash)),
                _ => return Ok(None),
            }
        }
        Ok(Some(sound))
    }

    pub(super) fn move_blocks(
        &self,
        hashes: Vec<[u8; HASH]>,
        from: &[(ContentId, u64)],
    ) -> Result<ContentId, StoreError> {
        let wanted = hashes.clone();
        let mut writer = SegmentWriter::create(&self.places, hashes, &self.steps)?;
        let mut open: Option<(ContentId, Segment)> = None;
        let mut block = [0; PAGE];
        for ((id, at), hash) in from.iter().zip(&wanted) {
            let path = self.places.segment(id);
            let damaged = || StoreError::Damaged {
                path: path.clone(),
                damaged: 1,
            };
            // It was right a moment ago. What cannot be read now may be readable later: that is no damage.
            let segment = match open.take() {
                Some((opened, segment)) if opened == *id => segment,
                _ => Segment::open(&path).map_err(|error| match error {
                    ReadError::Io(error) => reading(&path)(error),
                    ReadError::Format(_) => damaged(),
                })?,
            };
            if !segment
                .read(*at, hash, &mut block)
                .map_err(reading(&path))?
            {
                return Err(damaged());
            }
            writer.put(&block)?;
            open = Some((*id, segment));
        }
        Ok(writer.finish()?)
    }

    fn move_image(&self, held: &Held, moves: &Moves, new: ContentId) -> Result<(), StoreError> {
        let mut segments: Vec<ContentId> = Vec::new();
        let mut number = |id: ContentId| {
            let known = segments.iter().position(|known| *known == id);
            known.unwrap_or_else(|| {
                segments.push(id);
                segments.len() - 1
            })
        };
        let blocks = held.runs.iter().flat_map(|run: &Run| {
            let id = held.segments.get(run.segment).copied().unwrap_or_default();
            (run.at..run.at + run.blocks).map(move |at| (id, at))
        });
        let homes: Vec<_> = blocks
            .map(|(id, at)| match moves.get(&id) {
                None => (number(id), at),
                // Every block that a kept image uses has moved.
                Some(moves) => (
                    number(new),
                    moves.get(&at).copied().unwrap_or(u64::MAX >> 28),
                ),
            })
            .collect();
        let image = catalog::open_image(&self.places, &held.info.id)?;
        self.write_thin(&image, &segments, &join_runs(homes), &self.steps)?;
        self.places.set_last_used(&held.info.id, held.last_used);
        Ok(())
    }
}
