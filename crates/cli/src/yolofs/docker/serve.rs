//! `yolofs docker serve`.

use bootstore::store::StoreSettings;
use host::run_dir::RunDir;

use crate::exit::Outcome;
use crate::xattrs_arg::XattrsArg;
use crate::yolofs::docker::engine_args::EngineArgs;
use docker_service::guardian;
use docker_service::guardian::ServeSettings;

/// Serve in the foreground; `attach` starts this in the background when it is needed
///
/// Ends on SIGTERM or SIGINT: the layers are detached, and those that running containers use are
/// served until these end. A second signal ends it at once.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ServeArgs {
    /// Attach all images that have boot images, those that come later included
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    xattrs: XattrsArg,
    /// Tell the command that started this how the start went, and end when nothing is attached
    #[arg(long, hide = true)]
    background: bool,
    /// Serve, as the child of this process
    #[arg(long, hide = true, value_name = "N")]
    worker: Option<u32>,
}

pub(super) fn run(
    args: &ServeArgs,
    engine: &EngineArgs,
    store: &StoreSettings,
    run_dir: &RunDir,
) -> anyhow::Result<Outcome> {
    let settings = ServeSettings {
        all: args.all,
        xattrs: args.xattrs.answers(),
        background: args.background,
        worker: args.worker,
    };
    guardian::run(&settings, &engine.engine(), store, run_dir)?;
    Ok(Outcome::Done)
}
