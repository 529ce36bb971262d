//! `yolofs learn`, which the node starts.

use bootstore::store::StoreSettings;
use node_api::boot_choice::BootChoice;

use crate::exit::Outcome;
use node_service::lesson;

/// Learn from what a mount was asked for
///
/// For the node, which hands it the source, its names and a trace.
#[derive(Clone, Debug, clap::Args)]
#[command(hide = true)]
pub(super) struct LearnArgs {
    /// The boot image in use
    #[arg(long, value_name = "IMAGE", default_value = "auto")]
    boot: BootChoice,
}

pub(super) fn run(args: &LearnArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    lesson::run(&args.boot, store)?;
    Ok(Outcome::Done)
}
