//! Opening copies, by those who serve from them.
//!
//! Whoever opens a copy holds a shared lock on it: so nobody takes it away, in whatever process he
//! is. The lock goes with the last descriptor of this opening, and with the process.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use blocks::ContentId;
use bootimg::{FasterCopies, FasterCopy, ImageId};

use super::Tiers;

/// An open copy of an object. As long as it is open, it stays.
#[derive(Debug)]
pub(crate) struct OpenCopy {
    /// The copy: the whole object. It is verified when it is made, and may have rotted since.
    pub(crate) file: File,
    /// Where it is.
    pub(crate) path: PathBuf,
    /// What the tier is called.
    pub(crate) tier: String,
}

impl Tiers {
    /// Opens the copies of an object, the fastest first. Tiers that are not there, have none, or
    /// are about to lose it, are left out; nobody is waited for.
    pub(crate) fn open_copies(&self, object: ContentId) -> impl Iterator<Item = OpenCopy> {
        let name = object.to_string();
        self.specs().iter().filter_map(move |tier| {
            let path = tier.dir.join(&name);
            let file = File::open(&path).ok()?;
            file.try_lock_shared().ok()?;
            // It may have been removed between the two.
            let tier = tier.name.clone();
            (file.metadata().ok()?.nlink() > 0).then_some(OpenCopy { file, path, tier })
        })
    }
}

impl FasterCopies for Tiers {
    fn open(&self, id: &ImageId) -> Vec<FasterCopy> {
        let Some(object) = self.known().get(id.0).and_then(|known| known.object) else {
            return Vec::new();
        };
        let copies = self.open_copies(object);
        copies
            .map(|OpenCopy { file, path, tier }| FasterCopy { file, path, tier })
            .collect()
    }

    fn note_use(&self, id: &ImageId) {
        if !self.are_used() {
            return;
        }
        if let Err(error) = self.known().add_heat(id.0, super::now()) {
            log::debug!(
                "the use of boot image {} is not noted: {error:#}",
                id.short()
            );
        }
    }
}
