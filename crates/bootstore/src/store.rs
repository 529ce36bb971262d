//! The store of boot images that the commands work on.

mod scratch;

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use bootimg::{
    AddReport, Image, Progress, Store, StoreConfig, StoredImage, Watch, WriteReport, WriteRequest,
    write_passing_image,
};

use crate::tiers::Tiers;
use host::interrupt::Interrupt;
use host::progress::Bar;

pub use scratch::Scratch;

/// The default directory of boot images.
pub const DEFAULT_STORE: &str = "/var/lib/yolofs/store";

/// Where plans of block images are in a store.
const BLOCK_PLANS: &str = "block-plans";

/// The variable that names the store.
pub const STORE_ENV: &str = "YOLOFS_STORE";
/// The variable with the maximum size of the store.
pub const STORE_MAX_ENV: &str = "YOLOFS_STORE_MAX";
/// The variable with the group that may read it.
pub const STORE_GROUP_ENV: &str = "YOLOFS_STORE_GROUP";
/// The variable that names the tiers file.
pub const TIERS_ENV: &str = "YOLOFS_TIERS";

/// A store, and its limits.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// Its directory.
    pub dir: PathBuf,
    /// The maximum size.
    pub max_bytes: u64,
    /// The group that may read it besides its owner.
    pub group: Option<u32>,
    /// The file that names the tiers, if one was given.
    pub tiers: Option<PathBuf>,
}

impl StoreSettings {
    /// Returns the settings of a store which is only read, with the tiers from the environment of this
    /// process.
    pub fn to_read(dir: PathBuf) -> Self {
        Self {
            dir,
            max_bytes: u64::MAX,
            group: None,
            tiers: std::env::var_os(TIERS_ENV).map(PathBuf::from),
        }
    }

    /// Returns the same store, with the tiers that `other` names.
    #[must_use]
    pub fn with_tiers_of(self, other: &Self) -> Self {
        Self {
            tiers: other.tiers.clone(),
            ..self
        }
    }

    /// Returns whether a tiers file was given.
    pub const fn names_tiers(&self) -> bool {
        self.tiers.is_some()
    }

    /// Reads the specification of the tiers.
    ///
    /// # Errors
    /// If a given tiers file is missing, or a file cannot be parsed.
    pub fn tiers(&self) -> anyhow::Result<Tiers> {
        let file = self.tiers.as_deref().map(std::path::absolute).transpose()?;
        Tiers::read(file.as_deref(), &self.absolute())
    }

    /// Returns where the store is, for another process: it may be started in another directory.
    #[must_use]
    pub fn absolute(&self) -> PathBuf {
        std::path::absolute(&self.dir).unwrap_or_else(|_| self.dir.clone())
    }

    /// Returns the environment variables that pass the same store to another of our processes.
    pub fn as_env(&self) -> Vec<(&'static str, OsString)> {
        let max = self.max_bytes.to_string();
        let mut env = vec![
            (STORE_ENV, self.absolute().into()),
            (STORE_MAX_ENV, max.into()),
        ];
        let group = self.group.map(|group| group.to_string());
        env.extend(group.map(|group| (STORE_GROUP_ENV, group.into())));
        env.extend(self.tiers_env());
        env
    }

    /// Returns the environment variable that passes the same tiers file to another of our processes.
    pub fn tiers_env(&self) -> Option<(&'static str, OsString)> {
        let tiers = self.tiers.as_ref()?;
        let absolute = std::path::absolute(tiers).unwrap_or_else(|_| tiers.clone());
        Some((TIERS_ENV, absolute.into()))
    }

    /// Opens the store. A missing one is created at the first write.
    ///
    /// # Errors
    /// If the directory is not a store, or cannot be used.
    pub fn open(&self) -> anyhow::Result<Store> {
        let config = StoreConfig {
            max_bytes: self.max_bytes,
            group: self.group,
            ..StoreConfig::default()
        };
        let store = Store::open(&self.dir, config).with_context(|| {
            format!(
                "opening the store {} (`store` names another)",
                self.dir.display()
            )
        })?;
        // Without tiers everything is there, only slower.
        Ok(match self.tiers() {
            Ok(tiers) => store.with_faster(Arc::new(tiers)),
            Err(error) => {
                log::warn!("not using copies on tiers: {error:#}");
                store
            }
        })
    }

    /// Opens the store, which must exist: a look-up of an image creates no store.
    ///
    /// # Errors
    /// If it is missing, or cannot be used.
    pub fn open_present(&self) -> anyhow::Result<Store> {
        self.open_existing()?.with_context(|| {
            format!(
                "there is no store at {} (`store` names another)",
                self.dir.display()
            )
        })
    }

    /// Opens the store if there is one.
    ///
    /// # Errors
    /// If it exists and cannot be used.
    pub fn open_existing(&self) -> anyhow::Result<Option<Store>> {
        let store = self.open()?;
        let is_there = store.is_there().context("looking for the store")?;
        Ok(is_there.then_some(store))
    }

    /// Makes the directory for plans of block images, as [`make_block_plans`] does.
    ///
    /// # Errors
    /// If the store cannot be used.
    pub fn make_block_plans(&self) -> anyhow::Result<()> {
        let dir = block_plans(&self.dir);
        if dir.is_dir() {
            return Ok(());
        }
        self.open()?.make().context("making the store")?;
        rawio::private::make_dir(&dir).with_context(|| format!("making {}", dir.display()))
    }
}

/// Returns the directory of a store that has the plans of starts of block images.
#[must_use]
pub fn block_plans(store: &Path) -> PathBuf {
    store.join(BLOCK_PLANS)
}

/// Makes the directory for plans of block images if it is missing, and the store that it is in. A process that may only write to
/// this directory has it made before.
///
/// # Errors
/// If the store cannot be used.
pub fn make_block_plans(store: &Path) -> anyhow::Result<()> {
    StoreSettings::to_read(store.to_owned()).make_block_plans()
}

/// Writes an image beside the store's own files, so that it is on the same disk, and adds it.
///
/// # Errors
/// If it cannot be written or added, or the watch cancels.
pub fn add_written(
    store: &Store,
    name: Option<&str>,
    request: &WriteRequest<'_>,
    watch: Watch<'_>,
) -> anyhow::Result<(AddReport, WriteReport)> {
    let scratch = Scratch::new(store)?;
    let path = scratch.file("bimg");
    let report = write_passing_image(&path, request, &mut *watch)?;
    let image = Image::open(&path)?;
    Ok((store.add(&image, name, watch)?, report))
}

/// Returns what to call an image: its first name, or the start of its id.
#[must_use]
pub fn name_of(image: &StoredImage) -> String {
    image
        .names
        .first()
        .cloned()
        .unwrap_or_else(|| image.info.id.short())
}

/// Returns a watch that moves `bar` and stops at Ctrl-C.
pub fn watch<'a>(
    bar: &'a Bar,
    interrupt: &'a Interrupt,
) -> impl FnMut(Progress) -> ControlFlow<()> + 'a {
    move |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
        if interrupt.asked() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}
