//! The sources of a block service, with the chunks that they consist of.
//!
//! Chunks that are used least are evicted when the store is full, and are fetched again from the
//! registry if they are needed. A source that was imported by hand cannot be fetched again, so it can
//! be *pinned*: its chunks are never evicted, and neither are those of a source that replaces it under
//! the same name. Pins are recorded on the disk and hold after a restart.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::index::{Index, ZEROS};
use crate::{
    Catalog, CatalogError, ChunkId, ChunkStore as _, DiskStore, OpenStoreError, StoreConfig,
};

/// Whether a source stays when room is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// As long as it is used enough, or if its name was pinned before.
    WhileUsed,
    /// Until it is unpinned.
    Pinned,
}

/// Why the sources could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenSourcesError {
    /// The chunks cannot be opened.
    #[error(transparent)]
    Store(#[from] OpenStoreError),
    /// The indexes cannot be opened.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// Pinned sources would have to be evicted.
    #[error(
        "pinned sources do not fit into {budget_bytes} bytes for chunks: allow more, or unpin a \
         source with `nicfetch unpin` while it runs with more; nothing was removed"
    )]
    Pinned {
        /// The limit of all chunks.
        budget_bytes: u64,
    },
}

/// Why a source was not taken, or not pinned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// There is none of this name.
    #[error("there is no source {name:?}")]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// Some of its chunks are not here.
    #[error(
        "{absent} of its {chunks} chunks are missing: import it again; the store is too small for it \
         if that was just done"
    )]
    Absent {
        /// How many of its chunks are missing.
        absent: usize,
        /// The number of all chunks.
        chunks: usize,
    },
    /// Pinned sources would use more than half of the space.
    #[error(
        "pinned sources would take more than half of the space for chunks: unpin one, \
         or make the store larger"
    )]
    TooMuch,
    /// The indexes cannot be used.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// The sources of a block service, and their chunks.
#[derive(Debug)]
pub struct Sources {
    store: Arc<DiskStore>,
    catalog: Arc<Catalog>,
    /// The pinned chunks of each pinned source, by name.
    held: Mutex<HashMap<Vec<u8>, Held>>,
    /// Held while a source is added, pinned or unpinned.
    turn: Mutex<()>,
}

/// Chunks that are kept from going until this is dropped.
#[derive(Debug)]
struct Held {
    store: Arc<DiskStore>,
    chunks: Vec<ChunkId>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.store.unpin(&self.chunks);
    }
}

impl Sources {
    /// Opens the directory of a nicfetch: its chunks and its sources. Pinned sources are pinned before any
    /// chunk is evicted for lack of space.
    ///
    /// # Errors
    /// If either cannot be opened, another process has them open, or pinned sources do not fit: then nothing
    /// is evicted.
    pub fn open(dir: &Path, config: StoreConfig) -> Result<Self, OpenSourcesError> {
        let catalog = Catalog::open(&dir.join("sources"))?;
        let mut pinned = Vec::new();
        for name in catalog.pins() {
            match catalog.source(&name) {
                Ok(Some(index)) => pinned.push((name, chunks_of(&index))),
                Ok(None) => {} // its import did not come to its end
                Err(error) => {
                    log::warn!("the chunks of {} cannot be pinned: {error}", shown(&name));
                }
            }
        }
        let chunks: Vec<_> = pinned
            .iter()
            .flat_map(|(_, chunks)| chunks.clone())
            .collect();
        let dir = dir.join("chunks");
        if !chunks.is_empty() {
            // Opened as it is: nothing has gone if it is too much.
            let whole = StoreConfig {
                budget_bytes: u64::MAX,
                ..config
            };
            let whole = DiskStore::open_pinning(&dir, whole, &chunks)?;
            let budget_bytes = config.budget_bytes;
            if !whole.pins_fit(budget_bytes) {
                return Err(OpenSourcesError::Pinned { budget_bytes });
            }
        }
        let store = Arc::new(DiskStore::open_pinning(&dir, config, &chunks)?);
        let held = pinned.into_iter().map(|(name, chunks)| {
            let store = Arc::clone(&store);
            (name, Held { store, chunks })
        });
        Ok(Self {
            held: Mutex::new(held.collect()),
            catalog: Arc::new(catalog),
            store,
            turn: Mutex::new(()),
        })
    }

