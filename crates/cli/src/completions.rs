//! Completion in shells: the scripts call the program, which knows its verbs and options, and the names that
//! there are ([`names`]).

mod names;

use std::ffi::OsString;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_complete::env::{CompleteEnv, Shells};

use crate::exit::Outcome;
use crate::output::{complain, write_out};
pub(crate) use names::{image_names, mountpoints};

/// The variable that names the shell, when a script asks for what may come next.
pub(crate) const VARIABLE: &str = "YOLOFS_COMPLETE";

/// Print a completion script for a shell
///
/// It asks this program for the names of boot images and mounts.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell to print the script for
    shell: Shell,
}

impl CompletionsArgs {
    /// Prints the script for the program `P`.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub(crate) fn print<P: CommandFactory>(&self) -> anyhow::Result<Outcome> {
        write_out(&script(P::command().get_name(), self.shell)?)?;
        Ok(Outcome::Done)
    }
}

/// Returns the script for a program.
///
/// # Errors
/// If there is none for the shell.
pub(crate) fn script(program: &str, shell: Shell) -> std::io::Result<Vec<u8>> {
    let shells = Shells::builtins();
    let shell = shells.completer(&shell.to_string());
    let shell = shell.ok_or(std::io::ErrorKind::Unsupported)?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, program, program, program, &mut script)?;
    Ok(script)
}

/// Gives verbs that are not for users names that nobody types: they would be offered where nothing else fits.
fn out_of_reach(command: Command) -> Command {
    command.mut_subcommands(|verb| {
        let verb = out_of_reach(verb);
        match verb.is_hide_set() {
            // It lasts as long as this process, which ends when it has answered.
            true => {
                let name: &'static str = format!("\u{1}{}", verb.get_name()).leak();
                verb.name(name)
            }
            false => verb,
        }
    })
}

/// Answers a shell that asks what may come next on the command line of `P`; returns whether one does.
pub(crate) fn answered<P: CommandFactory>(line: impl IntoIterator<Item = OsString>) -> bool {
    let asked = CompleteEnv::with_factory(|| out_of_reach(P::command()))
        .var(VARIABLE)
        .try_complete(line, None);
    asked.unwrap_or_else(|error| {
        complain(&error.to_string());
        true
    })
}
