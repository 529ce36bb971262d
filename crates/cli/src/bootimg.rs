//! The program `bootimg`: records boots, keeps boot images, brings them into memory.

mod bench;
mod engine_args;
mod from_trace;
mod gc;
mod images;
mod inspect;
mod keep;
mod prewarm;
mod pull;
mod push;
mod record;
pub(crate) mod registry;
mod report;
pub(crate) mod stacks;
mod start_args;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing::level_filters::LevelFilter;

use crate::completions::CompletionsArgs;
use crate::exit::{EXIT_CODES, Outcome, report};
use crate::global_args::GlobalArgs;
use crate::stage::Stage;
use crate::start::begin;
use host::interrupt::Interrupt;

/// Record what a boot reads, keep it as a boot image, and load it into memory before the next boot.
#[derive(Debug, Parser)]
#[command(name = "bootimg", version, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Bootimg {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: BootimgCommand,
}

#[derive(Debug, Subcommand)]
enum BootimgCommand {
    Record(record::RecordArgs),
    Bench(bench::BenchArgs),
    FromTrace(from_trace::FromTraceArgs),
    Prewarm(prewarm::PrewarmArgs),
    Ls(images::LsArgs),
    Inspect(inspect::InspectArgs),
    Report(report::ReportArgs),
    Verify(verify::VerifyArgs),
    Merge(images::MergeArgs),
    Gc(gc::GcArgs),
    Export(images::ExportArgs),
    Import(images::ImportArgs),
    Push(push::PushArgs),
    Pull(pull::PullArgs),
    Rm(images::RmArgs),
    /// Keep boot images when gc has to make room
    Pin(images::PinArgs),
    /// Let gc remove boot images again
    Unpin(images::PinArgs),
    Completions(CompletionsArgs),
    #[command(hide = true)]
    UnpackImage(record::UnpackArgs),
}

/// Parses the command line, does what it says, and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    // The stages of the sandbox must have no thread and no blocked signal: they come first.
    match Stage::of_this_process() {
        Some(stage) => {
            crate::logging::init(LevelFilter::WARN);
            let ended = stage.run();
            ended.unwrap_or_else(|error| report("bootimg", &Err(error)))
        }
        None => {
            let args = begin(|args: &Bootimg| args.global.talk);
            report("bootimg", &run(&args))
        }
    }
}

fn run(args: &Bootimg) -> anyhow::Result<Outcome> {
    let (store, run_dir) = (&args.global.store.settings(), &args.global.run_dir);
    // Who confines itself does so while it has one thread, and hears signals afterwards.
    let interrupt = Interrupt::install;
    match &args.command {
        BootimgCommand::Record(command) => {
            // A source may never answer, and until it has there is nothing to undo.
            record::run(command, store, run_dir, &Interrupt::install_abrupt()?)
        }
        BootimgCommand::Bench(command) => {
            bench::run(command, store, run_dir, &Interrupt::install_abrupt()?)
        }
        BootimgCommand::UnpackImage(command) => record::unpack(command),
        BootimgCommand::FromTrace(command) => from_trace::run(command, store, &interrupt()?),
        BootimgCommand::Prewarm(command) => prewarm::run(command, store, run_dir, &interrupt()?),
        BootimgCommand::Ls(command) => images::ls(command, store),
        BootimgCommand::Inspect(command) => inspect::run(command, store),
        BootimgCommand::Report(command) => report::run(command, store, run_dir),
        BootimgCommand::Verify(command) => verify::run(command, store, &interrupt()?),
        BootimgCommand::Merge(command) => images::merge(command, store, &interrupt()?),
        BootimgCommand::Gc(command) => gc::run(command, store),
        BootimgCommand::Export(command) => images::export(command, store, &interrupt()?),
        BootimgCommand::Import(command) => images::import(command, store, &interrupt()?),
        BootimgCommand::Push(command) => push::run(command, store),
        BootimgCommand::Pull(command) => pull::run(command, store),
        BootimgCommand::Rm(command) => images::rm(command, store),
        BootimgCommand::Pin(command) => images::pin(command, store, images::Keep::Pinned),
        BootimgCommand::Unpin(command) => images::pin(command, store, images::Keep::Unpinned),
        BootimgCommand::Completions(command) => command.print::<Bootimg>(),
    }
}
