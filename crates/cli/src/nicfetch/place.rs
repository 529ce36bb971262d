//! Where nicfetch keeps what it keeps.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use nicfetch::{Catalog, DiskStore, StoreConfig};

use crate::size::Size;

/// The chunks and the sources of a nicfetch that does not run.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PlaceArgs {
    /// Keep chunks and indexes in this directory
    #[arg(long, value_name = "DIR", default_value = "/var/lib/nicfetch")]
    store: PathBuf,
    /// Let the chunks take so much
    #[arg(long, value_name = "SIZE", default_value = "16G")]
    size: Size,
}

impl PlaceArgs {
    /// Opens the chunks and the sources.
    ///
    /// # Errors
    /// If they cannot be opened, or another nicfetch has them.
    pub(super) fn open(&self) -> anyhow::Result<(Arc<DiskStore>, Arc<Catalog>)> {
        open(&self.store, self.size.0)
    }
}

/// Opens the chunks and the sources in a store, where chunks may take `budget_bytes`.
///
/// # Errors
/// If they cannot be opened, or another nicfetch has them.
pub(super) fn open(
    store: &Path,
    budget_bytes: u64,
) -> anyhow::Result<(Arc<DiskStore>, Arc<Catalog>)> {
    let opening = || format!("opening the chunks in {}", store.display());
    let config = StoreConfig {
        budget_bytes,
        ..StoreConfig::default()
    };
    let chunks = DiskStore::open(&store.join("chunks"), config).with_context(opening)?;
    let catalog = Catalog::open(&store.join("sources")).with_context(opening)?;
    Ok((Arc::new(chunks), Arc::new(catalog)))
}
