//! A directory of many boot images, which share their common blocks:
//! docs/bootimg-format.md, section 9.
//!
//! There is no index beside the files. A process that changes the store holds its lock; readers take
//! none, and an open image stays readable after its removal, by its open descriptors.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use blocks::{ContentId, SourceId};

use crate::durable::{Durability, Steps};
use crate::{Image, ImageId, ImageInfo, StoreError, Watch, WriteError};

mod add;
mod catalog;
mod copied;
mod copy_parts;
pub(crate) mod faster;
mod gc;
mod homes;
mod lock;
mod names;
mod parts;
mod pass;
mod places;
mod repack;
mod segment;
mod stacks;
#[cfg(test)]
mod tests;
mod transfer;

use catalog::{Catalog, Lengths};
pub use faster::{CopyParts, FasterCopies, FasterCopy};
pub use gc::{GcMode, GcReport};
use lock::{Lock, Turns};
pub use names::check as check_name;
pub use parts::{StoredPart, StoredParts};
pub use pass::{Pass, PassedImage};
use places::Places;
use places::marker::{self, Kind};
pub use transfer::{StoreVerifyReport, StoredVerifyReport};

/// How a store behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// Bytes that the store may take; above it the least valuable images that are not pinned go.
    pub max_bytes: u64,
    /// How long to wait for another process to finish its changes.
    pub lock_timeout: Duration,
    /// The group that may read the store besides its owner; `None` leaves it as it was decided before.
    pub group: Option<u32>,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            max_bytes: 8 << 30, // some 200 boot images of 40 MB that share nothing
            lock_timeout: Duration::from_secs(30), // adding an image takes a second or two
            group: None,
        }
    }
}

/// A directory of boot images.
#[derive(Debug)]
pub struct Store {
    places: Places,
    config: StoreConfig,
    steps: Steps,
    /// The image that those which are added are made of.
    derived_from: Option<ImageId>,
    /// Bytes that may be added before the size of the store is looked at again.
    unmeasured: Arc<AtomicU64>,
    turns: Arc<Turns>,
    faster: Option<Arc<dyn FasterCopies>>,
}

/// An image of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredImage {
    /// What it is.
    pub info: ImageInfo,
    /// What it is called, sorted.
    pub names: Vec<String>,
    /// Whether it stays when the store is too large.
    pub pinned: bool,
    /// Bytes that its removal would free.
    pub own_bytes: u64,
    /// Bytes that it shares with other images.
    pub shared_bytes: u64,
    /// Those bytes, by who else has them.
    pub groups: Vec<SharedGroup>,
    /// When it was added or opened last.
    pub last_used: SystemTime,
    /// What it is worth: the bytes it is expected to save at the next boot, in thousandths of
    /// the bytes it takes, halved for every week it was not used.
    pub value: u64,
}

/// Blocks of a segment that the same images of a store have, two of them at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedGroup {
    /// Of which segment.
    pub segment: ContentId,
    /// Which: all images that have it say the same, at one moment.
    pub number: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// What adding an image did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddReport {
    /// The image.
    pub id: ImageId,
    /// What it is called.
    pub name: String,
    /// Bytes of content that had to be stored.
    pub new_bytes: u64,
    /// Bytes of content that the store had already.
    pub shared_bytes: u64,
    /// The image that had the name before and is gone now.
    pub replaced: Option<ImageId>,
    /// Images that had to go because the store had become too large.
    pub evicted: Vec<ImageId>,
}

impl Store {
    /// Opens the store in `dir`. If that is not there, or empty, it is a store without images, and
    /// becomes one on the disk when something is written to it. One that everybody may read, as
    /// earlier releases made them, is closed.
    ///
    /// # Errors
    /// If the directory is there and no store, or cannot be read, or given to the group.
    pub fn open(dir: impl Into<PathBuf>, config: StoreConfig) -> Result<Self, StoreError> {
        Ok(Self {
            places: Places::of(dir.into(), config.group)?,
            config,
            steps: Steps::default(),
            derived_from: None,
            unmeasured: Arc::default(),
            turns: Arc::default(),
            faster: None,
        })
    }

