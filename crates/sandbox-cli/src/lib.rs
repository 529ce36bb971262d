//! The program `sandbox`: a daemon of lean sandboxes, and its command line.
//!
//! It is a program of its own and not a part of `yolofs`: a node that only runs sandboxes needs no file
//! system, no registry and no engine.
//!
//! ```
//! let command = sandbox_cli::command();
//! assert!(command.find_subcommand("run").is_some());
//! ```

#![forbid(unsafe_code)]
// They panic when nobody reads any more (`| head`); see `text`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod run;
mod serve;
mod show;
mod text;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

/// Runs the command line, and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let args = args::Sandbox::parse();
    match run::run(&args) {
        Ok(code) => code,
        Err(error) => {
            text::complain(&format!(
                "sandbox: {}",
                text::with_flags(&format!("{error:#}"))
            ));
            ExitCode::from(run::FAILED)
        }
    }
}

/// Returns the definition of the command line, for manual pages and completions.
#[must_use]
pub fn command() -> clap::Command {
    args::Sandbox::command()
}
