//! Finding the blocks of an image that segments of the store have already.

use std::cmp::Reverse;
use std::collections::HashMap;

use blocks::ContentId;

use crate::layout::{HASH, PAGE};
use crate::store::places::Places;
use crate::store::segment::Segment;

/// Segments that an image may share, besides one of its own: SEGMENTS has room for 64, and an
/// open image holds a descriptor for each.
const SHARED_SEGMENTS_MAX: usize = 63;

/// Where the blocks of an image are that were found so far.
#[derive(Debug)]
pub(super) struct Homes<'a> {
    hashes: &'a [[u8; HASH]],
    /// The place of each hash.
    wanted: HashMap<&'a [u8; HASH], usize>,
    /// Segments that have blocks of the image.
    pub(super) segments: Vec<ContentId>,
    /// For each hash the index of one of the segments, and the block in it.
    pub(super) at: Vec<Option<(usize, u64)>>,
}

impl<'a> Homes<'a> {
    /// Returns one that has found none of these blocks.
    pub(super) fn of(hashes: &'a [[u8; HASH]]) -> Self {
        Self {
            hashes,
            wanted: hashes.iter().zip(0..).collect(),
            segments: Vec::new(),
            at: vec![None; hashes.len()],
        }
    }

    /// Returns whether all blocks were found.
    pub(super) fn are_all(&self) -> bool {
        self.at.iter().all(Option::is_some)
    }

    /// Looks in segments for the blocks that were not found yet. One that has fewer than `enough` of them is left out.
    pub(super) fn look_in(&mut self, places: &Places, ids: Vec<ContentId>, enough: usize) {
        let mut found = Vec::new();
        for id in ids {
            let path = places.segment(&id);
            let opened = Segment::open(&path).and_then(|s| s.table().map(|table| (s, table)));
            let Ok((segment, table)) = opened else {
                log::warn!(
                    "{} is damaged, or of another release; nothing is shared with it",
                    path.display()
                );
                continue;
            };
            let here: Vec<(usize, u64)> = (0u64..)
                .zip(&table)
                .filter_map(|(at, hash)| self.wanted.get(hash).map(|index| (*index, at)))
                .collect();
            if here.len() >= enough {
                found.push((id, segment, here));
            }
        }
        found.sort_by_key(|(id, _, here)| (Reverse(here.len()), *id));
        let mut block = [0; PAGE];
        for (id, segment, mut here) in found {
            here.retain(|(index, _)| self.at[*index].is_none());
            if self.segments.len() == SHARED_SEGMENTS_MAX || here.len() < enough {
                continue;
            }
            // A block that rotted must not be shared, or it could never be recorded again.
            here.retain(|(index, at)| {
                let read = segment.read(*at, &self.hashes[*index], &mut block);
                read.unwrap_or(false)
            });
            for (index, at) in &here {
                self.at[*index] = Some((self.segments.len(), *at));
            }
            if !here.is_empty() {
                self.segments.push(id);
            }
        }
    }
}
