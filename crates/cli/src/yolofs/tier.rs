//! `yolofs tier`: what directories are as tiers, and which boot images lie on them.

mod apply;
mod evict;
mod pin;
mod plan;
mod probe;
mod promote;
mod status;

use clap::Subcommand;

use crate::exit::Outcome;
use bootstore::store::StoreSettings;

/// Manage copies of boot images and files on fast memory and disks
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TierArgs {
    #[command(subcommand)]
    command: TierCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum TierCommand {
    Probe(probe::ProbeArgs),
    Status(status::StatusArgs),
    Plan(plan::PlanArgs),
    Apply(apply::ApplyArgs),
    /// Keep boot images and files on the fastest tier that has room for them
    ///
    /// The next `yolofs tier apply`, or the node, moves them there.
    Pin(pin::PinArgs),
    /// Undo a pin: heat decides again where boot images and files are kept
    Unpin(pin::PinArgs),
    Evict(evict::EvictArgs),
    Promote(promote::PromoteArgs),
}

pub(super) fn run(args: &TierArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    match &args.command {
        TierCommand::Probe(command) => probe::run(command),
        TierCommand::Status(command) => status::run(command, store),
        TierCommand::Plan(command) => plan::run(command, store),
        TierCommand::Apply(command) => apply::run(command, store),
        TierCommand::Pin(command) => pin::run(command, store, pin::Pinning::Pinned),
        TierCommand::Unpin(command) => pin::run(command, store, pin::Pinning::Unpinned),
        TierCommand::Evict(command) => evict::run(command, store),
        TierCommand::Promote(command) => promote::run(command, store),
    }
}
