//! Pieces of files, named by the hash of their content, and the metadata of the sources that consist
//! of them.
//!
//! - [`ChunkStore`] is the interface to storage of chunks: pieces of files
//!   of at most [`CHUNK_MAX`] bytes, named by the BLAKE3 hash of their bytes ([`ChunkId`]), stored and
//!   sent compressed ([`Stored`]). [`DiskStore`] stores them in segments on a disk.
//! - A [`Policy`] chooses what is evicted; [`Residents`] applies one to anything that has a size, and
//!   [`simulate`] replays accesses against each.
//! - [`index::Index`] describes a source: its metadata and the chunks of its files. A
//!   [`Catalog`] stores indexes by name, and boot images of sources; [`Sources`] records which of them are
//!   pinned.
//!
//! ```
//! use chunks::{ChunkId, Stored};
//!
//! let content = b"a piece of a file".repeat(100);
//! let id = ChunkId::of(&content);
//! let stored = Stored::pack(&content)?;
//! assert!(stored.bytes.len() < content.len());
//! // Opening compares the content with the id: another id is an error.
//! assert!(stored.clone().open(&ChunkId::of(b"something else")).is_err());
//! assert_eq!(stored.open(&id)?, content);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod catalog;
pub mod index;
pub mod links;
mod policy;
pub mod simulate;
mod sources;
mod store;
#[cfg(feature = "testing")]
pub mod testing;

pub use catalog::{BOOT_MAX, BOOTS_KEPT, BootEntry, Catalog, CatalogError, NAME_MAX};
pub use policy::{Fingerprint, Item, Limit, ParsePolicyError, Policy, PolicyKind, Residents, Slot};
pub use sources::{OpenSourcesError, SourceError, Sources, Stay};
pub use store::{
    CHUNK_MAX, ChunkError, ChunkId, ChunkStore, Class, Codec, DiskStore, GcReport, OpenStoreError,
    PutError, PutOutcome, SegmentError, SharedStore, StoreConfig, StoreStats, Stored, VerifyReport,
};
