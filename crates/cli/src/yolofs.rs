//! The program `yolofs`: mounts sources, serves them, and tells how they do.

pub(crate) mod block;
pub(crate) mod by_node;
mod docker;
mod doctor;
mod learn;
mod mount;
mod mounter_command;
mod node;
mod pin;
mod pull_command;
mod recorder;
mod setup;
mod snapshotter_command;
mod snapshotter_status;
mod status;
mod tier;
#[cfg(feature = "top")]
mod top;
mod umount;
mod upgrade;
mod worker;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::completions::CompletionsArgs;
use crate::exit::{EXIT_CODES, Outcome, report};
use crate::run_dir_arg::RunDirArg;
use crate::start::{Talk, begin};
use crate::store_args::StoreArgs;

/// Serve directory trees and disk images from boot images, so that boots do not wait for the disk.
#[derive(Debug, Parser)]
#[command(name = "yolofs", version, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Yolofs {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    run_dir: RunDirArg,
    #[command(flatten)]
    talk: Talk,
    #[command(subcommand)]
    command: YolofsCommand,
}

#[derive(Debug, Subcommand)]
enum YolofsCommand {
    Mount(Box<mount::MountArgs>),
    Node(node::NodeArgs),
    Umount(umount::UmountArgs),
    Status(status::StatusArgs),
    #[cfg(feature = "top")]
    Top(top::TopArgs),
    Tier(tier::TierArgs),
    Pin(pin::PinArgs),
    Upgrade(upgrade::UpgradeArgs),
    Docker(docker::DockerArgs),
    Snapshotter(snapshotter_command::SnapshotterArgs),
    Pull(pull_command::PullArgs),
    Block(block::BlockArgs),
    Learn(learn::LearnArgs),
    Setup(setup::SetupArgs),
    Doctor(doctor::DoctorArgs),
    Completions(CompletionsArgs),
    #[command(hide = true)]
    Worker(worker::WorkerArgs),
    #[command(hide = true)]
    Mounter(mounter_command::MounterArgs),
    #[command(hide = true)]
    Recorder(recorder::RecorderArgs),
}

/// Parses the command line, does what it says, and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let args = begin(|args: &Yolofs| args.talk);
    report("yolofs", &run(&args))
}

fn run(args: &Yolofs) -> anyhow::Result<Outcome> {
    let store = &args.store.settings();
    match &args.command {
        YolofsCommand::Mount(command) => mount::run(command, store, &args.run_dir),
        YolofsCommand::Node(command) => node::run(command, store, &args.run_dir),
        YolofsCommand::Block(command) => block::run(command, store, &args.run_dir),
        YolofsCommand::Umount(command) => umount::run(command, &args.run_dir),
        YolofsCommand::Status(command) => status::run(command, args.talk, &args.run_dir),
        #[cfg(feature = "top")]
        YolofsCommand::Top(command) => top::run(command, &args.run_dir),
        YolofsCommand::Tier(command) => tier::run(command, store),
        YolofsCommand::Pin(command) => pin::run(command, &args.run_dir.run_dir),
        YolofsCommand::Upgrade(command) => upgrade::run(command, &args.run_dir),
        YolofsCommand::Snapshotter(command) => {
            snapshotter_command::run(command, store, &args.run_dir)
        }
        YolofsCommand::Pull(command) => pull_command::run(command, &args.run_dir),
        YolofsCommand::Docker(command) => docker::run(command, store, &args.run_dir),
        YolofsCommand::Worker(command) => worker::run(*command, &args.run_dir.run_dir),
        YolofsCommand::Mounter(command) => mounter_command::run(command),
        YolofsCommand::Recorder(command) => recorder::run(command, store, &args.run_dir.run_dir),
        YolofsCommand::Learn(command) => learn::run(command, store),
        YolofsCommand::Setup(command) => setup::run(command),
        YolofsCommand::Doctor(command) => doctor::run(command, store, &args.run_dir),
        YolofsCommand::Completions(command) => command.print::<Yolofs>(),
    }
}
