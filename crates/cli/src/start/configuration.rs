//! The configuration file: defaults for flags that a machine always wants.
//!
//! A flag wins over a variable of the environment, that over the file, and the file over what is built in.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use clap::Command;
use toml::{Table, Value};

/// The file.
const FILE: &str = "/etc/yolofs/yolofs.toml";
/// The variable that names another.
const FILE_ENV: &str = "YOLOFS_CONFIG";
/// Most bytes of it.
const MAX_BYTES: u64 = 64 << 10;
/// The flags that it may set: the store's, and where mounts are described.
const KEYS: [&str; 6] = [
    "store",
    "store-max",
    "store-group",
    "tiers",
    "run-dir",
    "state-dir",
];

/// Returns the command line with the defaults of the file, if there is one.
///
/// # Errors
/// If there is one and it cannot be understood.
pub(crate) fn applied(command: Command) -> anyhow::Result<Command> {
    let named = std::env::var_os(FILE_ENV).filter(|name| !name.is_empty());
    let file = named.as_deref().map_or(Path::new(FILE), Path::new);
    match read(file)? {
        Some(text) => with(command, &text).with_context(|| format!("reading {}", file.display())),
        None if named.is_some() => bail!("{FILE_ENV} names {}, which is not there", file.display()),
        None => Ok(command),
    }
}

fn read(file: &Path) -> anyhow::Result<Option<String>> {
    let opened = match fs::File::open(file) {
        // Who may not read it takes what is built in.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
            ) =>
        {
            return Ok(None);
        }
        opened => opened.with_context(|| format!("opening {}", file.display()))?,
    };
    let mut text = String::new();
    let read = opened.take(MAX_BYTES + 1).read_to_string(&mut text);
    read.with_context(|| format!("reading {}", file.display()))?;
    ensure!(
        text.len() as u64 <= MAX_BYTES,
        "{} is longer than {MAX_BYTES} bytes",
        file.display()
    );
    Ok(Some(text))
}

fn with(mut command: Command, text: &str) -> anyhow::Result<Command> {
    let table: Table = text.parse().context("it is no TOML")?;
    for (key, value) in table {
        ensure!(
            KEYS.contains(&key.as_str()),
            "there is no setting {key:?}: there are {}",
            KEYS.join(", ")
        );
        let value = match value {
            Value::String(text) => text,
            Value::Integer(number) => number.to_string(),
            other => bail!("{key} = {other}: a text or a number is needed"),
        };
        // Clap keeps defaults for as long as the process lives.
        let value: &'static str = Box::leak(value.into_boxed_str());
        command = set(command, &key, value);
    }
    Ok(command)
}

/// Sets the default of a flag, of the program and of its verbs.
fn set(command: Command, key: &str, value: &'static str) -> Command {
    let command = command.mut_args(|arg| {
        if arg.get_long() == Some(key) {
            arg.default_value(value)
        } else {
            arg
        }
    });
    command.mut_subcommands(|verb| set(verb, key, value))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::yolofs::Yolofs;

    /// Returns the default of a flag with a configuration of this text.
    fn default(text: &str, verb: Option<&str>, id: &str) -> Option<String> {
        let command = with(Yolofs::command(), text).unwrap();
        let command = match verb {
            Some(verb) => command.find_subcommand(verb).unwrap().clone(),
            None => command,
        };
        let mut args = command.get_arguments();
        let arg = args.find(|arg| arg.get_long() == Some(id)).unwrap();
        let values = arg.get_default_values();
        values
            .first()
            .map(|value| value.to_string_lossy().into_owned())
    }

    #[test]
    fn every_setting_is_the_default_of_a_flag() {
        for key in KEYS {
            let text = format!("{key} = \"/x\"\n");
            let verb = (key == "state-dir").then_some("node");
            assert_eq!(default(&text, verb, key).as_deref(), Some("/x"), "{key}");
            assert_ne!(default("", verb, key).as_deref(), Some("/x"), "{key}");
        }
        assert_eq!(
            default("store-max = 4096\n", None, "store-max").as_deref(),
            Some("4096")
        );
    }

    #[test]
    fn what_it_does_not_know_is_told() {
        let said = |text| format!("{:#}", with(Yolofs::command(), text).unwrap_err());
        assert!(
            said("stor = \"/x\"\n").starts_with("there is no setting \"stor\": there are store,")
        );
        assert!(said("store = [1]\n").contains("a text or a number"));
        assert!(said("store =").starts_with("it is no TOML"));
    }
}
