//! Objects on tiers with their parts: what counts has all of them, at every step.

use std::sync::Arc;

use blocks::ContentId;
use parking_lot::Mutex;

use super::pools::{BringPart, Pools, Recheck, read_part};
use super::{Index, Part};
use crate::medium::Medium;
use crate::objects::{
    Aside, Copied, ObjectError, Objects, OpenError, OpenReport, TierConfig, TierIndex,
};
use crate::pace::{Cancelled, Pace};

/// Objects on tiers, some of which are indexes.
#[derive(Debug)]
pub struct PartedObjects {
    objects: Objects,
    /// By tier. Held while parts are changed: one object in parts changes at a time.
    pools: Mutex<Vec<Pools>>,
}

impl PartedObjects {
    /// Opens objects as [`Objects::open`] does, and their pools. Indexes whose parts are lost are
    /// lost, too.
    ///
    /// # Errors
    /// If a directory cannot be used, or a later program wrote in it.
    pub fn open(
        state: Arc<dyn Medium>,
        tiers: Vec<TierConfig>,
    ) -> Result<(Self, OpenReport), OpenError> {
        let media: Vec<Arc<dyn Medium>> = tiers.iter().map(|tier| tier.medium.clone()).collect();
        let (objects, mut report) = Objects::open(state, tiers)?;
        let doubts = match &report {
            OpenReport { adopted: 1.., .. } => Recheck::Everything,
            OpenReport {
                lost: 0, swept: 0, ..
            } => Recheck::None,
            _ => Recheck::LeftOver,
        };
        let list = objects.list();
        let mut pools = Vec::new();
        for (medium, tier) in media.into_iter().zip((0..).map(TierIndex)) {
            let failed = |source| OpenError::Io {
                doing: "look at",
                what: format!("pools of {tier}"),
                source,
            };
            let (opened, lost) = Pools::open(medium, tier, &list, doubts).map_err(failed)?;
            if !lost.is_empty() {
                // So that what only they named is found, whatever happens now.
                opened.mark().map_err(failed)?;
            }
            for id in lost {
                report.lost += 1;
                if let Err(error) = leave_any(&objects, id, tier) {
                    log::warn!("object {} stays on {tier}: {error}", id.short());
                }
            }
            opened.sweep(doubts).map_err(failed)?;
            objects.count_aside(tier, Aside::Found(opened.users.part_bytes()));
            pools.push(opened);
        }
        report.objects = objects.list().len();
        let pools = Mutex::new(pools);
        Ok((Self { objects, pools }, report))
    }

    /// Returns the objects. Indexes must only be changed here.
    #[must_use]
    pub const fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Returns the index that an object is, if it is one that some tier has.
    #[must_use]
    pub fn index(&self, id: ContentId) -> Option<Index> {
        let pools = self.pools.lock();
        pools.iter().find_map(|pools| pools.users.get(id).cloned())
    }

    /// Returns the bytes of an index's parts on a tier that other indexes there name, too.
    #[must_use]
    pub fn shared_bytes(&self, id: ContentId, tier: TierIndex) -> u64 {
        let pools = self.pools.lock();
        pools
            .get(tier.0)
            .map_or(0, |pools| pools.users.shared_bytes(id))
    }

    /// Stores an object in parts on a tier; `bring` is called for those parts that the tier lacks.
    /// Returns how many bytes were written.
    ///
    /// # Errors
    /// If `bring` gives other data, there is not enough space, it was cancelled, or a tier failed.
    pub fn add(
        &self,
        index: &Index,
        to: TierIndex,
        bring: &mut BringPart<'_>,
        pace: &dyn Pace,
    ) -> Result<Copied, ObjectError> {
        let (id, bytes) = (index.id(), index.encode());
        let pools = &mut *self.pools.lock();
        let here = pools
            .get_mut(to.0)
            .ok_or(ObjectError::NoTier { tier: to })?;
        if here.users.get(id).is_some() {
            return Ok(Copied::There);
        }
        let new = here.users.new_bytes(index);
        let len = bytes.len() as u64;
        self.objects.set_aside(id, to, new.saturating_add(len))?;
        let added = here.begin().and_then(|()| here.fill(index, bring, pace));
        // The index takes its room itself.
        self.objects.count_aside(to, Aside::Given(len));
        let added = added.and_then(|written| {
            let added = self.objects.add(id, len, to, &mut &bytes[..], pace)?;
            Ok(match added {
                Copied::Bytes(more) => Copied::Bytes(written + more),
                // It was there, and its parts were not.
                Copied::There => Copied::Bytes(written),
            })
        });
        match &added {
            Ok(_) => here.users.insert(id, index.clone()),
            // It may count for who opens the journal next.
            Err(ObjectError::Journal { .. }) => here.leave_unsure(),
            Err(_) => {
                here.give_up(index);
                self.objects.count_aside(to, Aside::Given(new));
            }
        }
        here.end();
        added
    }

