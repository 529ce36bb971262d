//! `yolofs recorder`, which the snapshotter starts.

use std::path::{Path, PathBuf};

use bootstore::store::StoreSettings;

use crate::exit::Outcome;
use containerd_service::snapshotter_service::first_boot::recorder;
use containerd_service::snapshotter_service::first_boot::recorder::RecorderSettings;

/// Record first boots for a snapshotter
///
/// Started by `yolofs snapshotter`, which it outlives.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct RecorderArgs {
    /// Directory of the snapshots
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// Socket of containerd
    #[arg(long, value_name = "FILE")]
    containerd: PathBuf,
    /// The process that starts it
    #[arg(long, value_name = "N")]
    snapshotter: u32,
}

pub(super) fn run(
    args: &RecorderArgs,
    store: &StoreSettings,
    run_dir: &Path,
) -> anyhow::Result<Outcome> {
    let settings = RecorderSettings {
        root: args.root.clone(),
        containerd: args.containerd.clone(),
        snapshotter: args.snapshotter,
    };
    recorder::run(&settings, store, run_dir)?;
    Ok(Outcome::Done)
}
