//! The program `nicfetch`: keeps images and blocks on a SmartNIC for the machines of its host.

mod simulate;
mod store;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing::level_filters::LevelFilter;

use crate::completions::CompletionsArgs;
use crate::exit::{EXIT_CODES, Outcome, report};
use crate::interrupt::Interrupt;

/// Keep container images on a host's SmartNIC, once for all virtual machines of the host.
#[derive(Debug, Parser)]
#[command(name = "nicfetch", version, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Nicfetch {
    #[command(subcommand)]
    command: NicfetchCommand,
}

#[derive(Debug, Subcommand)]
enum NicfetchCommand {
    Status(store::StatusArgs),
    Verify(store::VerifyArgs),
    Gc(store::GcArgs),
    Simulate(simulate::SimulateArgs),
    Completions(CompletionsArgs),
}

/// Parses the command line, does what it says, and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    crate::logging::init(LevelFilter::WARN);
    let args = Nicfetch::parse();
    report("nicfetch", &run(&args))
}

fn run(args: &Nicfetch) -> anyhow::Result<Outcome> {
    match &args.command {
        NicfetchCommand::Status(command) => store::status(command),
        NicfetchCommand::Verify(command) => store::verify(command, &Interrupt::install()?),
        NicfetchCommand::Gc(command) => store::gc(command),
        NicfetchCommand::Simulate(command) => simulate::run(command),
        NicfetchCommand::Completions(command) => command.print::<Nicfetch>(),
    }
}
