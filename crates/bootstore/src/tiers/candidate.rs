//! What may be placed on tiers, and how it is there now.

use blocks::ContentId;
use bootimg::{ImageId, SharedGroup};
use tiering::heat::Heat;

use super::whole::WholeFile;

/// A boot image, a file that may be copied whole, or an object of which neither is known any more.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its name among what is known: the boot image's id, or the object's.
    pub key: ContentId,
    /// What people call it.
    pub label: String,
    /// Length of its object; about that, if it has never been one.
    pub bytes: u64,
    /// What of them others have, too.
    pub common: Vec<SharedGroup>,
    /// How often it was needed, and how lately.
    pub heat: Heat,
    /// Whether somebody wants it there whatever its heat is.
    pub pinned: bool,
    /// The boot image that it is made of, if it is made of one.
    pub image: Option<ImageId>,
    /// The file of which it is a whole copy, if it is one and the file has not changed since.
    pub file: Option<WholeFile>,
    /// The boot image, as people call it, because of whose starts the file is to be there whole.
    pub hot_of: Option<String>,
    /// Whether it is a boot image all of whose files go whole: then a copy of its own is of no use.
    pub needless: bool,
    /// The object, if it has been one.
    pub object: Option<ContentId>,
    /// For each tier, how it is there.
    pub on: Vec<Presence>,
}

impl Candidate {
    /// Returns how it is kept on a tier (`blocks` or `whole`); `None` for an unknown object.
    pub const fn way(&self) -> Option<&'static str> {
        match (&self.image, &self.file) {
            (Some(_), _) => Some("blocks"),
            (None, Some(_)) => Some("whole"),
            (None, None) => None,
        }
    }
}

/// How an object is on a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is not there.
    Absent,
    /// It is there.
    There,
    /// It is there, and somebody has it open.
    Open,
}
