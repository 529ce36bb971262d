//! The contents of the tiers, for queries: takes no lock, changes nothing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;

use blocks::ContentId;
use tiering::medium::open_regular;
use tiering::parts::{Index, Users, begins_an_index};
use tiering::tier::Capability;

use super::Tiers;
use super::file::TierSpec;
use super::lock::{Hold, hold_alone};
use super::marks::Marks;

/// A tier at one moment.
#[derive(Debug)]
pub struct SeenTier {
    /// Its configuration.
    pub spec: TierSpec,
    /// What it can do; or why it cannot be used.
    pub is: Result<Capability, String>,
    /// Whole copies, with the lengths of their files.
    pub objects: BTreeMap<ContentId, u64>,
    /// Those of them that are in parts.
    pub indexes: Users,
}

impl SeenTier {
    /// Returns its capacity for objects; 0 of a missing one.
    pub fn room_bytes(&self) -> u64 {
        let room = self.spec.room;
        self.is
            .as_ref()
            .map_or(0, |is| room.bytes(is.capacity_bytes))
    }

    /// Returns the bytes that objects use, shared ones counted once.
    pub fn used_bytes(&self) -> u64 {
        self.objects.values().sum::<u64>() + self.indexes.part_bytes()
    }

    /// Returns the bytes of an object, with all of its parts, if it has a copy.
    pub fn bytes_of(&self, object: ContentId) -> Option<u64> {
        let parts = self.indexes.get(object).map_or(0, Index::part_bytes);
        Some(self.objects.get(&object)? + parts)
    }

    /// Returns how many bytes of an object other objects here share.
    pub fn shared_bytes(&self, object: ContentId) -> u64 {
        self.indexes.shared_bytes(object)
    }

    /// Returns whether a copy is open.
    pub fn is_open(&self, object: ContentId) -> bool {
        let path = self.spec.dir.join(object.to_string());
        matches!(hold_alone(&path), Hold::Open)
    }
}

impl Tiers {
    /// Returns the contents of all tiers, the fastest first.
    pub fn look(&self) -> Vec<SeenTier> {
        let marks = Marks::read(self);
        let look = |spec: &TierSpec| {
            let found = match &marks {
                Ok(marks) => marks.find(spec),
                Err(error) => Err(anyhow::anyhow!("{error:#}")),
            };
            let is = match found {
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
            let indexes = indexes_of(&spec, &objects);
            SeenTier {
                spec,
                is,
                objects,
                indexes,
            }
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

/// Returns the indexes among objects. One that is damaged, or goes meanwhile, is none.
fn indexes_of(spec: &TierSpec, objects: &BTreeMap<ContentId, u64>) -> Users {
    let mut users = Users::default();
    for object in objects.keys() {
        let file = open_regular(&spec.dir.join(object.to_string()));
        if let Ok(Some(index)) = file.and_then(|file| index_in(&file, *object)) {
            users.insert(*object, index);
        }
    }
    users
}

/// Returns the index that an object is, if it is one.
///
/// # Errors
/// If it cannot be read, or it is damaged.
pub(super) fn index_in(file: &File, object: ContentId) -> io::Result<Option<Index>> {
    let len = file.metadata()?.len();
    let mut head = [0; 8];
    let read = file.read_at(&mut head, 0)?;
    if !begins_an_index(&head[..read], len) {
        return Ok(None);
    }
    let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, 0)?;
    if ContentId::of(&bytes) != object {
        return Err(io::Error::other("it is damaged"));
    }
    Index::decode(&bytes).map(Some).map_err(io::Error::other)
}