    /// Returns the chunks.
    #[must_use]
    pub const fn store(&self) -> &Arc<DiskStore> {
        &self.store
    }

    /// Returns the indexes.
    #[must_use]
    pub const fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Returns the index of the source `name`, if all of its chunks are stored.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn whole(&self, name: &[u8]) -> Result<Option<Arc<Index>>, CatalogError> {
        let index = self.catalog.source(name)?;
        Ok(index.filter(|index| self.absent(index) == 0))
    }

    /// Adds a source whose chunks are stored, under the name `name`.
    ///
    /// # Errors
    /// If some are missing, it cannot be written, or it is to be pinned and there is no space for that.
    pub fn add(&self, name: &[u8], index: &Index, stay: Stay) -> Result<(), SourceError> {
        let _turn = self.turn.lock();
        if stay == Stay::WhileUsed && !self.catalog.is_pinned(name) {
            self.must_be_whole(index)?;
            return Ok(self.catalog.add(name, index)?);
        }
        let held = self.hold(index)?;
        self.catalog.add(name, index)?;
        self.catalog.note_pin(name)?;
        // What was held of the one before goes with it, unless the new one has it, too.
        let _before = self.held.lock().insert(name.to_vec(), held);
        Ok(())
    }

    /// Keeps the chunks of a source from going, until it is unpinned.
    ///
    /// # Errors
    /// If there is no such source, some of its chunks are not here, or too much is pinned.
    pub fn pin(&self, name: &[u8]) -> Result<(), SourceError> {
        let _turn = self.turn.lock();
        let index = self.catalog.source(name)?.ok_or_else(|| unknown(name))?;
        let held = self.hold(&index)?;
        self.catalog.note_pin(name)?;
        let _before = self.held.lock().insert(name.to_vec(), held);
        Ok(())
    }

    /// Unpins a source: its chunks may be evicted. One that is not pinned is unchanged.
    ///
    /// # Errors
    /// If there is no such source, or the file of the pin cannot be removed.
    pub fn unpin(&self, name: &[u8]) -> Result<(), SourceError> {
        let _turn = self.turn.lock();
        if !self.catalog.is_pinned(name) && self.catalog.id(name).is_none() {
            return Err(unknown(name));
        }
        self.catalog.forget_pin(name)?;
        let _before = self.held.lock().remove(name);
        Ok(())
    }

    /// Pins the chunks of an index, all of which must be here.
    fn hold(&self, index: &Index) -> Result<Held, SourceError> {
        let held = Held {
            store: Arc::clone(&self.store),
            chunks: chunks_of(index),
        };
        // First, so that what is found to be here stays here.
        self.store.pin(&held.chunks);
        self.must_be_whole(index)?;
        match self.store.leaves_half() {
            true => Ok(held),
            false => Err(SourceError::TooMuch),
        }
    }

    fn must_be_whole(&self, index: &Index) -> Result<(), SourceError> {
        match self.absent(index) {
            0 => Ok(()),
            absent => Err(SourceError::Absent {
                absent,
                chunks: chunks_of(index).len(),
            }),
        }
    }

    /// Returns how many chunks of an index are not here.
    #[must_use]
    pub fn absent(&self, index: &Index) -> usize {
        let wanted = index.chunks().iter().filter(|id| **id != ZEROS);
        wanted.filter(|id| !self.store.contains(id)).count()
    }
}

/// Returns the chunks of an index that are kept: those of zeros are not.
fn chunks_of(index: &Index) -> Vec<ChunkId> {
    let chunks = index.chunks().iter().filter(|id| **id != ZEROS);
    chunks.copied().collect()
}

fn unknown(name: &[u8]) -> SourceError {
    SourceError::Unknown { name: shown(name) }
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
mod tests;
