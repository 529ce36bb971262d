//! The store of boot images that the commands work on.

mod scratch;

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context as _;
use bootimg::{
    AddReport, Image, Progress, Store, StoreConfig, StoredImage, Watch, WriteReport, WriteRequest,
    write_image,
};
use nix::unistd::Group;

use crate::tiers::Tiers;
use host::interrupt::Interrupt;
use host::progress::Bar;
use host::size::Size;

pub(crate) use scratch::Scratch;

/// Where boot images are kept, unless told otherwise.
pub(crate) const DEFAULT_STORE: &str = "/var/lib/yolofs/store";

const STORE_ENV: &str = "YOLOFS_STORE";
const STORE_MAX_ENV: &str = "YOLOFS_STORE_MAX";
const STORE_GROUP_ENV: &str = "YOLOFS_STORE_GROUP";
const TIERS_ENV: &str = "YOLOFS_TIERS";

/// The flags that say which store.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Store")]
pub(crate) struct StoreArgs {
    /// Directory of the store
    #[arg(
        long = "store",
        value_name = "DIR",
        env = STORE_ENV,
        default_value = DEFAULT_STORE,
        global = true
    )]
    dir: PathBuf,
    /// Most bytes that the store may take: above it the least valuable boot images are removed
    #[arg(
        long = "store-max",
        value_name = "SIZE",
        env = STORE_MAX_ENV,
        default_value = "8G",
        global = true
    )]
    max: Size,
    /// Group that may read the store besides its owner, by name or number, from now on
    #[arg(
        long = "store-group",
        value_name = "NAME",
        env = STORE_GROUP_ENV,
        global = true
    )]
    group: Option<StoreGroup>,
    /// File that names the tiers which boot images may have copies on [default:
    /// /etc/yolofs/tiers.toml if it is there, else one tier beside the boot images]
    #[arg(long, value_name = "FILE", env = TIERS_ENV, global = true)]
    tiers: Option<PathBuf>,
}

/// The number of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StoreGroup(u32);

impl FromStr for StoreGroup {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        if let Ok(number) = text.parse() {
            return Ok(Self(number));
        }
        let group = Group::from_name(text).context("asking the system for its groups")?;
        let group = group.with_context(|| format!("there is no group {text:?}"))?;
        Ok(Self(group.gid.as_raw()))
    }
}

impl StoreArgs {
    /// Returns the flags that name a store which is only read, with the tiers that this process
    /// was told of by its environment.
    pub(crate) fn to_read(dir: PathBuf) -> Self {
        Self {
            dir,
            max: Size(u64::MAX),
            group: None,
            tiers: std::env::var_os(TIERS_ENV).map(PathBuf::from),
        }
    }

    /// Returns the same store, with the tiers that `other` names.
    #[must_use]
    pub(crate) fn with_tiers_of(self, other: &Self) -> Self {
        Self {
            tiers: other.tiers.clone(),
            ..self
        }
    }

    /// Returns whether somebody named a tiers file.
    pub(crate) const fn names_tiers(&self) -> bool {
        self.tiers.is_some()
    }

    /// Reads which tiers there are.
    ///
    /// # Errors
    /// If a tiers file was named and is not there, or one is there and cannot be understood.
    pub(crate) fn tiers(&self) -> anyhow::Result<Tiers> {
        let file = self.tiers.as_deref().map(std::path::absolute).transpose()?;
        Tiers::read(file.as_deref(), &self.absolute())
    }

    /// Returns where the store is, for another process: it may be started in another directory.
    #[must_use]
    pub(crate) fn absolute(&self) -> PathBuf {
        std::path::absolute(&self.dir).unwrap_or_else(|_| self.dir.clone())
    }

    /// Returns the variables that name the same store to another process of ours.
    pub(crate) fn as_env(&self) -> Vec<(&'static str, OsString)> {
        let max = self.max.0.to_string();
        let mut env = vec![
            (STORE_ENV, self.absolute().into()),
            (STORE_MAX_ENV, max.into()),
        ];
        let group = self.group.map(|group| group.0.to_string());
        env.extend(group.map(|group| (STORE_GROUP_ENV, group.into())));
        env.extend(self.tiers_env());
        env
    }

    /// Returns the variable that names the same tiers file to another process of ours.
    pub(crate) fn tiers_env(&self) -> Option<(&'static str, OsString)> {
        let tiers = self.tiers.as_ref()?;
        let absolute = std::path::absolute(tiers).unwrap_or_else(|_| tiers.clone());
        Some((TIERS_ENV, absolute.into()))
    }

    /// Returns the most bytes that the store may take.
    #[must_use]
    pub(crate) const fn max_bytes(&self) -> u64 {
        self.max.0
    }

    /// Opens the store. One that is not there is made when something is written to it.
    ///
    /// # Errors
    /// If the directory is there and no store, or cannot be used.
    pub(crate) fn open(&self) -> anyhow::Result<Store> {
        let config = StoreConfig {
            max_bytes: self.max.0,
            group: self.group.map(|group| group.0),
            ..StoreConfig::default()
        };
        let store = Store::open(&self.dir, config).with_context(|| {
            format!(
                "opening the store {} (choose one with --store)",
                self.dir.display()
            )
        })?;
        // Without tiers everything is there, only slower.
        Ok(match self.tiers() {
            Ok(tiers) => store.with_faster(Arc::new(tiers)),
            Err(error) => {
                log::warn!("copies on faster tiers are not used: {error:#}");
                store
            }
        })
    }

    /// Opens the store, which must be there: to look for an image makes no store.
    ///
    /// # Errors
    /// If it is not there, or cannot be used.
    pub(crate) fn open_present(&self) -> anyhow::Result<Store> {
        self.open_existing()?.with_context(|| {
            format!(
                "there is no store at {} (choose one with --store)",
                self.dir.display()
            )
        })
    }

    /// Opens the store if there is one.
    ///
    /// # Errors
    /// If it is there and cannot be used.
    pub(crate) fn open_existing(&self) -> anyhow::Result<Option<Store>> {
        let store = self.open()?;
        let is_there = store.is_there().context("looking for the store")?;
        Ok(is_there.then_some(store))
    }
}

/// Writes an image beside the store's own files, so that it is on the same disk, and adds it.
///
/// # Errors
/// If it cannot be written or added, or the watch cancels.
pub(crate) fn add_written(
    store: &Store,
    name: Option<&str>,
    request: &WriteRequest<'_>,
    watch: Watch<'_>,
) -> anyhow::Result<(AddReport, WriteReport)> {
    let scratch = Scratch::new(store)?;
    let path = scratch.file("bimg");
    let report = write_image(&path, request, &mut *watch)?;
    let image = Image::open(&path)?;
    Ok((store.add(&image, name, watch)?, report))
}

/// Returns what to call an image: its first name, or the start of its id.
#[must_use]
pub(crate) fn name_of(image: &StoredImage) -> String {
    image
        .names
        .first()
        .cloned()
        .unwrap_or_else(|| image.info.id.short())
}

/// Returns a watch that moves `bar` and stops at Ctrl-C.
pub(crate) fn watch<'a>(
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
