//! Collecting garbage: first a plan, from facts alone, then the removals.

use std::collections::BTreeSet;
use std::time::SystemTime;

use blocks::ContentId;

use crate::layout::{HASH, PAGE_BYTES, len64};
use crate::store::catalog::{Catalog, Lengths, Users};
use crate::store::places::file_bytes;
use crate::{ImageId, Store, StoreError};

/// How much of its size is made free for what is added later, when a store has become too large by what was added: else
/// each image that is added to a full store would have all others looked at.
const ROOM_PART: u64 = 10;

/// Whether to carry out the changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcMode {
    /// Only returns what would be done.
    DryRun,
    /// Carries them out.
    Apply,
}

/// What garbage there was, or is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcReport {
    /// Images that are damaged beyond use, or have no name and no pin.
    pub lost: Vec<ImageId>,
    /// Images that were evicted because the store was too large.
    pub evicted: Vec<ImageId>,
    /// Segments that no image uses.
    pub segments: Vec<ContentId>,
    /// Segments that are mostly dead: their live blocks are copied to a new one.
    pub repacked: Vec<ContentId>,
    /// Segments that could not be read now, and are kept. As long as there are any, no other is
    /// repacked: an image may have blocks of both.
    pub unread: Vec<ContentId>,
    /// Images of another release, which are kept. They may use any segment, so as long as there are any, no segment is
    /// removed or repacked, and nothing is evicted, because that would make no room.
    pub foreign: Vec<ImageId>,
    /// Segments of another release, which are kept; they are among those that were not read.
    pub foreign_segments: Vec<ContentId>,
    /// Names without an image.
    pub names: Vec<String>,
    /// Files of dead writers.
    pub leftovers: usize,
    /// Bytes that the store took.
    pub bytes_before: u64,
    /// Size afterwards.
    pub bytes_after: u64,
}

/// What would be left, and what would go.
struct Plan<'a> {
    catalog: &'a Catalog,
    gone: BTreeSet<ImageId>,
    /// What is kept because it could not be read.
    unread_bytes: u64,
    report: GcReport,
}

impl Store {
    /// Collects garbage; `keep` is not evicted, nor lost if it has no name yet.
    pub(super) fn gc_locked(
        &self,
        mode: GcMode,
        keep: Option<ImageId>,
    ) -> Result<GcReport, StoreError> {
        let catalog = Catalog::read(&self.places, Lengths::Verified)?;
        let mut plan = Plan {
            catalog: &catalog,
            gone: BTreeSet::new(),
            unread_bytes: 0,
            report: GcReport::default(),
        };
        let leftovers = self.places.leftovers()?;
        plan.report.leftovers = leftovers.len();
        plan.report.unread = catalog.unread.iter().copied().collect();
        plan.report.foreign.clone_from(&catalog.foreign);
        plan.report.foreign_segments = catalog.foreign_segments.iter().copied().collect();
        let images = self.places.images()?;
        let images = images.iter().map(|id| self.places.image(id));
        let segments = catalog.segments.keys().map(|id| self.places.segment(id));
        // What is on the disk, dead parts and all: the plan's size is without them.
        for path in images.chain(segments).chain(leftovers.iter().cloned()) {
            plan.report.bytes_before += file_bytes(&path)?;
        }
        plan.find_lost(keep);
        let foreign = catalog.foreign.iter().map(|id| self.places.image(id));
        let unread = catalog
            .unknown()
            .map(|id| self.places.segment(id))
            .chain(foreign);
        plan.unread_bytes = unread.map(|path| file_bytes(&path)).sum::<Result<_, _>>()?;
        plan.evict(self.config.max_bytes, keep);
        plan.find_dead();
        plan.report.bytes_after = plan.size();
        let Plan { gone, report, .. } = plan;
        if mode == GcMode::Apply {
            for path in &leftovers {
                self.places.remove(path, &self.steps)?;
            }
            self.apply(&catalog, &gone, &report)?;
        }
        Ok(report)
    }

    fn apply(
        &self,
        catalog: &Catalog,
        gone: &BTreeSet<ImageId>,
        report: &GcReport,
    ) -> Result<(), StoreError> {
        for name in &report.names {
            self.places.remove_name(name, &self.steps)?;
        }
        for id in gone {
            self.remove_locked(id)?;
        }
        for id in catalog
            .pins
            .iter()
            .filter(|id| self.places.must_have(id).is_err())
        {
            self.places.unpin(id, &self.steps)?;
        }
        for id in &report.segments {
            self.places.remove_segment(id, &self.steps)?;
        }
        if !report.repacked.is_empty() {
            self.repack(catalog, gone, &report.repacked)?;
        }
        Ok(())
    }
}

