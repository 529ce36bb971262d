//! A pull-through mirror of OCI registries: pulls of Docker, containerd and skopeo are fetched once,
//! cached, and served to authorized clients.
//!
//! - [`Mirror`] handles pulls; [`serve`] accepts the connections. [`Access`] decides which clients may pull what.
//! - [`blobs`] is its cache on a disk: verified blobs, eviction, blobs that are still being fetched.
//! - [`upstream`] has the registries behind it.
//!
//! ```
//! use mirror::blobs::{Algorithm, BlobDigest};
//! use mirror::Network;
//!
//! let digest: BlobDigest =
//!     "sha256:6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b".parse()?;
//! assert_eq!(digest, BlobDigest::of(Algorithm::Sha256, b"1"));
//!
//! let network: Network = "10.0.1.0/24".parse()?;
//! assert!(network.contains("10.0.1.7".parse()?));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod blobs;
mod mirror;
#[cfg(feature = "testing")]
pub mod testing;
pub mod upstream;

#[cfg(feature = "testing")]
pub use self::mirror::hostile;
pub use self::mirror::{
    Acceptor, Access, ClientRule, Mirror, MirrorConfig, MirrorStats, Network, OpenMirrorError,
    ParseNetworkError, Prewarmed, RangeStats, Refusal, Reply, ServeConfig, UpstreamStats, Version,
    WholeImage, document, parameter, serve, take_connections,
};
