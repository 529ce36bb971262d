//! `yolofs snapshotter status`, and the process that answers it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use bootimg::ImageId;
use serde::{Deserialize, Serialize};
use snapshotter::FastUsage;

use super::first_boot::{FirstBootStatus, Outcome as Became};
use super::layers_fast::ByArg;
use super::placing::{Placed, Placing};
use crate::exit::Outcome;
use crate::layers_text::layers_text;
use crate::output::{FormatArg, count, percent, print, table};
use host::control::{Reply, call, nobody_listens};
use host::run_dir::RunDir;
use host::size::Size;
use layers::server::{ServedBy, WarmedLayer};
use layers::status::LayerStatus;

/// What the names of the sockets begin with, and end with.
const PREFIX: &str = "snapshotter-";
const SUFFIX: &str = ".sock";
/// A snapshotter answers at once; one that does not is stuck.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);

/// Show what is served, what is being recorded, and what containers wrote
///
/// Of every snapshotter that was started with this run directory.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    format: FormatArg,
}

/// What may be asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub(super) enum Ask {
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
pub(super) enum Told {
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

impl Reply for Told {
    fn failed(why: String) -> Self {
        Self::Failed(why)
    }
}

/// Where layers may be staged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::yolofs) struct StagingPlaces {
    /// On the disk.
    pub(in crate::yolofs) disk: PathBuf,
    /// On the fast place, if there is one.
    pub(in crate::yolofs) fast: Option<PathBuf>,
    /// Bytes that the fast place has left for us.
    pub(in crate::yolofs) room: u64,
}

/// How a snapshotter does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SnapshotterStatus {
    /// The directory of its snapshots.
    pub(super) root: PathBuf,
    /// Where containerd finds it.
    pub(super) address: PathBuf,
    pub(super) pid: u32,
    /// Who serves the layers.
    #[serde(default)]
    pub(super) served_by: ServedBy,
    /// The layers that are served from boot images.
    pub(super) layers: Vec<LayerStatus>,
    /// How many layers their plain directories serve.
    pub(super) plain_layers: usize,
    /// The first boots that are or were recorded, the last at the end.
    pub(super) first_boots: Vec<FirstBootStatus>,
    /// The fast place for what containers write, if there is one.
    pub(super) upper: Option<UpperStatus>,
    /// The fast place for layers, if there is one.
    #[serde(default)]
    pub(super) layers_fast: Option<LayersFastStatus>,
}

/// How full the place for upper directories is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct UpperStatus {
    pub(super) dir: PathBuf,
    pub(super) used_bytes: u64,
    pub(super) max_bytes: u64,
}

/// How full the fast place for layers is, and which layers went there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LayersFastStatus {
    pub(super) dir: PathBuf,
    /// Layers that are there now.
    pub(super) layers: usize,
    pub(super) used_bytes: u64,
    pub(super) max_bytes: u64,
    /// Whether it is seen which layers a pull waits for; otherwise it is foreseen.
    pub(super) seen: bool,
    /// What the disk beside it writes in a second, if that was measured of late.
    #[serde(default)]
    pub(super) disk_bytes_per_second: Option<u64>,
    /// Since the snapshotter was started.
    #[serde(flatten)]
    pub(super) placed: Placed,
}

impl LayersFastStatus {
    pub(super) fn of(usage: FastUsage, placing: &Placing) -> Self {
        Self {
            dir: usage.dir,
            layers: usage.layers,
            used_bytes: usage.used_bytes,
            max_bytes: usage.max_bytes,
            seen: placing.by() == ByArg::Seen,
            disk_bytes_per_second: placing.disk_bytes_per_second(),
            placed: placing.placed(),
        }
    }
}

impl SnapshotterStatus {
    /// Returns the layers that are served.
    pub(crate) fn layers(&self) -> &[LayerStatus] {
        &self.layers
    }
}

pub(super) fn run(args: &StatusArgs, run_dir: &RunDir) -> anyhow::Result<Outcome> {
    print(args.format.format(), &all(run_dir)?, |all| {
        all.iter().map(text).collect()
    })?;
    Ok(Outcome::Done)
}

/// Returns where the snapshotter with this root answers.
pub(super) fn socket(run_dir: &RunDir, root: &Path) -> PathBuf {
    let id = RunDir::id_of(root);
    run_dir.path().join(format!("{PREFIX}{id}{SUFFIX}"))
}

