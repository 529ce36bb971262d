//! What lies on the tiers now, as whoever only looks sees it: no lock, no change.

use std::collections::BTreeMap;
use std::fs;

use blocks::ContentId;
use tiering::tier::Capability;

use super::Tiers;
use super::file::TierSpec;
use super::lock::{Hold, hold_alone};
use super::marks::Marks;

/// A tier at one moment.
#[derive(Debug)]
pub(crate) struct SeenTier {
    /// What somebody said of it.
    pub(crate) spec: TierSpec,
    /// What it can do; or why it cannot be used.
    pub(crate) is: Result<Capability, String>,
    /// Whole copies, with their lengths.
    pub(crate) objects: BTreeMap<ContentId, u64>,
}

impl SeenTier {
    /// Returns the bytes that objects may take; 0 of one that is not there.
    pub(crate) fn room_bytes(&self) -> u64 {
        let room = self.spec.room;
        self.is
            .as_ref()
            .map_or(0, |is| room.bytes(is.capacity_bytes))
    }

    /// Returns the bytes that objects take.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.objects.values().sum()
    }

    /// Returns whether somebody has a copy open.
    pub(crate) fn is_open(&self, object: ContentId) -> bool {
        let path = self.spec.dir.join(object.to_string());
        matches!(hold_alone(&path), Hold::Open)
    }
}

impl Tiers {
    /// Looks at all tiers, the fastest first.
    pub(crate) fn look(&self) -> Vec<SeenTier> {
        let marks = Marks::read(self);
        let look = |spec: &TierSpec| {
            let is = match marks.find(spec) {
                Ok(found) => Ok(found.capability),
                Err(_) if self.file().is_none() && !spec.dir.exists() => {
                    Err("nothing was put there yet".to_owned())
                }
                Err(error) => Err(format!("{error:#}")),
            };
            let objects = match &is {
                Ok(_) => objects_in(spec),
                Err(_) => BTreeMap::new(),
            };
            let spec = spec.clone();
            SeenTier { spec, is, objects }
        };
        self.specs().iter().map(look).collect()
    }
}

/// Returns the whole copies in a tier's directory.
fn objects_in(spec: &TierSpec) -> BTreeMap<ContentId, u64> {
    let entries = fs::read_dir(&spec.dir).into_iter().flatten().flatten();
    let object = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let id: ContentId = name.to_str()?.parse().ok()?;
        Some((id, entry.metadata().ok()?.len()))
    };
    entries.filter_map(object).collect()
}
