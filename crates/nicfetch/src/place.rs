//! The directories of nicfetch.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use chunks::{Sources, StoreConfig};
use rawio::private;

use host::size::Size;

/// The default directory of nicfetch.
pub(crate) const USUAL: &str = "/var/lib/nicfetch";
/// What chunks may take unless it was said.
const USUAL_SIZE: Size = Size(16 << 30);

/// The chunks and the sources of a nicfetch that does not run.
#[derive(Clone, Debug, Default)]
pub struct PlaceSettings {
    /// Their directory, if it is not the usual one.
    pub store: Option<PathBuf>,
    /// The limit of the chunks there, if not the default.
    pub size: Option<Size>,
}

impl PlaceSettings {
    /// Opens the chunks and the sources.
    ///
    /// # Errors
    /// If they cannot be opened, or another nicfetch has them.
    pub(crate) fn open(&self) -> anyhow::Result<Arc<Sources>> {
        open(self.dir(), self.size.unwrap_or(USUAL_SIZE).0)
    }

    /// Makes the directories, and returns where all of them are.
    ///
    /// # Errors
    /// If they cannot be made.
    pub(crate) fn make(&self) -> anyhow::Result<PathBuf> {
        let dir = self.dir();
        make(dir)?;
        dir.canonicalize()
            .with_context(|| format!("opening {}", dir.display()))
    }

    fn dir(&self) -> &Path {
        self.store.as_deref().unwrap_or(Path::new(USUAL))
    }
}

/// Makes the directories of a store. Contents of images are in them whose files not everybody may read.
fn make(store: &Path) -> anyhow::Result<()> {
    for part in ["chunks", "sources"] {
        let part = store.join(part);
        private::keep(&part).with_context(|| format!("making {}", part.display()))?;
    }
    Ok(())
}

/// Returns how large segments are: of a small store three that are kept free would be most of it.
fn segment_bytes(budget_bytes: u64) -> u32 {
    let usual = StoreConfig::default().segment_bytes;
    let part = u32::try_from(budget_bytes / 32).unwrap_or(u32::MAX);
    part.clamp(1 << 20, usual)
}

/// The part of the room that indexes may take: each file of an image has some 100 bytes in one.
const INDEX_SHARE: u64 = 32;

/// Opens the chunks and the sources in a store, where chunks and indexes may take `budget_bytes`.
///
/// # Errors
/// If they cannot be opened, or another nicfetch has them open.
pub(crate) fn open(store: &Path, budget_bytes: u64) -> anyhow::Result<Arc<Sources>> {
    let index_bytes = budget_bytes / INDEX_SHARE;
    let config = StoreConfig {
        budget_bytes: budget_bytes - index_bytes,
        segment_bytes: segment_bytes(budget_bytes),
        ..StoreConfig::default()
    };
    make(store)?;
    let sources = Sources::open(store, config);
    let sources = sources.with_context(|| format!("opening the chunks in {}", store.display()))?;
    let limited = sources.catalog().limit_indexes(index_bytes);
    limited.context("removing indexes for which there is no room")?;
    Ok(Arc::new(sources))
}
