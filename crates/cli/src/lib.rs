//! The programs `bootimg`, `yolofs` and `nicfetch`: they parse, assemble the libraries, and own every decision
//! about processes, directories and messages. Nothing below this crate prints, exits or reads the
//! environment.

#![forbid(unsafe_code)]
// They panic when nobody reads any more (`| head`); see `output`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod admission;
pub mod bootimg;
mod completions;
mod confinement;
mod control;
mod disk_writes;
mod exit;
mod interrupt;
mod layers;
mod line_watch;
mod logging;
mod memory_group;
mod mount_table;
mod mountpoint;
mod net_probe;
mod nic;
pub mod nicfetch;
mod node;
mod output;
mod own_dir;
mod prewarming;
mod read_around;
mod recorded;
mod run_dir;
mod sandbox;
mod size;
mod source;
mod status;
mod store;
mod tiers;
mod undo;
mod until;
mod workload;
mod xattrs;
pub mod yolofs;

use clap::CommandFactory as _;

/// Returns the command line of `bootimg`, for manual pages and completions.
#[must_use]
pub fn bootimg_command() -> clap::Command {
    bootimg::Bootimg::command()
}

/// Returns the command line of `yolofs`, for manual pages and completions.
#[must_use]
pub fn yolofs_command() -> clap::Command {
    yolofs::Yolofs::command()
}

/// Returns the command line of `nicfetch`, for manual pages and completions.
#[must_use]
pub fn nicfetch_command() -> clap::Command {
    nicfetch::Nicfetch::command()
}
