//! Opening copies to serve from them.
//!
//! A reader holds a shared lock on the copy that it opened: so no process removes it. The lock is
//! released with the last descriptor of this opening, and with the process.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use blocks::ContentId;
use bootimg::{CopyParts, FasterCopies, FasterCopy, ImageId};
use tiering::medium::open_regular;
use tiering::parts::{Index, pool_name};

use super::Tiers;
use super::lock::share_within;
use super::seen::index_in;

/// How long who looks whether a copy is open may hold it: far longer than that takes. Who still has it
/// then takes it away.
const LOOK: Duration = Duration::from_millis(50);

/// An open copy of an object. As long as it is open, it stays.
#[derive(Debug)]
pub struct OpenCopy {
    /// The copy: the whole object. It is verified when it is made, and may have rotted since.
    pub file: File,
    /// Its path.
    pub path: PathBuf,
    /// What the tier is called.
    pub tier: String,
}

impl Tiers {
    /// Opens the copies of an object, the fastest first. Tiers that are missing, have no copy, or
    /// are about to lose it, are skipped; it waits only for processes that check the copy.
    pub fn open_copies(&self, object: ContentId) -> impl Iterator<Item = OpenCopy> {
        let name = object.to_string();
        self.specs().iter().filter_map(move |tier| {
            let path = tier.dir.join(&name);
            let file = open_regular(&path).ok()?;
            if !share_within(&file, LOOK) {
                return None;
            }
            // It may have been removed between the two.
            let tier = tier.name.clone();
            (file.metadata().ok()?.nlink() > 0).then_some(OpenCopy { file, path, tier })
        })
    }
}

impl OpenCopy {
    /// Opens what the copy of a boot image is made of, if it is in parts.
    fn with_parts(self, object: ContentId) -> anyhow::Result<FasterCopy> {
        let Self { file, path, tier } = self;
        let reading = || format!("reading {}", path.display());
        let index = index_in(&file, object).with_context(reading)?;
        let parts = match index {
            Some(index) => Some(open_parts(&index, &path)?),
            None => None,
        };
        Ok(FasterCopy {
            file,
            parts,
            path,
            tier,
        })
    }
}

/// Opens the pools of an index that lies at `path`: the first is the image, the others its segments.
fn open_parts(index: &Index, path: &Path) -> anyhow::Result<CopyParts> {
    let mut files = Vec::new();
    for pool in index.pools() {
        let path = path.with_file_name(pool_name(*pool));
        let file = open_regular(&path).with_context(|| format!("opening {}", path.display()))?;
        files.push((*pool, file));
    }
    anyhow::ensure!(!files.is_empty(), "the copy has no parts");
    let (_, image) = files.remove(0);
    let segments = files;
    Ok(CopyParts { image, segments })
}

impl FasterCopies for Tiers {
    fn open(&self, id: &ImageId) -> Vec<FasterCopy> {
        let Some(object) = self.known().get(id.0).and_then(|known| known.object) else {
            return Vec::new();
        };
        let copies = self.open_copies(object);
        let copies = copies.filter_map(|copy| {
            let tier = copy.tier.clone();
            let opened = copy.with_parts(object);
            opened
                .inspect_err(|error| {
                    let id = id.short();
                    log::warn!("boot image {id}: the copy on {tier} cannot be used: {error:#}");
                })
                .ok()
        });
        copies.collect()
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
