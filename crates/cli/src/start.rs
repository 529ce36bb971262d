//! How the programs begin: with the command line, the configuration file, and how much is to be said.

mod configuration;

pub(crate) use configuration::applied as with_configuration;

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, FromArgMatches, Subcommand};
use tracing::level_filters::LevelFilter;

use crate::completions;
use crate::output::complain;

/// How much is said on standard error.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[command(next_help_heading = "Messages")]
pub(crate) struct Talk {
    /// Say only what went wrong: no warnings, and no progress
    #[arg(long, short, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Say more: once for what is done, twice for every detail
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

impl Talk {
    /// Returns whether more is wanted than a line for each thing.
    pub(crate) const fn is_verbose(self) -> bool {
        self.verbose > 0
    }

    const fn level(self) -> LevelFilter {
        match (self.quiet, self.verbose) {
            (true, _) => LevelFilter::ERROR,
            (false, 0) => LevelFilter::WARN,
            (false, 1) => LevelFilter::INFO,
            (false, _) => LevelFilter::DEBUG,
        }
    }
}

/// Reads the command line of a program, with the defaults of the configuration file, and has its messages shown as
/// it says. Ends the process if the command line or the file is wrong, or only help is wanted.
pub(crate) fn begin<P: CommandFactory + FromArgMatches>(talk: impl Fn(&P) -> Talk) -> P {
    begin_quickly(talk, |_| None)
}

/// Does what [`begin`] does, after `quickly` has tried to read the command line.
pub(crate) fn begin_quickly<P: CommandFactory + FromArgMatches>(
    talk: impl Fn(&P) -> Talk,
    quickly: impl FnOnce(Vec<OsString>) -> Option<P>,
) -> P {
    if completions::answered::<P>(std::env::args_os()) {
        std::process::exit(0);
    }
    let args = quickly(std::env::args_os().collect()).unwrap_or_else(wholly::<P>);
    let wanted = talk(&args);
    crate::logging::init(wanted.level());
    if !wanted.quiet {
        crate::output::show_progress();
    }
    args
}

/// Reads the command line of this process by the description of all verbs.
fn wholly<P: CommandFactory + FromArgMatches>() -> P {
    let command = match configuration::applied(P::command()) {
        Ok(command) => command,
        Err(error) => {
            complain(&format!("{}: {error:#}", P::command().get_name()));
            std::process::exit(2);
        }
    };
    parse::<P>(command, std::env::args_os()).unwrap_or_else(|error| error.exit())
}

/// Reads a command line that begins with one of the verbs `V` by the description `F` of these alone: that of all verbs takes a
/// third of the time in which a program starts. Returns none for every other line, and for one that is wrong or wants help: what is
/// said of it names all verbs.
pub(crate) fn of_few<V: Subcommand, F: CommandFactory + FromArgMatches>(
    line: Vec<OsString>,
) -> Option<F> {
    let verb = line.get(1)?.to_str()?;
    if !V::has_subcommand(verb) {
        return None;
    }
    let command = configuration::applied(F::command()).ok()?;
    let matches = command.try_get_matches_from(line).ok()?;
    F::from_arg_matches(&matches).ok()
}

fn parse<P: CommandFactory + FromArgMatches>(
    command: Command,
    line: impl IntoIterator<Item = OsString>,
) -> Result<P, clap::Error> {
    // Made again for an error only: it takes a part of the time in which a program starts.
    let matches = command.try_get_matches_from(line);
    let matches = matches.map_err(|error| without_hidden(error, &P::command()))?;
    P::from_arg_matches(&matches).map_err(|error| error.format(&mut P::command()))
}

/// Removes verbs that are not for users from what an error suggests for a typo.
fn without_hidden(mut error: clap::Error, command: &Command) -> clap::Error {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let is_shown = |name: &String| {
        let verb = command.find_subcommand(name);
        verb.is_none_or(|verb| !verb.is_hide_set())
    };
    // Nothing else is called so: an empty list would be a line.
    error.remove(ContextKind::Suggested);
    if let Some(other) = elsewhere(&error, command) {
        let tip = StyledStr::from(format!("that is a verb of {other}"));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    match error.remove(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(names)) => {
            let names: Vec<_> = names.into_iter().filter(is_shown).collect();
            if !names.is_empty() {
                error.insert(
                    ContextKind::SuggestedSubcommand,
                    ContextValue::Strings(names),
                );
            }
        }
        Some(ContextValue::String(name)) if is_shown(&name) => {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::String(name));
        }
        _ => {}
    }
    error
}

/// Returns how another of our programs is told to do what this one was asked for.
fn elsewhere(error: &clap::Error, command: &Command) -> Option<String> {
    let Some(ContextValue::String(verb)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let programs = [
        crate::bootimg_command(),
        crate::yolofs_command(),
        crate::nicfetch_command(),
    ];
    let other = programs.into_iter().find(|program| {
        let found = program.find_subcommand(verb);
        program.get_name() != command.get_name() && found.is_some_and(|verb| !verb.is_hide_set())
    })?;
    Some(format!("{}: {} {verb}", other.get_name(), other.get_name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yolofs::Yolofs;

    fn complaint(line: &[&str]) -> String {
        let line = line.iter().map(OsString::from);
        let parsed = parse::<Yolofs>(Yolofs::command(), line);
        parsed
            .err()
            .map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn only_verbs_for_users_are_suggested() {
        for typo in ["worke", "mounte", "recorde"] {
            let said = complaint(&["yolofs", typo]);
            assert!(said.contains(typo), "{said}");
            for hidden in ["'worker'", "'mounter'", "'recorder'"] {
                assert!(!said.contains(hidden), "{said}");
            }
        }
        let said = complaint(&["yolofs", "record"]);
        assert!(said.contains("a verb of bootimg: bootimg record"), "{said}");
        let said = complaint(&["yolofs", "nothing"]);
        assert!(!said.contains("tip") && !said.contains("\n\n\n"), "{said}");
        let said = complaint(&["yolofs", "statu"]);
        assert!(said.contains("'status'"), "{said}");
    }

    #[test]
    fn more_and_less_is_said_as_asked_for() {
        let level = |quiet, verbose| Talk { quiet, verbose }.level();
        assert_eq!(level(true, 0), LevelFilter::ERROR);
        assert_eq!(level(false, 0), LevelFilter::WARN);
        assert_eq!(level(false, 1), LevelFilter::INFO);
        assert_eq!(level(false, 3), LevelFilter::DEBUG);
        let said = complaint(&["yolofs", "status", "-q", "-v"]);
        assert!(said.contains("cannot be used with"), "{said}");
    }
}
