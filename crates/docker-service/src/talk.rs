//! The requests of commands to the worker, and its responses.

use std::path::{Path, PathBuf};

use blocks::Digest;
use serde::{Deserialize, Serialize};

use super::wanted::{Chosen, Wanted};
use host::control::Reply;
use layers::server::{ServedBy, WarmedLayer};
use layers::status::LayerStatus;

/// The state of a Docker whose layers are served by a snapshotter of ours.
pub const BY_SNAPSHOTTER: &str = "served by the snapshotter";

/// A request of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do", content = "of")]
pub enum Request {
    /// Serve these from now on, and respond when the present ones are served.
    Attach(Chosen),
    /// Serve these no more, and respond when they are detached.
    Detach(Chosen),
    /// Return the status.
    Status,
    /// Load the boot image with this id into the page cache of the layers that are served from it,
    /// and respond when that is done.
    Prewarm(String),
}

/// A response of the worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer", content = "is")]
pub enum Response {
    /// Success, and the present status.
    Status(Box<DockerStatus>),
    /// The layers that were warmed.
    Warmed(Vec<WarmedLayer>),
    /// It could not be done.
    Failed(String),
    /// It was not done, for this daemon is about to end: start another.
    Leaving,
}

impl Reply for Response {
    fn failed(why: String) -> Self {
        Self::Failed(why)
    }
}

/// How the daemon for one Docker does.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DockerStatus {
    /// Docker's directory.
    pub data_root: PathBuf,
    /// `serving`, `not running`, or `served by the snapshotter`.
    pub state: String,
    /// Whether the node or this process serves the layers.
    #[serde(default)]
    pub served_by: ServedBy,
    /// The worker, if it runs.
    pub pid: Option<u32>,
    /// Which images are to be served.
    pub wanted: Wanted,
    /// The images that Docker has and of which a boot image is known.
    pub images: Vec<ImageStatus>,
    /// The layers that are served.
    pub layers: Vec<LayerStatus>,
    /// What could not be done, and is tried again.
    pub problems: Vec<String>,
    /// Mounts that no process serves: `yolofs docker clear` unmounts them.
    pub dead_mounts: usize,
}

/// One image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImageStatus {
    /// Docker's image ID.
    pub image: Digest,
    /// The name under which its boot was recorded, if it was under any.
    pub reference: Option<String>,
    /// Whether it is to be served.
    pub wanted: bool,
    /// Its layers.
    pub layers: usize,
    /// Those of them that a boot image is known of.
    pub known_layers: usize,
    /// Those of them that are served.
    pub served_layers: usize,
}

impl DockerStatus {
    /// Returns the status of a Docker whose layers a snapshotter serves.
    pub fn of_snapshotter(data_root: &Path) -> Self {
        Self {
            data_root: data_root.to_owned(),
            state: BY_SNAPSHOTTER.to_owned(),
            ..Self::default()
        }
    }

    /// Returns the status of a daemon that does not run.
    pub fn of_nobody(data_root: &Path, wanted: Wanted, dead_mounts: usize) -> Self {
        Self {
            data_root: data_root.to_owned(),
            state: "not running".to_owned(),
            wanted,
            dead_mounts,
            ..Self::default()
        }
    }
}
