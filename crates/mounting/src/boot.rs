//! The boot image of a mount: which one it is, and whether it can be used. This is decided here for every kind
//! of mount.

use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use blocks::{BlockCache, BlockRange, FileKey, Lookup, SwapCache, Tree};
use bootimg::{Attached, Image, ImageId, Store};
use localfs::SourceRoot;

use crate::nic::{BootBlocks, NicBoot, Recorded};
use bootstore::store::StoreSettings;
use host::size::Size;
use node_api::boot_choice::BootChoice;

/// A boot image in use.
#[derive(Debug)]
pub struct Boot {
    /// Its name.
    pub name: String,
    /// The blocks that boots read.
    pub recorded: Recorded,
    /// Its blocks.
    pub blocks: BootBlocks,
}

/// The boot image that a mount is served from now, if any. It can be exchanged while the mount is in use.
pub type BootSlot = SwapCache<Boot>;

impl Boot {
    /// Attaches an image to the tree of its source.
    pub fn attach(name: String, image: Arc<Image>, tree: &Tree) -> Arc<Self> {
        let image = Arc::new(image.attach(tree));
        let blocks = BootBlocks::Own(Arc::clone(&image));
        Arc::new(Self {
            name,
            recorded: Recorded::Image(image),
            blocks,
        })
    }

    /// Wraps a boot image that was chosen for a source of a block service.
    pub fn of_service(boot: NicBoot) -> Arc<Self> {
        let NicBoot {
            name,
            recorded,
            blocks,
        } = boot;
        let boot = Self {
            name,
            recorded,
            blocks,
        };
        boot.warn_stale();
        Arc::new(boot)
    }

    /// Returns the boot image, unless only its plan is here.
    pub const fn image(&self) -> Option<&Arc<Attached>> {
        self.recorded.image()
    }

    /// Returns a warning about parts that are not served because files changed, if there are any.
    pub fn stale(&self) -> Option<String> {
        let (name, image) = (&self.name, self.image()?);
        let report = image.report();
        let first = report.dropped.first()?;
        let first = String::from_utf8_lossy(&first.path);
        let (kept, gone) = (report.files_kept, report.dropped.len());
        let all = kept + gone;
        let from = &image.image().info().source.label;
        Some(if kept == 0 {
            format!(
                "boot image {name}, recorded from {from}, gives nothing: none of its {all} files is in \
                 the source as it was recorded, {first} for one; record the source"
            )
        } else {
            let bytes = Size(report.blocks_dropped.saturating_mul(4096));
            format!(
                "boot image {name}, recorded from {from}: {gone} of its {all} files ({bytes}) changed \
                 since it was recorded and are read from the source, {first} among them; record again \
                 to make them fast"
            )
        })
    }

    /// Logs once that it is partly stale; `status` shows it again.
    fn warn_stale(&self) {
        if let Some(warning) = self.stale() {
            log::warn!("{warning}");
        }
    }
}

impl BlockCache for Boot {
    fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        self.blocks.get(file, range, out)
    }

    fn get_once(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        self.blocks.get_once(file, range, out)
    }
}

/// What happens if a boot image that was found, and not requested by name, cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It is skipped, and logged.
    LeftOut,
    /// Nothing is served without it.
    Fails,
}

/// What happens if a boot image that was requested by name was recorded from another source, and has no data of
/// this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// It is used: the source may have been moved.
    Used,
    /// An error: the user meant another image.
    Refused,
}

/// A request for the boot image of a source on a disk.
#[derive(Clone, Copy, Debug)]
pub struct BootRequest<'a> {
    /// The choice.
    pub choice: &'a BootChoice,
    /// Where it is looked for.
    pub store: &'a StoreSettings,
    /// What happens if one that was found cannot be used.
    pub unusable: Unusable,
    /// What happens with one of another source.
    pub foreign: Foreign,
}

/// A boot image that was opened and not attached yet.
#[derive(Debug)]
pub struct OpenedBoot {
    /// Its name.
    pub name: String,
    /// The image.
    pub image: Arc<Image>,
}

