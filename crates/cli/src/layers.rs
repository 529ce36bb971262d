//! The layers of container images, each a source with a boot image and a mount of its own.
//!
//! A [`LayerServer`] serves many of them: whoever knows an engine says which layer lies where, and
//! the server binds its boot image to the place, mounts it, and has the boot image brought into the
//! page cache behind the engine's back. Where a node service runs, it owns the mounts, which then
//! outlive whoever asked for them; elsewhere the process that asks serves them itself.

pub(crate) mod bind;
mod by_node;
pub(crate) mod keep;
mod own;
mod reach;
mod recorded;
mod served;
mod status;
#[cfg(test)]
mod tests;
mod warm;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use blocks::Digest;
use bootimg::{ImageId, Store};
use serde::{Deserialize, Serialize};

use crate::node::left::living_mounts;
use by_node::NodeServer;
use host::interrupt::Interrupt;
use host::mount_table::MOUNT_KIND;
use host::mount_table::labelled;
use host::run_dir::RunDir;
use node_api::client::{CallError, NodeClient};
use node_api::mount_daemon::PrewarmSummary;
use own::OwnServer;
pub(crate) use recorded::RecordedLayer;
pub(crate) use status::{LayerStatus, layers_text};
use warm::Hold;
use yolofs::XattrAnswers;

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

/// What became of a layer that was to be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attach {
    /// It is served from now on.
    Attached,
    /// It was served already.
    Already,
    /// The store has no boot image of it: nothing was mounted.
    Unknown,
}

/// Who serves the layers that a service has attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ServedBy {
    /// The service's own process: mounts end with it.
    #[default]
    Service,
    /// The node service: mounts stay when the service ends, and when it is killed.
    Node,
}

/// A layer that was warmed because somebody asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WarmedLayer {
    /// Where it is mounted.
    pub(crate) mountpoint: PathBuf,
    /// What was done, or why nothing was.
    pub(crate) warmed: Result<PrewarmSummary, String>,
}

/// Serves layers of container images, many at a time. Any thread may ask.
pub(crate) trait LayerServer: Send + Sync + std::fmt::Debug {
    /// Returns who serves them.
    fn served_by(&self) -> ServedBy;

    /// Returns the store of boot images.
    fn store(&self) -> &Store;

    /// Serves a layer from its boot image, if the store has one, and warms it in the background.
    /// One that is served from an older boot image is served from the newer one from then on.
    ///
    /// # Errors
    /// If it cannot be opened, scanned or mounted, or its boot image cannot be bound.
    fn attach(&self, place: &LayerPlace) -> anyhow::Result<Attach>;

    /// Stops to serve what is mounted on `target`; nothing there is fine. Who uses it is served
    /// until he lets go.
    ///
    /// # Errors
    /// If another mount lies on top of it.
    fn detach(&self, target: &Path) -> anyhow::Result<()>;

    /// Stops to serve everything; what cannot be unmounted is logged. What somebody has mounted
    /// something over, such as a recorder, is served until that is gone: call it again then.
    fn detach_all(&self);

    /// Returns where layers are served, visibly.
    fn targets(&self) -> Vec<PathBuf>;

    /// Returns where layers are served and are to be attached all the same: the store has a newer
    /// boot image by now, or a former process has attached them.
    fn outdated(&self) -> BTreeSet<PathBuf>;

    /// Returns whether a layer is served on `target`.
    fn serves(&self, target: &Path) -> bool;

    /// Returns how many layers were detached while somebody used them, who still does and would
    /// miss this process.
    fn leaving(&self) -> usize;

    /// Returns how many mounts somebody else has unmounted so far: Docker does when it ends, and
    /// when it removes a layer.
    fn lost(&self) -> u64;

    /// Returns the status of all layers.
    fn status(&self) -> Vec<LayerStatus>;

    /// Brings a boot image into the page cache of each layer that this process serves from it, again if
    /// it was there before. Layers that the node serves are the node's to warm.
    fn prewarm(&self, image: &ImageId) -> Vec<WarmedLayer>;

    /// Holds back the warming of layers until dropped, though not for long: who attaches many wants
    /// them all served first.
    fn hold_warming(&self) -> Option<Hold>;
}

/// Returns who serves the layers of a service whose mounts have this label: the node, if one
/// answers, or if mounts of the node are there, which will answer again; otherwise this process.
/// `interrupt` ends what takes long.
///
/// # Errors
/// If the list of mounts or the node's records cannot be read, or no threads can be had.
pub(crate) fn server(
    store: Store,
    label: &str,
    run_dir: &RunDir,
    xattrs: XattrAnswers,
    interrupt: &Interrupt,
) -> anyhow::Result<Box<dyn LayerServer>> {
    let node = NodeClient::of(run_dir);
    let is_there = match node.node() {
        Err(CallError::Nobody(_)) => {
            let living = living_mounts(run_dir)?;
            labelled(MOUNT_KIND, label)?
                .iter()
                .any(|mountpoint| living.contains(mountpoint))
        }
        _ => true,
    };
    if is_there {
        log::info!("layers are served by the node");
        return Ok(Box::new(NodeServer::new(
            store, label, node, xattrs, interrupt,
        )?));
    }
    log::info!("no node service runs: layers are served by this process, and end with it");
    Ok(Box::new(OwnServer::new(
        store,
        xattrs.answers(),
        interrupt.clone(),
    )?))
}
