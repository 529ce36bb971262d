//! Starting the daemon in the background, and reporting the result of the start.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::process::{Command, Stdio};

use anyhow::{Context as _, anyhow, bail};
use serde::{Deserialize, Serialize};

use super::engine::DockerPlace;
use super::station::Station;
use bootstore::store::StoreSettings;
use host::run_dir::{RUN_DIR_ENV, RunDir};

/// Most bytes of the line in which a daemon says how its start went.
const LINE_MAX: u64 = 64 << 10;

/// The result of a start, which a worker reports to its guardian, and a guardian to the command that started it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Started {
    /// It serves.
    Serving,
    /// It failed to start.
    Failed {
        /// The reason, for people.
        why: String,
    },
}

/// What the daemon does when nothing is wanted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenIdle {
    /// It waits for the next command: the user started it explicitly.
    Wait,
    /// It ends: a command started it.
    End,
}

/// Writes the result of the start to standard output.
pub fn tell(started: &Started) -> anyhow::Result<()> {
    let telling = "telling how the start went";
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, started).context(telling)?;
    writeln!(out).and_then(|()| out.flush()).context(telling)
}

/// Waits for the result of a process's start; `None` if it ends without one.
pub fn first_word(stdout: impl Read) -> Option<Started> {
    let mut line = String::new();
    // Ends when the process speaks or dies: it holds the only other end.
    BufReader::new(stdout.take(LINE_MAX))
        .read_line(&mut line)
        .ok()?;
    serde_json::from_str(&line).ok()
}

/// Returns the command that starts this program to serve a Docker.
pub fn ourselves(store: &StoreSettings, run_dir: &RunDir, place: &DockerPlace) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .envs(store.as_env())
        .env(RUN_DIR_ENV, run_dir.path())
        .args(["docker", "serve", "--data-root"])
        .arg(&place.data_root)
        .stdin(Stdio::null());
    if let Some(store) = &place.store {
        command.arg("--containerd").arg(&store.address);
    }
    command
}

/// Starts the daemon for a Docker in the background, and waits until it serves.
///
/// # Errors
/// If it cannot serve.
pub fn start_daemon(
    station: &Station,
    store: &StoreSettings,
    run_dir: &RunDir,
    place: &DockerPlace,
) -> anyhow::Result<()> {
    let log = station.log();
    let log_file = File::create(&log).with_context(|| format!("making {}", log.display()))?;
    let mut daemon = ourselves(store, run_dir, place)
        .arg("--background")
        .current_dir("/")
        .stdout(Stdio::piped())
        .stderr(log_file)
        .spawn()
        .context("starting the daemon")?;
    let stdout = daemon.stdout.take().context("starting the daemon")?;
    match first_word(stdout) {
        Some(Started::Serving) => Ok(()),
        Some(Started::Failed { why }) => Err(anyhow!(why)),
        None => {
            let status = daemon.wait().context("waiting for the daemon")?;
            bail!(
                "the daemon ended before it served ({status}); see {}",
                log.display()
            )
        }
    }
}