impl Plan<'_> {
    fn is_kept(&self, id: &ImageId) -> bool {
        !self.gone.contains(id)
    }

    fn users(&self) -> Users {
        self.catalog.users(|id| self.is_kept(id))
    }

    /// Images that no name leads to any more, and names that lead nowhere.
    fn find_lost(&mut self, keep: Option<ImageId>) {
        let catalog = self.catalog;
        let broken = catalog.broken.iter().map(|(id, _)| *id);
        let nameless = catalog.images.iter().map(|held| held.info.id).filter(|id| {
            let named = catalog.names.iter().any(|(_, named)| *named == Some(*id));
            !named && !catalog.pins.contains(id) && keep != Some(*id)
        });
        self.report.lost = broken.chain(nameless).collect();
        self.gone.extend(&self.report.lost);
        let there = |id: &ImageId| catalog.images.iter().any(|held| held.info.id == *id);
        let broken = |id: &ImageId| catalog.broken.iter().any(|(broken, _)| broken == id);
        let foreign = |id: &ImageId| catalog.foreign.contains(id);
        self.report.names = catalog
            .names
            .iter()
            .filter(|(_, id)| !id.is_some_and(|id| there(&id) || broken(&id) || foreign(&id)))
            .map(|(name, _)| name.clone())
            .collect();
    }

    /// Gives up images, the least valuable first, until the rest fits; with some room to spare, if `keep` was just added.
    fn evict(&mut self, max_bytes: u64, keep: Option<ImageId>) {
        if !self.catalog.foreign.is_empty() {
            return;
        }
        let now = SystemTime::now();
        let mut size = self.size();
        if size <= max_bytes {
            return;
        }
        let room = keep.map_or(0, |_| max_bytes / ROOM_PART);
        while size > max_bytes - room {
            let users = self.users();
            let candidates = self.catalog.images.iter().filter(|held| {
                let id = held.info.id;
                self.is_kept(&id) && !self.catalog.pins.contains(&id) && keep != Some(id)
            });
            let worst = candidates.min_by_key(|held| {
                let own = held.info.file_bytes + users.of(held).0 * PAGE_BYTES;
                (held.value(own, now), held.info.id)
            });
            let Some(worst) = worst else {
                return; // all that is left is pinned, or was asked for just now
            };
            self.report.evicted.push(worst.info.id);
            self.gone.insert(worst.info.id);
            size = self.size();
        }
    }

    fn find_dead(&mut self) {
        if !self.catalog.foreign.is_empty() {
            return;
        }
        let users = self.users();
        let all_read = self.catalog.unread.is_empty();
        let read = self.catalog.segments.iter();
        for (id, blocks) in read.filter(|(id, _)| !self.catalog.unread.contains(*id)) {
            match life(&users, id, *blocks) {
                Life::Dead => self.report.segments.push(*id),
                Life::Mostly { .. } if all_read => self.report.repacked.push(*id),
                Life::Mostly { .. } | Life::Alive { .. } => {}
            }
        }
    }

    /// Returns the bytes that the store takes once what is gone is gone.
    fn size(&self) -> u64 {
        let images = self.catalog.images.iter();
        let images = images
            .filter(|held| self.is_kept(&held.info.id))
            .map(|held| held.info.file_bytes);
        let users = self.users();
        let may_go = self.catalog.foreign.is_empty();
        let segments = self.catalog.segments.iter();
        let segments = segments.map(|(id, blocks)| match life(&users, id, *blocks) {
            _ if !may_go => blocks.map_or(0, segment_bytes),
            Life::Dead => 0,
            Life::Mostly { .. } if !self.catalog.unread.is_empty() => {
                segment_bytes(blocks.unwrap_or_default())
            }
            Life::Mostly { live: blocks } | Life::Alive { blocks } => segment_bytes(blocks),
        });
        images.sum::<u64>() + segments.sum::<u64>() + self.unread_bytes
    }
}

/// How much of a segment is in use.
enum Life {
    Dead,
    /// Less than half is live: it is worth copying the rest.
    Mostly {
        live: u64,
    },
    Alive {
        blocks: u64,
    },
}

fn life(users: &Users, id: &ContentId, blocks: Option<u64>) -> Life {
    let (Some(counts), Some(blocks)) = (users.counts.get(id), blocks) else {
        return Life::Dead; // its header is damaged: no image that needs it can be opened
    };
    let live = len64(counts.iter().filter(|count| **count > 0).count());
    match live {
        0 => Life::Dead,
        live if live < blocks - live => Life::Mostly { live },
        _ => Life::Alive { blocks },
    }
}

/// Returns the length of the file of a segment.
pub(super) const fn segment_bytes(blocks: u64) -> u64 {
    PAGE_BYTES + blocks * (PAGE_BYTES + HASH as u64)
}