    /// Returns the same store, for images that can be made again, of the image `from`: they and their names become durable when
    /// the kernel writes them out. Their blocks are durable at once, for others share them. A power cut before that may damage
    /// such an image: readers refuse it then, and adding it again replaces it. Blocks that `from` has too are found without a look
    /// at the rest of the store.
    #[must_use]
    pub fn for_derived(&self, from: ImageId) -> Self {
        Self {
            places: self.places.clone(),
            config: self.config,
            steps: self.steps.clone(),
            derived_from: Some(from),
            unmeasured: Arc::clone(&self.unmeasured),
            turns: Arc::clone(&self.turns),
            faster: self.faster.clone(),
        }
    }

    fn image_steps(&self) -> Steps {
        self.steps.with(match self.derived_from {
            Some(_) => Durability::Later,
            None => Durability::Each,
        })
    }

    /// Has [`open_fastest`](Self::open_fastest) take copies on faster memory, where there are any.
    /// What such a copy fails to give is read from the store's own file.
    #[must_use]
    pub fn with_faster(self, faster: Arc<dyn FasterCopies>) -> Self {
        Self {
            faster: Some(faster),
            ..self
        }
    }

    /// Returns the directory of the store.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.places.dir()
    }

    /// Returns whether there is a store on the disk.
    ///
    /// # Errors
    /// If the directory is something else by now, or cannot be read.
    pub fn is_there(&self) -> Result<bool, StoreError> {
        self.places.is_there()
    }

    /// Makes the store on the disk if it is not there: for who writes a file of his own beside the
    /// store's.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn make(&self) -> Result<(), StoreError> {
        self.lock().map(|_lock| ())
    }

    /// Adds an image, under a name that it takes over if another image has it; without a name,
    /// one is made of the source's label. Adding what is there changes nothing but the name.
    ///
    /// # Errors
    /// If the image is damaged, there is no room, the name cannot be one, or the store is locked
    /// for too long.
    pub fn add(
        &self,
        image: &Image,
        name: Option<&str>,
        watch: Watch<'_>,
    ) -> Result<AddReport, StoreError> {
        let _lock = self.lock()?;
        self.add_locked(image, name, watch)
    }

    /// Returns all images, the most valuable first. Damaged ones are left out and logged;
    /// [`verify`](Self::verify) reports them.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn list(&self) -> Result<Vec<StoredImage>, StoreError> {
        Ok(Catalog::read(&self.places, Lengths::OfFiles)?.list())
    }

    /// Returns the id of the image that has this name, this id, or the only id that starts like
    /// this. Reads directories only: what boots from a cold disk needs no more than that.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub fn resolve(&self, what: &str) -> Result<ImageId, StoreError> {
        names::resolve(self.places.names()?, self.places.images()?, what)
    }

    /// Returns what is called `what`, with all that [`list`](Self::list) tells of it.
    ///
    /// # Errors
    /// If there is none, more than one, or it is damaged.
    pub fn find(&self, what: &str) -> Result<StoredImage, StoreError> {
        let id = self.resolve(what)?;
        let found = self.list()?.into_iter().find(|image| image.info.id == id);
        match found {
            Some(image) => Ok(image),
            // It is there, and the list left it out: opening it says why.
            None => Err(match self.open_image(&id) {
                Err(error) => error,
                Ok(_) => StoreError::NotFound {
                    what: what.to_owned(),
                },
            }),
        }
    }

    /// Returns the newest recording of a source, if there is one. Reads of every image only who it
    /// is of.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn find_source(&self, source: SourceId) -> Result<Option<ImageId>, StoreError> {
        catalog::newest_of(&self.places, source)
    }

    /// Returns what an image is called, sorted.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn names_of(&self, id: &ImageId) -> Result<Vec<String>, StoreError> {
        let names = self.places.names()?.into_iter();
        let mut names: Vec<_> = names
            .filter(|(_, named)| named == &Some(*id))
            .map(|(name, _)| name)
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Returns when an image was given a name or lost one last, if the system can say: what was
    /// found by name before then may be out of date.
    #[must_use]
    pub fn named_at(&self) -> Option<SystemTime> {
        self.places.named_at()
    }

    /// Opens an image, and notes that it was used.
    ///
    /// # Errors
    /// If it is not there, or damaged.
    pub fn open_image(&self, id: &ImageId) -> Result<Image, StoreError> {
        let image = self.peek_image(id)?;
        self.places.touch(id);
        Ok(image)
    }

    /// Opens an image to serve from it, from its fastest copy that can be used; if there is none,
    /// from the store's own file. Notes that it was used.
    ///
    /// # Errors
    /// If it is not there, or damaged.
    pub fn open_fastest(&self, id: &ImageId) -> Result<Image, StoreError> {
        if let Some(faster) = &self.faster
            && let Some(copy) = faster::open_fastest(&self.places, &**faster, id)?
        {
            self.places.touch(id);
            return Ok(copy);
        }
        self.open_image(id)
    }

    /// Notes that an image is used for a start now: for the store, as
    /// [`open_image`](Self::open_image) does, for one who serves from it and may not write; and for
    /// who keeps copies on faster memory.
    pub fn note_use(&self, id: &ImageId) {
        self.places.touch(id);
        if let Some(faster) = &self.faster {
            faster.note_use(id);
        }
    }

    /// Opens an image as [`open_image`](Self::open_image) does, and notes nothing: to look at an
    /// image is no reason to keep it.
    ///
    /// # Errors
    /// If it is not there, or damaged.
    pub fn peek_image(&self, id: &ImageId) -> Result<Image, StoreError> {
        catalog::open_image(&self.places, id)
    }

    /// Removes an image and its names. Its blocks go with the next [`gc`](Self::gc).
    ///
    /// # Errors
    /// If it is not there, or cannot be removed.
    pub fn remove(&self, id: &ImageId) -> Result<(), StoreError> {
        let _lock = self.lock()?;
        self.remove_locked(id)
    }

    /// Keeps an image when the store is too large.
    ///
    /// # Errors
    /// If it is not there, or the store cannot be changed.
    pub fn pin(&self, id: &ImageId) -> Result<(), StoreError> {
        let _lock = self.lock()?;
        self.places.must_have(id)?;
        self.places.pin(id, &self.steps)
    }

    /// Undoes [`pin`](Self::pin).
    ///
    /// # Errors
    /// If it is not there, or the store cannot be changed.
    pub fn unpin(&self, id: &ImageId) -> Result<(), StoreError> {
        let _lock = self.lock()?;
        self.places.must_have(id)?;
        self.places.unpin(id, &self.steps)
    }

    /// Collects garbage: what writers that died left behind, names and pins without images,
    /// images without names, segments without images; where the store is too large, the least
    /// valuable images that are not pinned; and the dead part of segments that are mostly dead.
    ///
    /// # Errors
    /// If the store cannot be read or changed.
    pub fn gc(&self, mode: GcMode) -> Result<GcReport, StoreError> {
        let _lock = match mode {
            GcMode::Apply => Some(self.lock()?),
            GcMode::DryRun => self.lock_to_look()?,
        };
        self.gc_locked(mode, None)
    }

    /// Takes the lock of a store that is about to be changed, which is made if it is not there.
    fn lock(&self) -> Result<Lock<'_>, StoreError> {
        let kind = self.places.make(self.config.group)?;
        let lock = Lock::take(&self.places.lock(), self.config.lock_timeout, &self.turns)?;
        if kind != Kind::Store {
            marker::write(&self.places, &self.steps)?;
        }
        Ok(lock)
    }

    /// Locks the store so that it does not change; `None` if it was never written to.
    fn lock_to_look(&self) -> Result<Option<Lock<'_>>, StoreError> {
        Lock::take_present(&self.places.lock(), self.config.lock_timeout, &self.turns)
    }

    fn remove_locked(&self, id: &ImageId) -> Result<(), StoreError> {
        self.places.must_have(id)?;
        for (name, named) in self.places.names()? {
            if named == Some(*id) {
                self.places.remove_name(&name, &self.steps)?;
            }
        }
        self.places.unpin(id, &self.steps)?;
        self.places.remove_image(id, &self.steps)
    }
}

/// Turns the error of a part of the store that is read into one that says which part.
fn reading(path: &Path) -> impl Fn(std::io::Error) -> StoreError {
    move |error| StoreError::io(path, "reading", error)
}

impl From<crate::Cancelled> for StoreError {
    fn from(_: crate::Cancelled) -> Self {
        Self::Write(WriteError::Cancelled)
    }
}
