//! The program `nicfetch`: keeps images and blocks on a SmartNIC for the machines of its host.

mod args;
mod import;
mod operate;
mod pin;
mod serve;
mod simulate;
mod store;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::completions::CompletionsArgs;
use crate::exit::{EXIT_CODES, Outcome, report};
use crate::start::{Talk, begin};

/// Keep container images on a host's SmartNIC, once for all virtual machines of the host.
#[derive(Debug, Parser)]
#[command(name = "nicfetch", version, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Nicfetch {
    #[command(flatten)]
    talk: Talk,
    #[command(subcommand)]
    command: NicfetchCommand,
}

#[derive(Debug, Subcommand)]
enum NicfetchCommand {
    Serve(serve::ServeArgs),
    Status(operate::StatusArgs),
    Ls(operate::LsArgs),
    Prewarm(operate::PrewarmArgs),
    Gc(operate::GcArgs),
    Verify(operate::VerifyArgs),
    Pin(pin::PinArgs),
    Unpin(pin::UnpinArgs),
    #[command(subcommand)]
    Chunks(store::ChunksCommand),
    Simulate(simulate::SimulateArgs),
    Import(import::ImportArgs),
    Completions(CompletionsArgs),
}

/// Parses the command line, does what it says, and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let args = begin(|args: &Nicfetch| args.talk);
    report("nicfetch", &run(&args))
}

fn run(args: &Nicfetch) -> anyhow::Result<Outcome> {
    match &args.command {
        NicfetchCommand::Serve(command) => serve::run(command),
        NicfetchCommand::Status(command) => operate::status(command),
        NicfetchCommand::Ls(command) => operate::ls(command),
        NicfetchCommand::Prewarm(command) => operate::prewarm(command),
        NicfetchCommand::Gc(command) => operate::gc(command),
        NicfetchCommand::Verify(command) => operate::verify(command),
        NicfetchCommand::Pin(command) => pin::pin(command),
        NicfetchCommand::Unpin(command) => pin::unpin(command),
        NicfetchCommand::Chunks(command) => store::run(command),
        NicfetchCommand::Simulate(command) => simulate::run(command),
        NicfetchCommand::Import(command) => import::run(command),
        NicfetchCommand::Completions(command) => command.print::<Nicfetch>(),
    }
}
