//! `yolofs status`.

use std::path::PathBuf;

use anyhow::bail;

use crate::exit::Outcome;
use crate::output::{FormatArg, print};
use crate::run_dir::{RunDir, RunDirArg};
use crate::status::{MountStatus, text};

/// Show how the mounts do
///
/// Hits, misses, what fell through to the source, divergence from the recording, injected and
/// evicted pages, requests by kind.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct StatusArgs {
    /// Show these mounts only
    #[arg(value_name = "MOUNTPOINT")]
    mountpoints: Vec<PathBuf>,
    #[command(flatten)]
    format: FormatArg,
}

pub(super) fn run(args: &StatusArgs, run_dir: &RunDirArg) -> anyhow::Result<Outcome> {
    let run_dir = RunDir::open(&run_dir.run_dir)?;
    let wanted: Vec<PathBuf> = args
        .mountpoints
        .iter()
        .map(std::path::absolute)
        .collect::<Result<_, _>>()?;
    let records = run_dir.list()?;
    for path in &wanted {
        if !records.iter().any(|record| record.mountpoint == *path) {
            bail!(
                "{} is not a mount of yolofs in {}",
                path.display(),
                run_dir.path().display()
            );
        }
    }
    let shown = records
        .iter()
        .filter(|r| wanted.is_empty() || wanted.contains(&r.mountpoint));
    let mounts: Vec<MountStatus> = shown
        .map(|record| MountStatus::ask(&run_dir, record))
        .collect();
    print(args.format.format(), &mounts, |mounts| text(mounts))?;
    Ok(Outcome::Done)
}
