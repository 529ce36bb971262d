//! The command line, which is that of `runc`.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use sandbox_oci::container::Execution;
use sandbox_oci::{OciError, Result};

/// Runs containers as runc does, faster; what it cannot honour, it hands to runc
#[derive(Debug, Parser)]
#[command(name = "sandbox-oci", version)]
pub(crate) struct Args {
    /// Where the state of containers is kept
    #[arg(long, value_name = "DIR", default_value = "/run/runc")]
    pub(crate) root: PathBuf,
    /// Write errors to this file, too
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// How they are written
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text")]
    pub(crate) log_format: LogFormat,
    /// Accepted as runc does, without an effect
    #[arg(long)]
    pub(crate) debug: bool,
    /// Have systemd make control groups: such containers are handed to runc
    #[arg(long)]
    pub(crate) systemd_cgroup: bool,
    /// Accepted as runc does, without an effect
    #[arg(long, value_name = "WHETHER")]
    pub(crate) rootless: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How lines of a log look
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// For programs
    Json,
}

/// How an answer looks
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Table,
    /// For programs
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a container, up to the moment before its program
    Create(Create),
    /// Start the program of a container
    Start { id: String },
    /// Print the state of a container
    State { id: String },
    /// Send a signal to a container
    Kill {
        id: String,
        /// A name or a number
        #[arg(default_value = "SIGTERM")]
        signal: String,
        /// Send it to all processes
        #[arg(long, short)]
        all: bool,
    },
    /// Remove a container
    Delete {
        id: String,
        /// End it first if it runs
        #[arg(long, short)]
        force: bool,
    },
    /// Execute another program in a container
    Exec(Exec),
    /// Freeze a container
    Pause { id: String },
    /// Let a frozen container go on
    Resume { id: String },
    /// List the processes of a container
    Ps {
        id: String,
        /// How the list looks
        #[arg(long, short, value_enum, default_value = "table")]
        format: Format,
    },
    /// Change the limits of a container
    Update {
        id: String,
        /// A file with them, as a specification has them; `-` is standard input
        #[arg(long, short, value_name = "FILE")]
        resources: String,
    },
    /// List containers
    List {
        /// How the list looks
        #[arg(long, short, value_enum, default_value = "table")]
        format: Format,
        /// Names only
        #[arg(long, short)]
        quiet: bool,
    },
    /// Print what runc can do, which is what it is handed
    Features,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Create {
    pub(crate) id: String,
    /// The directory with config.json
    #[arg(long, short, value_name = "DIR", default_value = ".")]
    pub(crate) bundle: PathBuf,
    /// Write the number of the first process to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) pid_file: Option<PathBuf>,
    /// Send the terminal to this socket
    #[arg(long, value_name = "SOCKET")]
    pub(crate) console_socket: Option<PathBuf>,
    /// Such containers are handed to runc
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) preserve_fds: u32,
    /// Such containers are handed to runc
    #[arg(long)]
    pub(crate) no_pivot: bool,
    /// Such containers are handed to runc
    #[arg(long)]
    pub(crate) no_new_keyring: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Exec {
    pub(crate) id: String,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<String>,
    /// A file with the process, as a specification has it
    #[arg(long, short, value_name = "FILE")]
    pub(crate) process: Option<PathBuf>,
    /// Where it starts
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,
    /// A variable
    #[arg(long, short, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// Its user and group, by number
    #[arg(long, short, value_name = "UID[:GID]", value_parser = user)]
    pub(crate) user: Option<(u32, u32)>,
    /// It has a terminal
    #[arg(long, short)]
    pub(crate) tty: bool,
    /// Leave it running
    #[arg(long, short)]
    pub(crate) detach: bool,
    /// Write its number to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) pid_file: Option<PathBuf>,
    /// Send the terminal to this socket
    #[arg(long, value_name = "SOCKET")]
    pub(crate) console_socket: Option<PathBuf>,
}

impl From<Exec> for Execution {
    fn from(exec: Exec) -> Self {
        Self {
            id: exec.id,
            process: exec.process,
            arguments: exec.arguments,
            variables: exec.env,
            directory: exec.cwd,
            user: exec.user,
            terminal: exec.tty,
            pid_file: exec.pid_file,
            console_socket: exec.console_socket,
            is_left: exec.detach,
        }
    }
}

impl Command {
    /// Returns the container that a command is about, which must be there.
    pub(crate) fn container(&self) -> Option<&str> {
        match self {
            Self::Start { id }
            | Self::State { id }
            | Self::Kill { id, .. }
            | Self::Delete { id, .. }
            | Self::Pause { id }
            | Self::Resume { id }
            | Self::Ps { id, .. }
            | Self::Update { id, .. }
            | Self::Exec(Exec { id, .. }) => Some(id),
            Self::Create(_) | Self::List { .. } | Self::Features => None,
        }
    }
}

fn user(text: &str) -> std::result::Result<(u32, u32), String> {
    let (uid, gid) = text.split_once(':').unwrap_or((text, "0"));
    let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is no number"));
    Ok((number(uid)?, number(gid)?))
}

/// Returns the number of a signal: `9`, `KILL` or `SIGKILL`.
pub(crate) fn signal(text: &str) -> Result<i32> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let upper = text.to_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let known: std::result::Result<nix::sys::signal::Signal, _> = format!("SIG{name}").parse();
    known
        .map(|signal| signal as i32)
        .map_err(|_| OciError::Invalid(format!("unknown signal {text:?}")))
}
