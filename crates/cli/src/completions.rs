//! Completion scripts for shells.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::exit::Outcome;
use crate::output::write_out;

/// Print a completion script for a shell
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
        let mut command = P::command();
        let name = command.get_name().to_owned();
        // Through memory: the generator panics where it cannot write.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        write_out(&script)?;
        Ok(Outcome::Done)
    }
}