    /// Copies an object to a tier, in parts or not, from those that have it.
    ///
    /// # Errors
    /// If no copy is whole, there is not enough space, it was cancelled, or a tier failed.
    pub fn copy(
        &self,
        id: ContentId,
        to: TierIndex,
        pace: &dyn Pace,
    ) -> Result<Copied, ObjectError> {
        let Some(index) = self.index(id) else {
            return self.objects.copy(id, to, pace);
        };
        let media = self.media_of(id);
        let mut bring = |_: usize, part: &Part, buf: &mut [u8]| {
            let mut media = media.iter();
            match media.any(|medium| read_part(&**medium, &index, part, buf).is_ok()) {
                true => Ok(()),
                false => Err(ObjectError::Damaged { id }),
            }
        };
        self.add(&index, to, &mut bring, pace)
    }

    /// Leaves a copy of an object that has another.
    ///
    /// # Errors
    /// As [`Objects::leave`].
    pub fn leave(&self, id: ContentId, from: TierIndex) -> Result<(), ObjectError> {
        self.give_up(id, Some(from), || self.objects.leave(id, from))
    }

    /// Forgets an object, all copies of it. What other objects name of its parts stays.
    ///
    /// # Errors
    /// As [`Objects::remove`].
    pub fn remove(&self, id: ContentId) -> Result<(), ObjectError> {
        self.give_up(id, None, || self.objects.remove(id))
    }

    /// Returns whether all parts of an index are on a tier as they were written.
    ///
    /// # Errors
    /// If `pace` stops it.
    pub fn has_all_parts(
        &self,
        id: ContentId,
        tier: TierIndex,
        pace: &dyn Pace,
    ) -> Result<bool, Cancelled> {
        let pools = self.pools.lock();
        let here = pools.get(tier.0);
        let Some((here, index)) = here.and_then(|here| Some((here, here.users.get(id)?))) else {
            return Ok(false);
        };
        for part in index.parts() {
            pace.turn(part.blocks.byte_len())?;
            if !here.is_sound(index, part) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns what the copies of an index lie on, the fastest first.
    fn media_of(&self, id: ContentId) -> Vec<Arc<dyn Medium>> {
        let pools = self.pools.lock();
        let with = pools.iter().filter(|pools| pools.users.get(id).is_some());
        with.map(Pools::medium).collect()
    }

    /// Has the journal say that copies are left, and then gives their parts back.
    fn give_up(
        &self,
        id: ContentId,
        from: Option<TierIndex>,
        leave: impl FnOnce() -> Result<(), ObjectError>,
    ) -> Result<(), ObjectError> {
        let pools = &mut *self.pools.lock();
        let mut leaving: Vec<(TierIndex, &mut Pools)> = (0..)
            .map(TierIndex)
            .zip(pools)
            .filter(|(tier, pools)| {
                from.is_none_or(|from| from == *tier) && pools.users.get(id).is_some()
            })
            .collect();
        for (_, pools) in &leaving {
            // On a full disk there is no room for the mark, and none is made by not removing.
            if let Err(error) = pools.begin() {
                log::warn!("{error}");
            }
        }
        let left = leave();
        for (tier, pools) in &mut leaving {
            if left.is_ok()
                && let Some(index) = pools.users.remove(id)
            {
                let given = pools.users.new_bytes(&index);
                self.objects.count_aside(*tier, Aside::Given(given));
                pools.give_up(&index);
            }
            pools.end();
        }
        left
    }
}

/// Leaves a copy, though it may be the last.
fn leave_any(objects: &Objects, id: ContentId, tier: TierIndex) -> Result<(), ObjectError> {
    match objects.leave(id, tier) {
        Err(ObjectError::OnlyCopy { .. }) => objects.remove(id),
        left => left,
    }
}
