//! The cache that a host's SmartNIC keeps for all virtual machines of the host: images are fetched
//! once, and served to whoever may have them.
//!
//! - [`ChunkStore`] is the seam between those who serve chunks and what keeps them: pieces of files
//!   of at most [`CHUNK_MAX`] bytes, named by the BLAKE3 hash of their bytes ([`ChunkId`]), kept and
//!   sent compressed ([`Stored`]).
//! - A [`Policy`] chooses what goes when room is needed; [`simulate`] says what each would have saved.
//! - [`index::Index`] is what a source consists of: its metadata and the chunks of its files; a
//!   [`Catalog`] keeps indexes by name, and [`Sources`] knows which of them stay.
//! - [`service::Service`] sends chunks to virtual machines, [`client::Client`] asks for them; both
//!   speak [`wire`] frames over a [`transport`]. Who may have what is [`identity`].
//! - [`load`] says how hard the machine is pressed, and what is left undone for that.
//! - [`mirror`] is what Docker, containerd and skopeo pull through; [`blobs`] is its disk, and
//!   [`upstream`] the registries behind it.

#![forbid(unsafe_code)]

pub mod blobs;
mod catalog;
pub mod client;
pub mod identity;
pub mod index;
pub mod load;
pub mod mirror;
mod pace;
mod policy;
mod seats;
pub mod service;
pub mod simulate;
mod sources;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
pub mod transport;
pub mod upstream;
pub mod wire;

pub use catalog::{BOOT_MAX, BOOTS_KEPT, Catalog, CatalogError};
pub use policy::{Fingerprint, Item, Limit, ParsePolicyError, Policy, PolicyKind, Residents, Slot};
pub use sources::{OpenSourcesError, SourceError, Sources, Stay};
pub use store::{
    CHUNK_MAX, ChunkError, ChunkId, ChunkStore, Class, Codec, DiskStore, GcReport, OpenStoreError,
    PutError, PutOutcome, SegmentError, StoreConfig, StoreStats, Stored, VerifyReport,
};
