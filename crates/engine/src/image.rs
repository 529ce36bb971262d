//! An image as an engine keeps it.

use std::path::PathBuf;

use blocks::Digest;
use distribution::image::RunConfig;

/// An image in an engine's store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalImage {
    /// The requested name, or its first name, or its ID if it has no name.
    pub reference: String,
    /// All names it has.
    pub names: Vec<String>,
    /// The digest of its configuration: Docker's image ID.
    pub image: Digest,
    /// The digest of its manifest, if the engine knows one: of images that came from a registry.
    pub manifest: Option<Digest>,
    /// Its layers, the bottom one first.
    pub layers: Vec<LocalLayer>,
    /// How it is run.
    pub config: RunConfig,
}

/// A layer in an engine's store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalLayer {
    /// The digest of its uncompressed tar.
    pub diff_id: Digest,
    /// The directory with its files, as overlayfs has them.
    pub dir: PathBuf,
}
