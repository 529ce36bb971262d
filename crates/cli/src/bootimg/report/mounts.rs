//! What the mounts of this node say of themselves.

use blocks::Digest;
use node_api::mount_daemon::ask_status;
use report::MountReport;

use crate::run_dir_arg::RunDirArg;
use crate::yolofs::by_node;
use containerd_service::snapshotter_service::status::all as snapshotter_statuses;
use docker_service::served::served_layers;
use host::run_dir::RunDir;
use layers::status::LayerStatus;
use node_api::status::{BootStatus, MountStatus, ServedStatus};

/// A mount, and what it serves.
#[derive(Clone, Debug)]
pub(super) struct Mounted {
    /// The id of its boot image.
    pub(super) image: Option<String>,
    /// The layer that is mounted, if it is one of a container image.
    pub(super) layer: Option<Digest>,
    pub(super) report: MountReport,
}

/// Asks every mount that the run directory describes, the daemons for Docker and the snapshotters.
/// That there is no such directory means that nothing is mounted: a report is no reason to make one.
///
/// # Errors
/// If the directory is there and cannot be read.
pub(super) fn all(run_dir: &RunDirArg) -> anyhow::Result<Vec<Mounted>> {
    if !run_dir.run_dir.exists() {
        return Ok(Vec::new());
    }
    let run_dir = RunDir::open(&run_dir.run_dir)?;
    let records = run_dir.list()?;
    let statuses = records.iter().map(|r| ask_status(&run_dir, r));
    let mut mounts: Vec<_> = statuses.map(|status| mounted(&status)).collect();
    mounts.extend(of_node(&run_dir).iter().map(mounted));
    mounts.extend(served_layers(&run_dir)?.iter().map(layer_mounted));
    for snapshotter in snapshotter_statuses(&run_dir)? {
        mounts.extend(snapshotter.layers().iter().map(layer_mounted));
    }
    Ok(mounts)
}

/// Returns the mounts of the node. A node that does not answer costs its part of the page, not the page.
fn of_node(run_dir: &RunDir) -> Vec<MountStatus> {
    by_node::mounts(run_dir).unwrap_or_else(|error| {
        log::warn!("the report lacks the mounts of the node: {error:#}");
        Vec::new()
    })
}

fn mounted(status: &MountStatus) -> Mounted {
    let report = MountReport {
        source: status.source.display().to_string(),
        mountpoint: status.mountpoint.display().to_string(),
        state: status.state.to_string(),
        ..MountReport::default()
    };
    Mounted {
        image: status.boot.as_ref().map(|boot| boot.content.clone()),
        layer: None,
        report: counted(report, status.boot.as_ref(), status.served.as_ref()),
    }
}

fn layer_mounted(status: &LayerStatus) -> Mounted {
    let report = MountReport {
        source: format!("layer {}", status.layer),
        mountpoint: status.target.display().to_string(),
        state: status.state.to_string(),
        ..MountReport::default()
    };
    Mounted {
        image: Some(status.boot.content.clone()),
        layer: Some(status.layer),
        report: counted(report, Some(&status.boot), Some(&status.served)),
    }
}

/// Adds what was counted of a boot image, and of what was served.
fn counted(
    report: MountReport,
    boot: Option<&BootStatus>,
    served: Option<&ServedStatus>,
) -> MountReport {
    let mut report = report;
    if let Some(boot) = boot {
        report.boot_image = Some(boot.image.clone());
        report.prewarm = boot.prewarm.to_string();
        report.stale_files = boot.stale_files;
        report.stale_bytes = boot.stale_blocks.saturating_mul(blocks::BLOCK_SIZE as u64);
        report.damaged_reads = boot.damaged;
        report.injected_pages = boot.injected_pages;
        report.evicted_pages = boot.evicted_pages;
    }
    if let Some(served) = served {
        report.hits = served.hits;
        report.hit_bytes = served.hit_bytes;
        report.misses = served.misses;
        report.fallthrough_bytes = served.fallthrough_bytes;
        report.divergence_permille = served.divergence_permille;
        report.diverted_files = served.diverted_files;
        report.requests.clone_from(&served.requests);
    }
    report
}
