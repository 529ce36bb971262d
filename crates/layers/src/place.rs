//! The directory of a layer, and the place where it is served.

use std::path::PathBuf;

use blocks::Digest;

/// A layer, its directory, and the place where it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPlace {
    /// Its diff ID.
    pub layer: Digest,
    /// The directory with its files, as the engine unpacked them.
    pub source: PathBuf,
    /// Where to mount it; the source itself to serve it in place.
    pub target: PathBuf,
    /// Its source in the mount table, which identifies the kind of mount even when no process
    /// serves it.
    pub label: String,
}
