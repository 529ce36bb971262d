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

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::completions::CompletionsArgs;
use crate::exit::{EXIT_CODES, Outcome, report};
use crate::global_args::GlobalArgs;
use crate::start::{begin_quickly, of_few};

/// Serve directory trees and disk images from boot images, so that boots do not wait for the disk.
#[derive(Debug, Parser)]
#[command(name = "yolofs", version, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Yolofs {
    #[command(flatten)]
    global: GlobalArgs,
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

/// The command lines that a mount waits for.
#[derive(Debug, Parser)]
#[command(name = "yolofs")]
struct QuickYolofs {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: QuickCommand,
}

#[derive(Debug, Subcommand)]
enum QuickCommand {
    Mount(Box<mount::MountArgs>),
    Mounter(mounter_command::MounterArgs),
}

impl From<QuickYolofs> for Yolofs {
    fn from(quick: QuickYolofs) -> Self {
        Self {
            global: quick.global,
            command: match quick.command {
                QuickCommand::Mount(args) => YolofsCommand::Mount(args),
                QuickCommand::Mounter(args) => YolofsCommand::Mounter(args),
            },
        }
    }
}

/// Parses the command line, does what it says, and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let args = begin_quickly(|args: &Yolofs| args.global.talk, quickly);
    report("yolofs", &run(&args))
}

/// Parses the command line, if it is one that a mount waits for.
fn quickly(line: Vec<OsString>) -> Option<Yolofs> {
    of_few::<QuickCommand, QuickYolofs>(line).map(Yolofs::from)
}

fn run(args: &Yolofs) -> anyhow::Result<Outcome> {
    let store = &args.global.store.settings();
    match &args.command {
        YolofsCommand::Mount(command) => mount::run(command, store, &args.global.run_dir),
        YolofsCommand::Node(command) => node::run(command, store, &args.global.run_dir),
        YolofsCommand::Block(command) => block::run(command, store, &args.global.run_dir),
        YolofsCommand::Umount(command) => umount::run(command, &args.global.run_dir),
        YolofsCommand::Status(command) => {
            status::run(command, args.global.talk, store, &args.global.run_dir)
        }
        #[cfg(feature = "top")]
        YolofsCommand::Top(command) => top::run(command, &args.global.run_dir),
        YolofsCommand::Tier(command) => tier::run(command, store),
        YolofsCommand::Pin(command) => pin::run(command, &args.global.run_dir.run_dir),
        YolofsCommand::Upgrade(command) => upgrade::run(command, &args.global.run_dir),
        YolofsCommand::Snapshotter(command) => {
            snapshotter_command::run(command, store, &args.global.run_dir)
        }
        YolofsCommand::Pull(command) => pull_command::run(command, &args.global.run_dir),
        YolofsCommand::Docker(command) => docker::run(command, store, &args.global.run_dir),
        YolofsCommand::Worker(command) => worker::run(*command, &args.global.run_dir.run_dir),
        YolofsCommand::Mounter(command) => mounter_command::run(command),
        YolofsCommand::Recorder(command) => {
            recorder::run(command, store, &args.global.run_dir.run_dir)
        }
        YolofsCommand::Learn(command) => learn::run(command, store),
        YolofsCommand::Setup(command) => setup::run(command),
        YolofsCommand::Doctor(command) => doctor::run(command, store, &args.global.run_dir),
        YolofsCommand::Completions(command) => command.print::<Yolofs>(),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, FromArgMatches as _};

    use super::*;

    fn wholly(line: &[&str]) -> Option<Yolofs> {
        let matches = Yolofs::command().try_get_matches_from(line).ok()?;
        Yolofs::from_arg_matches(&matches).ok()
    }

    #[test]
    fn a_mount_is_read_as_by_the_description_of_all_verbs() {
        let lines: [&[&str]; 5] = [
            &["mount", "/a", "/b"],
            &[
                "mount", "-qq", "--store", "/s", "nic:root", "/b", "--nic", "far:7070",
            ],
            &[
                "mount",
                "/a",
                "--run-dir",
                "/r",
                "-v",
                "--boot",
                "none",
                "--",
                "/b",
            ],
            &[
                "mount",
                "/a",
                "/b",
                "--record",
                "/t",
                "--threads",
                "4",
                "--store-max",
                "4K",
            ],
            &["mounter", "/b"],
        ];
        for line in lines {
            let line = [&["yolofs"], line].concat();
            let quick = quickly(line.iter().map(OsString::from).collect());
            assert_eq!(
                format!("{quick:?}"),
                format!("{:?}", wholly(&line)),
                "{line:?}"
            );
            let is_right = !line.contains(&"-qq");
            assert_eq!(quick.is_some(), is_right, "{line:?}");
        }
    }

    #[test]
    fn what_is_wrong_or_wants_help_or_another_verb_is_left_to_the_description_of_all() {
        let lines: [&[&str]; 6] = [
            &["mount"],
            &["mount", "--help"],
            &["mount", "/a", "/b", "--thread", "4"],
            &["mounte", "/a", "/b"],
            &["status"],
            &["--store", "mount", "mount", "/a", "/b"],
        ];
        for line in lines {
            let line = [&["yolofs"], line].concat();
            let quick = quickly(line.iter().map(OsString::from).collect());
            assert!(quick.is_none(), "{line:?}");
        }
    }
}
