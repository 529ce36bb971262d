//! The store of chunks: the trait, and its implementation on a disk.

use std::io;
use std::path::PathBuf;

mod chunk;
mod disk;
mod format;
mod segment;
mod shared;
mod steps;

pub use chunk::{CHUNK_MAX, ChunkError, ChunkId, Codec, Stored};
pub use disk::{DiskStore, GcReport, OpenStoreError, StoreConfig, VerifyReport};
pub use format::SegmentError;
pub use shared::SharedStore;

/// Why a chunk is put into the store: prefetched chunks without a use are evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// A client waits for it.
    Demand,
    /// It was fetched ahead, or in the background.
    Prefetch,
}

/// The result of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The chunk was written.
    Stored,
    /// It was stored already.
    Present,
}

/// Why a chunk was not kept. Losing a put loses nothing but speed: serve the bytes, and continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// The bytes are not the ones that the id names: they were damaged or forged on their way.
    #[error("the content has the hash {found}, not {id}")]
    WrongId {
        /// The id that was given.
        id: ChunkId,
        /// The id of the bytes.
        found: ChunkId,
    },
    /// It is empty, or longer than [`CHUNK_MAX`].
    #[error("a chunk has 1 to {CHUNK_MAX} bytes, not {bytes}")]
    Length {
        /// Its length.
        bytes: usize,
    },
    /// There is no space, and nothing can be evicted: all is pinned, or the disk is full.
    #[error("no space for a chunk; unpin sources, or make the store larger")]
    Full,
    /// An I/O error.
    #[error("cannot write {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// What a store holds, and what happened to it since it was opened. Bytes are of records as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Stored chunks.
    pub chunks: u64,
    /// Their bytes as stored.
    pub stored_bytes: u64,
    /// Their bytes, decompressed.
    pub raw_bytes: u64,
    /// Bytes of files, including dead records; 0 for a store in memory.
    pub disk_bytes: u64,
    /// The limit of its bytes.
    pub budget_bytes: u64,
    /// Chunks that are there and pinned.
    pub pinned: u64,
    /// Gets that were hits.
    pub hits: u64,
    /// Gets that were misses.
    pub misses: u64,
    /// Records that were damaged or torn, found while opening or reading.
    pub damaged: u64,
    /// Chunks that were evicted.
    pub evicted: u64,
    /// Puts that were refused.
    pub refused: u64,
}

/// A store of chunks: a cache, which may miss, and whose loss costs only speed.
///
/// Calls are synchronous, from any number of threads. A get does not wait for a put.
pub trait ChunkStore: Send + Sync {
    /// Returns a chunk as it is stored, if it is. A chunk that is damaged on the disk counts as missing.
    /// The receiver compares the id: see [`Stored::open`]. `class` is whether a client waits
    /// for it: prefetched chunks are evicted sooner.
    fn get(&self, id: &ChunkId, class: Class) -> Option<Stored>;

    /// As [`get`](Self::get), but only if it need not wait for a disk; otherwise nothing is
    /// noted, and a get tells more.
    fn get_now(&self, id: &ChunkId, class: Class) -> Option<Stored> {
        let _ = (id, class);
        None
    }

    /// Notes that a chunk was used whose bytes came from elsewhere, as a get does: it is worth as
    /// much.
    fn note_use(&self, id: &ChunkId, class: Class) {
        let _ = (id, class);
    }

    /// Returns whether a get would most likely find the chunk; does not count as a use.
    fn contains(&self, id: &ChunkId) -> bool;

    /// Stores the chunk whose bytes are `raw`, and evicts others for it.
    ///
    /// # Errors
    /// If the bytes do not match `id`, or there is no space for them. The store stays usable.
    fn put(&self, id: &ChunkId, raw: &[u8], class: Class) -> Result<PutOutcome, PutError>;

    /// Keeps a chunk in the form in which it came, after whoever has it
    /// [verified](Stored::read) it, and makes room for it.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    fn put_stored(
        &self,
        id: &ChunkId,
        stored: &Stored,
        class: Class,
    ) -> Result<PutOutcome, PutError> {
        let length = PutError::Length {
            bytes: stored.raw_len as usize,
        };
        let raw = stored.read(id).map_err(|_| length)?;
        self.put(id, &raw, class)
    }

    /// Prevents the eviction of chunks, including ones that are added later, until each is unpinned as
    /// often as it was pinned. Pins end with the process.
    fn pin(&self, ids: &[ChunkId]);

    /// Undoes one [`pin`](Self::pin) of each chunk; one that is not pinned is unchanged.
    fn unpin(&self, ids: &[ChunkId]);

    /// Returns what the store holds, and what happened to it.
    fn stats(&self) -> StoreStats;
}

impl<S: ChunkStore + ?Sized> ChunkStore for std::sync::Arc<S> {
    fn get(&self, id: &ChunkId, class: Class) -> Option<Stored> {
        (**self).get(id, class)
    }

    fn get_now(&self, id: &ChunkId, class: Class) -> Option<Stored> {
        (**self).get_now(id, class)
    }

    fn note_use(&self, id: &ChunkId, class: Class) {
        (**self).note_use(id, class);
    }

    fn contains(&self, id: &ChunkId) -> bool {
        (**self).contains(id)
    }

    fn put(&self, id: &ChunkId, raw: &[u8], class: Class) -> Result<PutOutcome, PutError> {
        (**self).put(id, raw, class)
    }

    fn put_stored(
        &self,
        id: &ChunkId,
        stored: &Stored,
        class: Class,
    ) -> Result<PutOutcome, PutError> {
        (**self).put_stored(id, stored, class)
    }

    fn pin(&self, ids: &[ChunkId]) {
        (**self).pin(ids);
    }

    fn unpin(&self, ids: &[ChunkId]) {
        (**self).unpin(ids);
    }

    fn stats(&self) -> StoreStats {
        (**self).stats()
    }
}
