//! The store of boot images that the commands work on.

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::Context as _;
use bootimg::{
    AddReport, Image, Progress, Store, StoreConfig, StoredImage, Watch, WriteReport, WriteRequest,
    write_image,
};
use indicatif::ProgressBar;

use crate::interrupt::Interrupt;
use crate::run_dir::process_start;
use crate::size::Size;

/// Where boot images are kept, unless told otherwise.
pub(crate) const DEFAULT_STORE: &str = "/var/lib/yolofs/store";

const STORE_ENV: &str = "YOLOFS_STORE";
const STORE_MAX_ENV: &str = "YOLOFS_STORE_MAX";

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
}

impl StoreArgs {
    /// Returns the flags that name a store which is only read.
    pub(crate) const fn to_read(dir: PathBuf) -> Self {
        Self {
            dir,
            max: Size(u64::MAX),
        }
    }

    /// Returns where the store is, for another process: it may be started in another directory.
    #[must_use]
    pub(crate) fn absolute(&self) -> PathBuf {
        std::path::absolute(&self.dir).unwrap_or_else(|_| self.dir.clone())
    }

    /// Returns the variables that name the same store to another process of ours.
    pub(crate) fn as_env(&self) -> [(&'static str, OsString); 2] {
        let max = self.max.0.to_string();
        [
            (STORE_ENV, self.absolute().into()),
            (STORE_MAX_ENV, max.into()),
        ]
    }

    /// Returns the most bytes that the store may take.
    #[must_use]
    pub(crate) const fn max_bytes(&self) -> u64 {
        self.max.0
    }

    /// Opens the store, and makes it if it is not there.
    ///
    /// # Errors
    /// If it cannot be made or used.
    pub(crate) fn open(&self) -> anyhow::Result<Store> {
        let config = StoreConfig {
            max_bytes: self.max.0,
            ..StoreConfig::default()
        };
        Store::open(&self.dir, config).with_context(|| {
            format!(
                "opening the store {} (choose one with --store)",
                self.dir.display()
            )
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
        if self.dir.exists() {
            self.open().map(Some)
        } else {
            Ok(None)
        }
    }
}

/// What an image is called while it is written: this and our pid, in the store's directory. Not
/// in its `tmp`, which the `gc` of any other process sweeps.
const RECORDING: &str = "recording-";

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
    sweep_dead_recordings(store);
    let path = store
        .dir()
        .join(format!("{RECORDING}{}", std::process::id()));
    let add = |watch: Watch<'_>| {
        let report = write_image(&path, request, &mut *watch)?;
        let image = Image::open(&path)?;
        Ok((store.add(&image, name, watch)?, report))
    };
    let result = add(watch);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            log::warn!("cannot remove {}: {error}", path.display());
        }
        _ => {}
    }
    result
}

/// Returns where a command may write a file beside the store's own, to remove it before it ends.
/// If it is killed, the next one that writes removes it.
#[must_use]
pub(crate) fn scratch_file(store: &Store, what: &str) -> PathBuf {
    sweep_dead_recordings(store);
    let pid = std::process::id();
    store.dir().join(format!("{RECORDING}{pid}.{what}"))
}

/// Removes what recordings left behind that were killed while they wrote.
fn sweep_dead_recordings(store: &Store) {
    let entries = std::fs::read_dir(store.dir())
        .into_iter()
        .flatten()
        .flatten();
    for entry in entries {
        let name = entry.file_name();
        // Unfinished ones have a serial number and `tmp` behind the pid.
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix(RECORDING)?.split('.').next());
        let pid = pid.and_then(|pid| pid.parse().ok());
        if pid.is_some_and(|pid| process_start(pid).is_err())
            && let Err(error) = std::fs::remove_file(entry.path())
        {
            log::warn!("cannot remove {}: {error}", entry.path().display());
        }
    }
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
    bar: &'a ProgressBar,
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
