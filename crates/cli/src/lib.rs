//! The programs `bootimg`, `yolofs` and `nicfetch`: they parse, assemble the libraries, and own every decision
//! about processes, directories and messages. Nothing below this crate prints, exits or reads the
//! environment.

#![forbid(unsafe_code)]
// They panic when nobody reads any more (`| head`); see `output`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod api_words;
pub mod bootimg;
mod completions;
mod exit;
mod global_args;
mod image_args;
mod layers_text;
mod logging;
mod nic_args;
pub mod nicfetch;
mod output;
mod run_dir_arg;
mod stage;
mod start;
mod status_text;
mod store_args;
mod worker_user;
mod xattrs_arg;
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

/// Returns the completion script of a program for a shell.
///
/// # Errors
/// If there is none for the shell.
pub fn completion_script(program: &str, shell: clap_complete::Shell) -> std::io::Result<Vec<u8>> {
    completions::script(program, shell)
}
