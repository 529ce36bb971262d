//! The interface to the server of the layers of container images.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use bootimg::{ImageId, Store};
use serde::{Deserialize, Serialize};

pub use crate::place::LayerPlace;
use crate::status::LayerStatus;
use crate::warm::Hold;
use node_api::mount_daemon::PrewarmSummary;

/// What became of a layer that was to be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// It is served from now on.
    Attached,
    /// The layer was served already.
    Already,
    /// The store has no boot image of it: nothing was mounted.
    Unknown,
}

/// The server of the layers that a service has attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServedBy {
    /// The service's own process: mounts end with it.
    #[default]
    Service,
    /// The node service: mounts stay when the service ends, and when it is killed.
    Node,
}

/// A layer that was warmed by request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WarmedLayer {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// The result, or why it was not warmed.
    pub warmed: Result<PrewarmSummary, String>,
}

/// Serves layers of container images, many at a time. Thread-safe.
pub trait LayerServer: Send + Sync + std::fmt::Debug {
    /// Returns which process serves them.
    fn served_by(&self) -> ServedBy;

    /// Returns the store of boot images.
    fn store(&self) -> &Store;

    /// Serves a layer from its boot image, if the store has one, and warms it in the background.
    /// One that is served from an older boot image is served from the newer one from then on.
    ///
    /// # Errors
    /// If it cannot be opened, scanned or mounted, or its boot image cannot be bound.
    fn attach(&self, place: &LayerPlace) -> anyhow::Result<Attach>;

    /// Unmounts the layer on `target`, if there is one. Its users are served until they
    /// end.
    ///
    /// # Errors
    /// If another mount covers it.
    fn detach(&self, target: &Path) -> anyhow::Result<()>;

    /// Unmounts all layers; failures are logged. A layer that is covered by another mount, such as a
    /// recorder's, is served until that is gone: call this again then.
    fn detach_all(&self);

    /// Returns where layers are served, visibly.
    fn targets(&self) -> Vec<PathBuf>;

    /// Returns where layers are served and are to be attached all the same: the store has a newer
    /// boot image by now, or a former process has attached them.
    fn outdated(&self) -> BTreeSet<PathBuf>;

    /// Returns whether a layer is served on `target`.
    fn serves(&self, target: &Path) -> bool;

    /// Returns how many layers were detached while in use, and still have users that need this
    /// process.
    fn leaving(&self) -> usize;

    /// Returns how many mounts other programs have unmounted so far: Docker does when it ends, and
    /// when it removes a layer.
    fn lost(&self) -> u64;

    /// Returns the status of all layers.
    fn status(&self) -> Vec<LayerStatus>;

    /// Loads a boot image into the page cache of each layer that this process serves from it, again if
    /// it was loaded before. Layers that the node serves are warmed by the node.
    fn prewarm(&self, image: &ImageId) -> Vec<WarmedLayer>;

    /// Schedules loading the pages of a layer's boot image that the kernel has evicted from the page cache of the
    /// mount on `target`. Pages that are still there are not read again.
    fn warm_again(&self, target: &Path);

    /// Delays the warming of layers until dropped, for a bounded time: a caller that attaches many wants
    /// all of them served first.
    fn hold_warming(&self) -> Option<Hold>;
}
