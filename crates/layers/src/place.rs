//! Where a layer lies, and where it is served.

use std::path::PathBuf;

use blocks::Digest;

/// Which layer lies where, and where it is to be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPlace {
    /// Its diff ID.
    pub layer: Digest,
    /// The directory with its files, as the engine unpacked them.
    pub source: PathBuf,
    /// Where to mount it; the source itself to serve it in place.
    pub target: PathBuf,
    /// What the mount table shows as its source, so that its kind is known even when nobody
    /// serves it any more.
    pub label: String,
}
