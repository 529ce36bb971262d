//! The images of a Docker, wherever it keeps them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use blocks::Digest;

/// An image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootImage {
    /// Docker's image ID.
    pub id: Digest,
    /// The digest of its configuration, which is the ID unless containerd has the image.
    pub config: Digest,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its layers, the lowest first.
    pub layers: Vec<RootLayer>,
}

/// A layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootLayer {
    /// The digest of its content.
    pub diff_id: Digest,
    /// The digest of it and all below.
    pub chain: Digest,
    /// The directory with its files.
    pub dir: PathBuf,
}

/// A state of the images: it differs from an earlier one if images or layers came or went since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// The modification times of the directories.
    pub changed: [Option<SystemTime>; 2],
    /// The number of change events.
    pub told: u64,
}

/// The images of one Docker. Thread-safe.
pub trait Images: Send + Sync + std::fmt::Debug {
    /// Returns Docker's directory.
    fn data_root(&self) -> &Path;

    /// Returns a stamp that differs from an earlier one if images or layers came or went since.
    fn stamp(&self) -> Stamp;

    /// Returns all images. An incomplete one, which is being added or removed, is left out.
    ///
    /// # Errors
    /// If they cannot be listed.
    fn images(&self) -> anyhow::Result<Vec<RootImage>>;

    /// Returns whether the layer still exists, and, where Docker supports it, prevents its removal while a
    /// mount is over it.
    ///
    /// # Errors
    /// If that cannot be determined.
    fn hold(&self, layer: &RootLayer) -> anyhow::Result<bool>;

    /// Releases held layers, except those at these directories.
    ///
    /// # Errors
    /// If that cannot be done now. It is retried with the next change.
    fn release_all_but(&self, dirs: &BTreeSet<PathBuf>) -> anyhow::Result<()>;

    /// Returns whether mounts on layers made now would be hidden from us later.
    ///
    /// # Errors
    /// If the mount table cannot be read.
    fn hides_mounts(&self) -> anyhow::Result<bool>;
}
