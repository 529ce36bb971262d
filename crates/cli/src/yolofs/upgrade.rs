//! `yolofs upgrade`: another program under living mounts.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::exit::Outcome;
use crate::output::write_line;
use crate::run_dir_arg::RunDirArg;
use host::run_dir::RunDir;
use node_api::client::NodeClient;

/// Replace the program of the node service and its workers; mounts stay in use
///
/// Reads during the upgrade wait for some milliseconds; none fails.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct UpgradeArgs {
    /// The program [default: the one that runs this command]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

pub(super) fn run(args: &UpgradeArgs, run_dir: &RunDirArg) -> anyhow::Result<Outcome> {
    let program = match &args.program {
        Some(program) => program
            .canonicalize()
            .with_context(|| format!("opening {}", program.display()))?,
        None => std::env::current_exe().context("finding this program")?,
    };
    let node = NodeClient::of(&RunDir::open(&run_dir.run_dir)?);
    let upgraded = node.upgrade(&program)?;
    write_line(&format!(
        "{} runs now; {} workers were replaced, and no mount was without one for more than {} ms",
        upgraded.program.display(),
        upgraded.workers,
        upgraded.longest_gap_ms
    ))?;
    Ok(Outcome::Done)
}