/// Asks all snapshotters of a run directory. One that does not answer serves nobody: it may have
/// ended long ago.
///
/// # Errors
/// If the run directory cannot be read.
pub(crate) fn all(run_dir: &RunDir) -> anyhow::Result<Vec<SnapshotterStatus>> {
    let mut all = Vec::new();
    for socket in sockets(run_dir)? {
        match call(&socket, &Ask::Status, DEADLINE) {
            Ok(Told::Status(status)) => all.push(*status),
            Ok(Told::Failed(why)) => log::warn!("{}: {why}", socket.display()),
            Ok(_) => log::warn!("{}: not what was asked for", socket.display()),
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
pub(crate) fn warm_by_snapshotters(
    run_dir: &RunDir,
    image: &ImageId,
    deadline: Duration,
) -> anyhow::Result<Vec<WarmedLayer>> {
    let image = image.to_string();
    let ask = Ask::Prewarm { image };
    let mut warmed = Vec::new();
    for socket in sockets(run_dir)? {
        match call(&socket, &ask, deadline) {
            Ok(Told::Warmed(layers)) => warmed.extend(layers),
            Ok(Told::Failed(why)) => log::warn!("{}: {why}", socket.display()),
            Ok(_) => log::warn!("{}: not what was asked for", socket.display()),
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

/// Writes a status for people.
fn text(status: &SnapshotterStatus) -> String {
    let mut text = format!(
        "{}: serving containerd at {}, pid {}; {} from boot images{}, {} plain\n",
        status.root.display(),
        status.address.display(),
        status.pid,
        count(status.layers.len() as u64, "layer"),
        match status.served_by {
            ServedBy::Service => "",
            ServedBy::Node => " by the node",
        },
        status.plain_layers,
    );
    if let Some(upper) = &status.upper {
        text.push_str(&format!(
            "containers write to {}: {} of {} ({})\n",
            upper.dir.display(),
            Size(upper.used_bytes),
            Size(upper.max_bytes),
            percent(upper.used_bytes.min(upper.max_bytes), upper.max_bytes),
        ));
    }
    if let Some(fast) = &status.layers_fast {
        text.push_str(&fast_text(fast));
    }
    if !status.layers.is_empty() {
        text.push_str(&layers_text(&status.layers));
    }
    if !status.first_boots.is_empty() {
        text.push_str(&boots_text(&status.first_boots));
    }
    text
}

fn fast_text(fast: &LayersFastStatus) -> String {
    let placed = &fast.placed;
    let disk = fast.disk_bytes_per_second;
    let disk = disk.map(|rate| format!("; the disk writes {}/s", Size(rate)));
    format!(
        "{} in {}: {} of {} ({}); unpacked there since the start {} ({} as the disk would have been late), on the disk {}, for want of room {}, unknown {}{}\n",
        count(fast.layers as u64, "layer"),
        fast.dir.display(),
        Size(fast.used_bytes),
        Size(fast.max_bytes),
        percent(fast.used_bytes.min(fast.max_bytes), fast.max_bytes),
        placed.fast,
        placed.late,
        placed.disk,
        placed.full,
        placed.unknown,
        disk.unwrap_or_default(),
    )
}

fn boots_text(boots: &[FirstBootStatus]) -> String {
    let head = ["FIRST BOOT", "UNTIL", "STATE"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for boot in boots {
        let state = match &boot.outcome {
            Became::Recording => "recording".to_owned(),
            Became::Recorded { image } => format!("recorded: {image}"),
            Became::Failed { why } => format!("not recorded: {why}"),
        };
        rows.push(vec![boot.container.clone(), boot.until.clone(), state]);
    }
    table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_what_is_recorded_and_what_is_written() {
        let boot = |outcome| FirstBootStatus {
            container: "default/7/web".to_owned(),
            until: "tcp:80".to_owned(),
            outcome,
        };
        let status = SnapshotterStatus {
            root: PathBuf::from("/var/lib/yolofs/snapshotter"),
            address: PathBuf::from("/run/yolofs/snapshotter.sock"),
            pid: 42,
            served_by: ServedBy::Service,
            layers: Vec::new(),
            plain_layers: 3,
            first_boots: vec![
                boot(Became::Recording),
                boot(Became::Recorded {
                    image: "docker.io/library/nginx:1.25".to_owned(),
                }),
                boot(Became::Failed {
                    why: "no image has this chain".to_owned(),
                }),
            ],
            upper: Some(UpperStatus {
                dir: PathBuf::from("/upper"),
                used_bytes: 1 << 20,
                max_bytes: 4 << 20,
            }),
            layers_fast: Some(LayersFastStatus {
                dir: PathBuf::from("/fast"),
                layers: 2,
                used_bytes: 3 << 20,
                max_bytes: 4 << 20,
                seen: true,
                disk_bytes_per_second: Some(45 << 20),
                placed: Placed {
                    fast: 5,
                    late: 2,
                    disk: 7,
                    full: 1,
                    ..Placed::default()
                },
            }),
        };
        let said = text(&status);
        for words in [
            "pid 42; 0 layers from boot images, 3 plain",
            "/upper: 1.0 MiB of 4.0 MiB",
            "2 layers in /fast: 3.0 MiB of 4.0 MiB (75.0 %); unpacked there since the start 5 (2 as the disk would have been late), on the disk 7,",
            "unknown 0; the disk writes 45.0 MiB/s",
            "recorded: docker.io/library/nginx:1.25",
            "not recorded: no image has this chain",
        ] {
            assert!(said.contains(words), "{words} in\n{said}");
        }
        let read: SnapshotterStatus =
            serde_json::from_str(&serde_json::to_string(&status).unwrap()).unwrap();
        assert_eq!(text(&read), said);
    }
}
