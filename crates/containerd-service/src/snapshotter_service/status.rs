//! `yolofs snapshotter status`, and the server of its requests.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use bootimg::ImageId;
use serde::{Deserialize, Serialize};
use snapshotter::FastUsage;

use super::first_boot::FirstBootStatus;
use super::layers_fast::LayersBy;
use super::placing::{Placed, Placing};
use host::control::{Reply, call, nobody_listens};
use host::run_dir::RunDir;
use layers::server::{ServedBy, WarmedLayer};
use layers::status::LayerStatus;

/// What the names of the sockets begin with, and end with.
const PREFIX: &str = "snapshotter-";
const SUFFIX: &str = ".sock";
/// A snapshotter responds at once; one that does not is stuck.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// The requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum Request {
    /// Return the status.
    Status,
    /// Return where a pull may stage layers. Repeated during the pull, so that no layers are moved to
    /// the disk meanwhile.
    Stage {
        /// The name of the pull; absent for a query.
        pull: Option<String>,
    },
    /// Reserve space on the fast place for a staged layer of this total size.
    Book {
        /// The name of the staged directory.
        name: String,
        /// The size.
        bytes: u64,
    },
    /// Load the boot image with this id into the page cache of the layers that are served from it,
    /// and respond when that is done.
    Prewarm {
        /// The image.
        image: String,
    },
    /// Return how many layers of an image exist in any namespace, counted from the lowest.
    Known {
        /// The chain IDs of its layers.
        chains: Vec<String>,
    },
    /// A pull has ended.
    Ended {
        /// The name of the pull.
        pull: String,
    },
}

/// The responses.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer", content = "is")]
pub enum Response {
    /// The status.
    Status(Box<SnapshotterStatus>),
    /// The places.
    Stage(StagingPlaces),
    /// Whether there was enough.
    Booked(bool),
    /// The layers that were warmed.
    Warmed(Vec<WarmedLayer>),
    /// How many layers exist.
    Known(usize),
    /// The notification was received.
    Heard,
    /// The request failed.
    Failed(String),
}

impl Reply for Response {
    fn failed(why: String) -> Self {
        Self::Failed(why)
    }
}

/// Where layers may be staged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StagingPlaces {
    /// On the disk.
    pub disk: PathBuf,
    /// On the fast place, if there is one.
    pub fast: Option<PathBuf>,
    /// Free bytes on the fast place.
    pub room: u64,
}

/// The status of a snapshotter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SnapshotterStatus {
    /// The directory of its snapshots.
    pub root: PathBuf,
    /// The address of its socket for containerd.
    pub address: PathBuf,
    /// Its process id.
    pub pid: u32,
    /// Whether the node or this process serves the layers.
    #[serde(default)]
    pub served_by: ServedBy,
    /// The layers that are served from boot images.
    pub layers: Vec<LayerStatus>,
    /// How many layers their plain directories serve.
    pub plain_layers: usize,
    /// The first boots that are or were recorded, the last at the end.
    pub first_boots: Vec<FirstBootStatus>,
    /// The fast place for what containers write, if there is one.
    pub upper: Option<UpperStatus>,
    /// The fast place for layers, if there is one.
    #[serde(default)]
    pub layers_fast: Option<LayersFastStatus>,
}

/// How full the place for upper directories is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpperStatus {
    /// Its directory.
    pub dir: PathBuf,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Most bytes that may be there.
    pub max_bytes: u64,
}

/// How full the fast place for layers is, and which layers went there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LayersFastStatus {
    /// Its directory.
    pub dir: PathBuf,
    /// Layers that are there now.
    pub layers: usize,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Most bytes that may be there.
    pub max_bytes: u64,
    /// Whether it is seen which layers a pull waits for; otherwise it is foreseen.
    pub seen: bool,
    /// What the disk beside it writes in a second, if that was measured of late.
    #[serde(default)]
    pub disk_bytes_per_second: Option<u64>,
    /// Since the snapshotter was started.
    #[serde(flatten)]
    pub placed: Placed,
}

impl LayersFastStatus {
    /// Returns how full the place is, and what went there.
    pub fn of(usage: FastUsage, placing: &Placing) -> Self {
        Self {
            dir: usage.dir,
            layers: usage.layers,
            used_bytes: usage.used_bytes,
            max_bytes: usage.max_bytes,
            seen: placing.by() == LayersBy::Seen,
            disk_bytes_per_second: placing.disk_bytes_per_second(),
            placed: placing.placed(),
        }
    }
}

impl SnapshotterStatus {
    /// Returns the layers that are served.
    pub fn layers(&self) -> &[LayerStatus] {
        &self.layers
    }
}

/// Returns the socket of the snapshotter with this root.
pub fn socket(run_dir: &RunDir, root: &Path) -> PathBuf {
    let id = RunDir::id_of(root);
    run_dir.path().join(format!("{PREFIX}{id}{SUFFIX}"))
}

/// Requests the status of all snapshotters of a run directory. One that does not respond is left out: it may
/// have ended long ago.
///
/// # Errors
/// If the run directory cannot be read.
pub fn all(run_dir: &RunDir) -> anyhow::Result<Vec<SnapshotterStatus>> {
    let mut all = Vec::new();
    for socket in sockets(run_dir)? {
        match call(&socket, &Request::Status, DEADLINE) {
            Ok(Response::Status(status)) => all.push(*status),
            Ok(Response::Failed(why)) => log::warn!("{}: {why}", socket.display()),
            Ok(_) => log::warn!(
                "{}: the response is of another kind than requested",
                socket.display()
            ),
            Err(error) => log::debug!("{error:#}"),
        }
    }
    Ok(all)
}

/// Has all snapshotters of a run directory bring a boot image into the page cache of the layers that
/// they serve from it themselves.
///
/// # Errors
/// If the run directory cannot be read.
pub fn warm_by_snapshotters(
    run_dir: &RunDir,
    image: &ImageId,
    deadline: Duration,
) -> anyhow::Result<Vec<WarmedLayer>> {
    let image = image.to_string();
    let ask = Request::Prewarm { image };
    let mut warmed = Vec::new();
    for socket in sockets(run_dir)? {
        match call(&socket, &ask, deadline) {
            Ok(Response::Warmed(layers)) => warmed.extend(layers),
            Ok(Response::Failed(why)) => log::warn!("{}: {why}", socket.display()),
            Ok(_) => log::warn!(
                "{}: the response is of another kind than requested",
                socket.display()
            ),
            Err(error) if nobody_listens(&error) => log::debug!("{error:#}"),
            Err(error) => log::warn!("{error:#}"),
        }
    }
    Ok(warmed)
}

/// Returns what the mount table shows as the source of the layers of the snapshotter with this root.
#[must_use]
pub fn mount_label(root: &Path) -> String {
    format!("snapshotter:{}", root.display())
}

fn sockets(run_dir: &RunDir) -> anyhow::Result<Vec<PathBuf>> {
    let dir = run_dir.path();
    let reading = || format!("reading {}", dir.display());
    let entries = std::fs::read_dir(dir).with_context(reading)?;
    let mut sockets: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with(PREFIX) && name.ends_with(SUFFIX)
        })
        .map(|entry| entry.path())
        .collect();
    sockets.sort();
    Ok(sockets)
}
