//! `yolofs tier`: what directories are as tiers.

mod probe;

use clap::Subcommand;

use crate::exit::Outcome;

/// What lies on which memory or disk
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TierArgs {
    #[command(subcommand)]
    command: TierCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum TierCommand {
    Probe(probe::ProbeArgs),
}

pub(super) fn run(args: &TierArgs) -> anyhow::Result<Outcome> {
    match &args.command {
        TierCommand::Probe(command) => probe::run(command),
    }
}
