//! `yolofs docker`: serves the layers of Docker's images, in place.
//!
//! Docker's graph driver overlay2 keeps each layer in a directory. A daemon of ours mounts over
//! these directories, so that containers started from then on have the mount below their
//! overlays, and Docker itself notices nothing. Two processes make up the daemon: the *worker*
//! serves, and the *guardian*, its parent, only waits. A mount whose worker died answers nothing,
//! not even to Docker; so the guardian takes dead mounts away at once and starts another worker.

mod attach;
mod detach;
mod engine_args;
mod serve;
mod status;

use clap::Subcommand;

use crate::exit::Outcome;
use crate::run_dir_arg::RunDirArg;
use bootstore::store::StoreSettings;
use host::run_dir::RunDir;

/// Serve the layers of Docker's images from their boot images
///
/// Works in place, on the graph driver overlay2: images, containers and commands of Docker stay
/// as they are, and without yolofs Docker sees its plain directories.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct DockerArgs {
    #[command(flatten)]
    engine: engine_args::EngineArgs,
    #[command(subcommand)]
    command: DockerCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum DockerCommand {
    Attach(attach::AttachArgs),
    Detach(detach::DetachArgs),
    Status(status::StatusArgs),
    Serve(serve::ServeArgs),
    Clear(detach::ClearArgs),
}

pub(super) fn run(
    args: &DockerArgs,
    store: &StoreSettings,
    run_dir: &RunDirArg,
) -> anyhow::Result<Outcome> {
    let run_dir = RunDir::open(&run_dir.run_dir)?;
    match &args.command {
        DockerCommand::Attach(command) => attach::run(command, &args.engine, store, &run_dir),
        DockerCommand::Detach(command) => detach::run(command, &args.engine, &run_dir),
        DockerCommand::Status(command) => status::run(command, &args.engine, &run_dir),
        DockerCommand::Serve(command) => serve::run(command, &args.engine, store, &run_dir),
        DockerCommand::Clear(command) => detach::clear(command, &run_dir),
    }
}
