//! The `--run-dir` flag.

use std::path::PathBuf;

use host::run_dir::{DEFAULT_RUN_DIR, RUN_DIR_ENV};

/// The `--run-dir` flag.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Mounts")]
pub(crate) struct RunDirArg {
    /// Directory that describes the running mounts
    #[arg(long, value_name = "DIR", env = RUN_DIR_ENV, default_value = DEFAULT_RUN_DIR, global = true)]
    pub(crate) run_dir: PathBuf,
}
