//! The hidden commands that a recorder starts `bootimg` as.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use recording::sandbox::{self, EnterStage, Identity, InitStage};
use recording::undo::guard;

/// What `bootimg record` starts this program as: commands of their own, so that neither help nor
/// completions know them.
#[derive(Clone, Debug, Parser)]
pub(crate) enum Stage {
    /// The first stage
    #[command(name = "__enter")]
    Enter(EnterArgs),
    /// The second stage
    #[command(name = "__init")]
    Init(InitArgs),
    /// Only execute the command
    #[command(name = "__exec")]
    Exec(ExecArgs),
    /// Cleans up behind a recorder that is killed
    #[command(name = "__guard")]
    Guard,
}

impl Stage {
    /// Returns which stage this process is, if it is one.
    #[must_use]
    pub(crate) fn of_this_process() -> Option<Self> {
        let first = std::env::args_os().nth(1)?;
        first.as_bytes().starts_with(b"__").then(Self::parse)
    }

    /// Does what the stage is for. Returns only from the first, or if it fails.
    ///
    /// # Errors
    /// If a namespace, a mount, or the command cannot be had.
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Enter(stage) => sandbox::enter(&stage.stage()),
            Self::Init(stage) => sandbox::become_init(&stage.stage()).map(|never| match never {}),
            Self::Exec(stage) => {
                sandbox::become_command(&stage.command).map(|never| match never {})
            }
            Self::Guard => guard(),
        }
    }
}

/// The first stage, as the hidden command that `bootimg record` starts.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EnterArgs {
    /// Directory trees that become the lower layers of the command's root, the top one first
    #[arg(long, required = true)]
    lower: Vec<PathBuf>,
    /// Directory that the lower layers' paths start from
    #[arg(long, default_value = "/")]
    base: PathBuf,
    /// Empty directory to mount the scratch file system and the root in
    #[arg(long)]
    scratch: PathBuf,
    #[command(flatten)]
    identity: IdentityArgs,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true)]
    command: Vec<OsString>,
}

/// The second stage.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct InitArgs {
    /// Directory that becomes the root
    #[arg(long)]
    root: PathBuf,
    #[command(flatten)]
    identity: IdentityArgs,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true)]
    command: Vec<OsString>,
}

/// As whom, and where, a command is executed.
#[derive(Clone, Debug, clap::Args)]
struct IdentityArgs {
    /// USER[:GROUP], names or numbers, as the root's own files know them; empty is who we are
    #[arg(long, default_value = "")]
    user: String,
    /// Directory to start in
    #[arg(long, default_value = "/")]
    workdir: PathBuf,
}

/// A stage that only executes the command, so that it dies with `bootimg` and gets back the
/// signals that `bootimg` blocked.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ExecArgs {
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true)]
    command: Vec<OsString>,
}

impl EnterArgs {
    fn stage(&self) -> EnterStage {
        EnterStage {
            lower: self.lower.clone(),
            base: self.base.clone(),
            scratch: self.scratch.clone(),
            identity: self.identity.identity(),
            command: self.command.clone(),
        }
    }
}

impl InitArgs {
    fn stage(&self) -> InitStage {
        InitStage {
            root: self.root.clone(),
            identity: self.identity.identity(),
            command: self.command.clone(),
        }
    }
}

impl IdentityArgs {
    fn identity(&self) -> Identity {
        Identity {
            user: self.user.clone(),
            workdir: self.workdir.clone(),
        }
    }
}