impl BootRequest<'_> {
    /// Opens the boot image of a source; `None` if there is none, or it was skipped.
    ///
    /// # Errors
    /// If a requested one is missing or cannot be used, or the store cannot.
    pub fn open(&self, root: &SourceRoot) -> anyhow::Result<Option<OpenedBoot>> {
        if let BootChoice::File(path) = self.choice {
            let image = Image::open(path).context("opening the boot image")?;
            return Ok(Some(OpenedBoot {
                name: path.display().to_string(),
                image: Arc::new(image),
            }));
        }
        let Some((store, id)) = find(self.choice, self.store, root)? else {
            return Ok(None);
        };
        let name = store.names_of(&id)?.into_iter().next();
        let name = name.unwrap_or_else(|| id.short());
        match store.open_fastest(&id) {
            Ok(image) => Ok(Some(OpenedBoot {
                name,
                image: Arc::new(image),
            })),
            // An image that was asked for by name must be there; one that was found is only an offer.
            Err(error)
                if *self.choice == BootChoice::Auto && self.unusable == Unusable::LeftOut =>
            {
                log::warn!("boot image {name} cannot be used: {:#}", anyhow!(error));
                Ok(None)
            }
            Err(error) => Err(error).with_context(|| format!("opening the boot image {name}")),
        }
    }

    /// Attaches a boot image that was opened to the tree of its source.
    ///
    /// # Errors
    /// If it has nothing of the source, and such an image is refused.
    pub fn attach(
        &self,
        opened: OpenedBoot,
        root: &SourceRoot,
        tree: &Tree,
    ) -> anyhow::Result<Arc<Boot>> {
        let boot = Boot::attach(opened.name, opened.image, tree);
        if self.foreign == Foreign::Refused {
            self.refuse_foreign(&boot, root)?;
        }
        boot.warn_stale();
        Ok(boot)
    }

    /// Opens and attaches in one step.
    ///
    /// # Errors
    /// As [`BootRequest::open`] and [`BootRequest::attach`].
    pub fn resolve(&self, root: &SourceRoot, tree: &Tree) -> anyhow::Result<Option<Arc<Boot>>> {
        let opened = self.open(root)?;
        opened
            .map(|opened| self.attach(opened, root, tree))
            .transpose()
    }

    /// Refuses a boot image of another source that has nothing of this one. One that has something is worth
    /// it, and one of the same source may be out of date.
    fn refuse_foreign(&self, boot: &Boot, root: &SourceRoot) -> anyhow::Result<()> {
        let named = matches!(self.choice, BootChoice::Image(_) | BootChoice::File(_));
        let Some(image) = boot.image() else {
            return Ok(());
        };
        let (report, recorded) = (image.report(), &image.image().info().source);
        let has_nothing = report.files_kept == 0 && !report.dropped.is_empty();
        if named && has_nothing && recorded.id != root.id() {
            bail!(
                "boot image {} was recorded from {}, and has nothing of {}: none of its {} files is \
                 there as it was recorded (choose the boot image automatically, or record this source)",
                boot.name,
                recorded.label,
                root.path().display(),
                report.dropped.len()
            );
        }
        Ok(())
    }
}

/// Marks the boot image of a source as used now, so that the store keeps it: the process that serves
/// from it has no write access. Returns the image. A failure is only logged: opening the image reports it.
pub fn note_use(choice: &BootChoice, store: &StoreSettings, root: &SourceRoot) -> Option<ImageId> {
    match find(choice, store, root) {
        Ok(Some((store, id))) => {
            store.note_use(&id);
            Some(id)
        }
        Ok(None) => None,
        Err(error) => {
            log::debug!("the use of the boot image is not noted: {error:#}");
            None
        }
    }
}

/// Finds the boot image of the store that is chosen for a source, if one is.
fn find(
    choice: &BootChoice,
    store: &StoreSettings,
    root: &SourceRoot,
) -> anyhow::Result<Option<(Store, ImageId)>> {
    match choice {
        BootChoice::None | BootChoice::File(_) => Ok(None),
        BootChoice::Auto => {
            let Some(store) = store.open_existing()? else {
                return Ok(None);
            };
            let found = store.find_source(root.id())?;
            Ok(found.map(|id| (store, id)))
        }
        BootChoice::Image(wanted) => {
            let store = store.open()?;
            let id = store.resolve(wanted)?;
            Ok(Some((store, id)))
        }
    }
}
