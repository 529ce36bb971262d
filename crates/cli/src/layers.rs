//! The layers of container images, each a source with a boot image and a mount of its own.
//!
//! [`LayerServer`] serves many of them from one process: whoever knows an engine says which layer
//! lies where, and the server scans it, binds its boot image to the place, mounts it, and brings
//! the boot image into the page cache behind the engine's back.

pub(crate) mod bind;
pub(crate) mod keep;
mod recorded;
mod served;
mod server;
mod status;
#[cfg(test)]
mod tests;
mod warm;

use std::path::PathBuf;

use blocks::Digest;

pub(crate) use recorded::RecordedLayer;
pub(crate) use server::{Attach, LayerServer};
pub(crate) use status::{LayerStatus, layers_text};

/// Which layer lies where, and where it is to be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayerPlace {
    /// Its diff ID.
    pub(crate) layer: Digest,
    /// The directory with its files, as the engine unpacked them.
    pub(crate) source: PathBuf,
    /// Where to mount it; the source itself to serve it in place.
    pub(crate) target: PathBuf,
    /// What the mount table shows as its source, so that its kind is known even when nobody
    /// serves it any more.
    pub(crate) label: String,
}
