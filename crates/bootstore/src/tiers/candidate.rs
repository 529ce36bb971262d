//! The objects that may be placed on tiers, and how each is present there.

use std::path::Path;

use blocks::ContentId;
use bootimg::{ImageId, SharedGroup, Store};
use tiering::heat::Heat;

use super::whole::WholeFile;

/// A boot image, a file that may be copied whole, or an object of which neither is known any more.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its key in the records: the boot image's id, or the object's.
    pub key: ContentId,
    /// Its name for people.
    pub label: String,
    /// Length of its object; about that, if it has never been one.
    pub bytes: u64,
    /// Those of its bytes that other objects share.
    pub common: Vec<SharedGroup>,
    /// How often it was needed, and how lately.
    pub heat: Heat,
    /// Whether it is pinned, whatever its heat is.
    pub pinned: bool,
    /// The boot image that it is made of, if it is made of one.
    pub image: Option<ImageId>,
    /// The file of which it is a whole copy, if it is one and the file has not changed since.
    pub file: Option<WholeFile>,
    /// The name of the boot image whose starts require the whole file there.
    pub hot_of: Option<String>,
    /// Whether it is a boot image all of whose files are stored whole: then its own copy is not needed.
    pub needless: bool,
    /// The object, if it has been one.
    pub object: Option<ContentId>,
    /// Its presence on each tier.
    pub on: Vec<Presence>,
}

impl Candidate {
    /// Returns how it is stored on a tier (`blocks` or `whole`); `None` for an unknown object.
    pub const fn way(&self) -> Option<&'static str> {
        match (&self.image, &self.file) {
            (Some(_), _) => Some("blocks"),
            (None, Some(_)) => Some("whole"),
            (None, None) => None,
        }
    }

    /// Returns what a move to a tier reads: the file, or the store that has the boot image.
    pub fn source_path<'a>(&'a self, store: &'a Store) -> &'a Path {
        self.file
            .as_ref()
            .map_or_else(|| store.dir(), WholeFile::path)
    }
}

/// How an object is on a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It has no copy.
    Absent,
    /// It has a copy.
    There,
    /// It has a copy, which is open.
    Open,
}
