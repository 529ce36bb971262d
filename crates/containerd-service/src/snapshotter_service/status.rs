//! `yolofs snapshotter status`, and the process that answers it.

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
/// A snapshotter answers at once; one that does not is stuck.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// What may be asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum Request {
    /// How are things?
    Status,
    /// Where may a pull of ours stage layers? Asked again while it lasts, so that nothing is brought
    /// to the disk meanwhile.
    Stage {
        /// What it calls itself; nothing if it only wants to know.
        pull: Option<String>,
    },
    /// Is there room on the fast place for a staged layer, that much in all?
    Book {
        /// The name of the staged directory.
        name: String,
        /// How much.
        bytes: u64,
    },
    /// Bring the boot image with this id into the page cache of the layers that are served from it,
    /// and answer when that is done.
    Prewarm {
        /// The image.
        image: String,
    },
    /// A pull has ended.
    Ended {
        /// What it called itself.
        pull: String,
    },
}

/// What is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer", content = "is")]
pub enum Response {
    /// This is how things are.
    Status(Box<SnapshotterStatus>),
    /// Here.
    Stage(StagingPlaces),
    /// Whether there was.
    Booked(bool),
    /// The layers that were warmed.
    Warmed(Vec<WarmedLayer>),
    /// It was heard.
    Heard,
    /// It cannot be told.
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
    /// Bytes that the fast place has left for us.
    pub room: u64,
}

/// How a snapshotter does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SnapshotterStatus {
    /// The directory of its snapshots.
    pub root: PathBuf,
    /// Where containerd finds it.
    pub address: PathBuf,
    /// Its process.
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
    /// Bytes that are there.
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
    /// Bytes that are there.
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

/// Returns where the snapshotter with this root answers.
pub fn socket(run_dir: &RunDir, root: &Path) -> PathBuf {
    let id = RunDir::id_of(root);
    run_dir.path().join(format!("{PREFIX}{id}{SUFFIX}"))
}

/// Asks all snapshotters of a run directory. One that does not answer serves nobody: it may have
/// ended long ago.
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

fn sockets(run_dir: &RunDir) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(run_dir.path()).context("reading the run directory")?;
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
