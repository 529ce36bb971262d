//! Where nicfetch keeps what it keeps.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use nicfetch::{Catalog, DiskStore, StoreConfig};

use crate::size::Size;

/// The directory of a nicfetch.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PlaceArgs {
    /// Keep chunks and indexes in this directory
    #[arg(long, value_name = "DIR", default_value = "/var/lib/nicfetch")]
    store: PathBuf,
    /// Let the chunks take so much
    #[arg(long, value_name = "SIZE", default_value = "32G")]
    size: Size,
}

impl PlaceArgs {
    /// Opens the chunks and the indexes.
    ///
    /// # Errors
    /// If they cannot be opened, or another nicfetch has them.
    pub(super) fn open(&self) -> anyhow::Result<(Arc<DiskStore>, Arc<Catalog>)> {
        let config = StoreConfig {
            budget_bytes: self.size.0,
            ..StoreConfig::default()
        };
        let store = DiskStore::open(&self.store.join("chunks"), config);
        let store = store.with_context(|| opening(&self.store))?;
        let catalog = Catalog::open(&self.store.join("sources"));
        let catalog = catalog.with_context(|| opening(&self.store))?;
        Ok((Arc::new(store), Arc::new(catalog)))
    }
}

fn opening(dir: &Path) -> String {
    format!("opening {}", dir.display())
}
