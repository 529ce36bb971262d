//! The daemon of one mount: started by `yolofs mount`, which waits for its first word.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

use anyhow::{Context as _, anyhow, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use host::interrupt::Interrupt;

/// Set for the daemon by the command that starts it: a flag could not be appended to a command
/// line that has a `--`.
pub(super) const NOTIFY_PARENT: &str = "YOLOFS_NOTIFY_PARENT";

/// What the daemon tells the command that started it, once.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub(super) enum Started {
    /// The mount serves.
    Serving {
        /// What somebody should know of it.
        warnings: Vec<String>,
    },
    /// There is no mount.
    Failed {
        /// Why, for people.
        why: String,
    },
}

/// Tells the command that started this process how the start went.
pub(super) fn tell(started: &Started) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, started).context("telling the command that it is served")?;
    writeln!(out)
        .and_then(|()| out.flush())
        .context("telling the command that it is served")
}

/// Waits until the daemon speaks or dies, who holds the only other end of `stdout`; returns `false`
/// if the program is asked to end before.
fn speaks(stdout: &ChildStdout, interrupt: &Interrupt) -> anyhow::Result<bool> {
    loop {
        let mut waits = [
            PollFd::new(stdout.as_fd(), PollFlags::POLLIN),
            PollFd::new(interrupt.fd(), PollFlags::POLLIN),
        ];
        match poll(&mut waits, PollTimeout::NONE) {
            Ok(_) => return Ok(waits[0].any().unwrap_or(true)),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno).context("waiting for the daemon"),
        }
    }
}

/// Starts this program again as a daemon with the same arguments, waits for its first word, and returns the warnings about
/// the mount.
pub(super) fn start(log: &Path) -> anyhow::Result<Vec<String>> {
    let interrupt = Interrupt::install()?;
    let log_file = File::create(log).with_context(|| format!("making {}", log.display()))?;
    let mut daemon = Command::new("/proc/self/exe")
        .args(std::env::args_os().skip(1))
        .env(NOTIFY_PARENT, "true")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log_file)
        .spawn()
        .context("starting the daemon")?;
    let stdout = daemon.stdout.take().context("starting the daemon")?;
    if !speaks(&stdout, &interrupt)? {
        // In a session of its own it does not hear Ctrl-C.
        let pid = i32::try_from(daemon.id()).context("the number of the daemon")?;
        kill(Pid::from_raw(pid), Signal::SIGTERM).context("ending the daemon")?;
        daemon.wait().context("waiting for the daemon's end")?;
        return interrupt.check().map(|()| Vec::new());
    }
    let mut line = String::new();
    BufReader::new(stdout)
        .read_line(&mut line)
        .context("waiting for the daemon")?;
    match serde_json::from_str(&line) {
        Ok(Started::Serving { warnings }) => Ok(warnings),
        Ok(Started::Failed { why }) => Err(anyhow!(why)),
        Err(_) => {
            let status = daemon.wait().context("waiting for the daemon")?;
            bail!(
                "the daemon ended before the mount was ready ({status}); see {}",
                log.display()
            )
        }
    }
}
