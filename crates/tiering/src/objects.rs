//! Objects on tiers: immutable files with at most one copy on each tier.
//!
//! Copies are made, verified, switched to and removed as `docs/tiering-journal-format.md` says,
//! so that at every step each object has a copy that counts and is whole.

mod change;
mod copy;
mod error;
mod mark;
mod open;
mod read;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use blocks::ContentId;
use parking_lot::Mutex;

use crate::journal::{Journal, Known, TIERS_MAX, TierId};
use crate::medium::Medium;

pub use crate::journal::{Found, JournalError};
pub use copy::{Copied, name_of};
pub use error::{ObjectError, OpenError};
pub use mark::Mark;
pub use read::Lease;

/// A tier, by its place among those that objects were opened with: 0 is the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TierIndex(pub usize);

impl fmt::Display for TierIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tier {}", self.0)
    }
}

/// A tier to open.
#[derive(Clone, Debug)]
pub struct TierConfig {
    /// Its storage.
    pub medium: Arc<dyn Medium>,
    /// Its capacity for objects, in bytes.
    pub capacity_bytes: u64,
}

/// An object, as its users know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its name, the hash of its content.
    pub id: ContentId,
    /// Its length.
    pub len: u64,
    /// The tiers that have a copy, the fastest first; none if all tiers with a copy are missing.
    pub tiers: Vec<TierIndex>,
}

/// What opening found, and did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenReport {
    /// How the journal was found.
    pub journal: Found,
    /// Known objects.
    pub objects: usize,
    /// Valid copies that disappeared.
    pub lost: u64,
    /// Files of interrupted operations, which were removed.
    pub swept: u64,
    /// Copies without a journal entry whose hash is right.
    pub adopted: u64,
    /// Objects that can be read only when a tier comes back.
    pub away: usize,
}

/// Objects on tiers.
#[derive(Debug)]
pub struct Objects {
    /// The fastest first.
    tiers: Vec<Tier>,
    /// The ids in the journal's header, those of tiers that are away too.
    ids: Vec<TierId>,
    /// Held while it is written to, which keeps its records in the order of the changes. Taken
    /// before `table`, never after it; readers do not take it.
    journal: Mutex<Journal>,
    /// Never held across I/O.
    table: Mutex<Table>,
}

/// A tier that is there.
#[derive(Debug)]
struct Tier {
    medium: Arc<dyn Medium>,
    capacity_bytes: u64,
    /// Its place in the journal's header.
    slot: u8,
}

/// What counts, and what is going on.
#[derive(Debug, Default)]
struct Table {
    entries: HashMap<ContentId, Entry>,
    /// Valid copies.
    copies: u64,
    /// Bytes used on each tier of the header, including copies in progress.
    used: [u64; TIERS_MAX],
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    len: u64,
    /// Tiers with a valid copy, by their place in the header.
    held: u8,
    /// Whether its copies are being changed.
    busy: bool,
    /// Readers of each copy.
    readers: [u32; TIERS_MAX],
}

impl Entry {
    const fn new(known: Known) -> Self {
        Self {
            len: known.len,
            held: known.tiers,
            busy: false,
            readers: [0; TIERS_MAX],
        }
    }
}

/// A change of the space on a tier that is not used by objects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Aside {
    /// So many bytes were found.
    Found(u64),
    /// So many are given back.
    Given(u64),
}

impl Table {
    /// Takes room on a tier.
    fn take_room(
        &mut self,
        tier: &Tier,
        id: ContentId,
        to: TierIndex,
        need: u64,
    ) -> Result<(), ObjectError> {
        let used = &mut self.used[usize::from(tier.slot)];
        let room = tier.capacity_bytes.saturating_sub(*used);
        if need > room {
            return Err(ObjectError::Full {
                id,
                tier: to,
                need,
                room,
            });
        }
        *used += need;
        Ok(())
    }

    /// Returns what the journal is to say.
    fn known(&self) -> HashMap<ContentId, Known> {
        let held = self.entries.iter().filter(|(_, entry)| entry.held != 0);
        let known = |entry: &Entry| Known {
            len: entry.len,
            tiers: entry.held,
        };
        held.map(|(id, entry)| (*id, known(entry))).collect()
    }
}

impl Objects {
    /// Returns an object, if it is known.
    #[must_use]
    pub fn get(&self, id: ContentId) -> Option<Object> {
        let entry = *self.table.lock().entries.get(&id)?;
        (entry.held != 0).then(|| self.object(id, entry))
    }

    /// Returns all objects, in the order of their ids.
    #[must_use]
    pub fn list(&self) -> Vec<Object> {
        let entries: Vec<(ContentId, Entry)> = {
            let table = self.table.lock();
            table
                .entries
                .iter()
                .map(|(id, entry)| (*id, *entry))
                .collect()
        };
        let held = entries.into_iter().filter(|(_, entry)| entry.held != 0);
        let mut objects: Vec<Object> = held.map(|(id, entry)| self.object(id, entry)).collect();
        objects.sort_unstable_by_key(|object| object.id);
        objects
    }

    /// Returns the bytes that objects use on a tier, with their parts and copies in progress;
    /// 0 for a tier that does not exist.
    #[must_use]
    pub fn used_bytes(&self, tier: TierIndex) -> u64 {
        let slot = self.tiers.get(tier.0).map(|tier| usize::from(tier.slot));
        slot.map_or(0, |slot| self.table.lock().used[slot])
    }

    /// Reserves space on a tier for `bytes` that belong to an object and are stored outside of it.
    ///
    /// # Errors
    /// If there is not enough space.
    pub(crate) fn set_aside(
        &self,
        id: ContentId,
        to: TierIndex,
        bytes: u64,
    ) -> Result<(), ObjectError> {
        let tier = self.tier(to)?;
        let mut table = self.table.lock();
        table.take_room(tier, id, to, bytes)
    }

    /// Counts what [`set_aside`](Self::set_aside) took no more; `bytes` that were found on a tier
    /// are counted with `Found`.
    pub(crate) fn count_aside(&self, tier: TierIndex, aside: Aside) {
        let Ok(tier) = self.tier(tier) else {
            return;
        };
        let used = &mut self.table.lock().used[usize::from(tier.slot)];
        *used = match aside {
            Aside::Found(bytes) => used.saturating_add(bytes),
            Aside::Given(bytes) => used.saturating_sub(bytes),
        };
    }

    fn object(&self, id: ContentId, entry: Entry) -> Object {
        let has = |tier: &TierIndex| entry.held & self.bit(*tier) != 0;
        Object {
            id,
            len: entry.len,
            tiers: (0..self.tiers.len()).map(TierIndex).filter(has).collect(),
        }
    }

    /// Returns the bit of a tier in sets of them; none of one that does not exist.
    fn bit(&self, tier: TierIndex) -> u8 {
        self.tiers.get(tier.0).map_or(0, |tier| 1 << tier.slot)
    }

    fn tier(&self, tier: TierIndex) -> Result<&Tier, ObjectError> {
        self.tiers.get(tier.0).ok_or(ObjectError::NoTier { tier })
    }

    /// Returns the tiers that are there of a set, the fastest first.
    fn present(&self, held: u8) -> impl Iterator<Item = TierIndex> + use<'_> {
        let tiers = (0..self.tiers.len()).map(TierIndex);
        tiers.filter(move |tier| held & self.bit(*tier) != 0)
    }
}

/// Returns the name of a copy.
fn whole_name(id: ContentId) -> String {
    id.to_string()
}

/// Returns the name of a copy that is not whole yet.
fn part_name(id: ContentId) -> String {
    format!("{id}.part")
}
