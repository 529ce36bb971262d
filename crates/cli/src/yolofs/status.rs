//! `yolofs status`.

use node_api::mount_daemon::ask_status;
use std::path::PathBuf;

use anyhow::{Context as _, bail};

use super::by_node;
use crate::completions::mountpoints;
use crate::exit::Outcome;
use crate::output::{FormatArg, print};
use crate::run_dir_arg::RunDirArg;
use crate::start::Talk;
use crate::status_text::{lines, text};
use host::mountpoint;
use host::run_dir::RunDir;
use node_api::status::MountStatus;

/// Show how mounts do, a line for each, what is to be done first
///
/// With -v also hits, misses, bytes from the source, divergence from the recording, injected and
/// evicted pages, requests by kind.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct StatusArgs {
    /// Show these mounts only
    #[arg(value_name = "MOUNTPOINT", add = mountpoints())]
    mountpoints: Vec<PathBuf>,
    #[command(flatten)]
    format: FormatArg,
}

pub(super) fn run(args: &StatusArgs, talk: Talk, run_dir: &RunDirArg) -> anyhow::Result<Outcome> {
    let run_dir = RunDir::open(&run_dir.run_dir)?;
    let find = |named: &PathBuf| {
        mountpoint::resolve(named).with_context(|| format!("finding {}", named.display()))
    };
    let wanted: Vec<PathBuf> = args
        .mountpoints
        .iter()
        .map(find)
        .collect::<Result<_, _>>()?;
    let mut mounts = all_mounts(&run_dir)?;
    for path in &wanted {
        if !mounts.iter().any(|mount| mount.mountpoint == *path) {
            bail!(
                "{} is not a mount that {} describes",
                path.display(),
                run_dir.path().display()
            );
        }
    }
    mounts.retain(|mount| wanted.is_empty() || wanted.contains(&mount.mountpoint));
    print(args.format.format(), &mounts, |mounts| {
        if talk.is_verbose() {
            text(mounts)
        } else {
            lines(mounts)
        }
    })?;
    Ok(Outcome::Done)
}

/// Asks all mounts, those of the node included, how they do.
///
/// # Errors
/// If the run directory cannot be read, or the node does not answer.
pub(super) fn all_mounts(run_dir: &RunDir) -> anyhow::Result<Vec<MountStatus>> {
    let records = run_dir.list()?;
    let standalone = records.iter().map(|record| ask_status(run_dir, record));
    let mut mounts: Vec<MountStatus> = standalone.collect();
    mounts.extend(by_node::mounts(run_dir)?);
    mounts.sort_by(|a, b| a.mountpoint.cmp(&b.mountpoint));
    Ok(mounts)
}
