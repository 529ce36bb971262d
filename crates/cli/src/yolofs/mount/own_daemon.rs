//! The daemon of one mount: a copy of the process of `yolofs mount`, which waits for its first word.
//!
//! A process can be copied as long as it has one thread, and to find a mount point takes another one. So the copy is made first, and
//! waits until it is told what to serve. It is not this program executed anew: the program would be loaded once more, and would
//! parse the same command line.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, dup2_stderr, dup2_stdin, dup2_stdout, setsid};
use serde::{Deserialize, Serialize};

use crate::exit::{Outcome, report};
use host::interrupt::{Interrupt, unblock_signals};

/// What the daemon tells the command that started it, once.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
enum Started {
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

/// What the daemon calls when it serves, with the warnings about the mount.
type Serving<'a> = &'a dyn Fn(Vec<String>) -> anyhow::Result<()>;

/// A process that becomes the daemon of a mount. It ends if this is dropped before.
#[derive(Debug)]
pub(super) struct OwnDaemon {
    pid: Pid,
    place: PipeWriter,
    word: PipeReader,
}

impl OwnDaemon {
    /// Copies this process. The copy calls `serve` once it knows the mount point, with what to call when it serves; it logs to the
    /// file that `log` names.
    ///
    /// # Errors
    /// If this process has threads, or the system refuses.
    pub(super) fn prepare(
        log: impl FnOnce(&Path) -> PathBuf,
        serve: impl FnOnce(&Path, Serving<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let doing = "making the process of the daemon";
        let (to_serve, place) = std::io::pipe().context(doing)?;
        let (word, tell) = std::io::pipe().context(doing)?;
        // Both processes have all four ends: of the other's, the copy must not keep the first one open.
        let others = Cell::new(Some((place, word)));
        let pid = rawio::fork::divide(|| {
            drop(others.take());
            match awaited(to_serve) {
                Ok(Some(mountpoint)) => become_daemon(&mountpoint, log, serve, tell),
                // It is not needed, or this is all that can be said.
                Ok(None) => 0,
                Err(error) => tell_failure(tell, &error),
            }
        });
        let pid = pid.context(doing)?;
        let (place, word) = others.into_inner().context(doing)?;
        Ok(Self {
            pid: Pid::from_raw(i32::try_from(pid).context(doing)?),
            place,
            word,
        })
    }

    /// Has the daemon serve at a mount point, waits for its first word, and returns the warnings about the mount.
    ///
    /// # Errors
    /// What the daemon says of why there is no mount, or if it ended without a word.
    pub(super) fn start(self, mountpoint: &Path, log: &Path) -> anyhow::Result<Vec<String>> {
        let Self {
            pid,
            mut place,
            word,
        } = self;
        let interrupt = Interrupt::install()?;
        let line = [mountpoint.as_os_str().as_bytes(), &[0]].concat();
        // If the daemon is gone, nothing comes from it either.
        let _told = place.write_all(&line);
        drop(place);
        if !speaks(&word, &interrupt)? {
            // In a session of its own it does not hear Ctrl-C.
            kill(pid, Signal::SIGTERM).context("ending the daemon")?;
            waitpid(pid, None).context("waiting for the daemon's end")?;
            return interrupt.check().map(|()| Vec::new());
        }
        let mut line = String::new();
        BufReader::new(word)
            .read_line(&mut line)
            .context("waiting for the daemon")?;
        match serde_json::from_str(&line) {
            Ok(Started::Serving { warnings }) => Ok(warnings),
            Ok(Started::Failed { why }) => Err(anyhow!(why)),
            Err(_) => {
                let end = match waitpid(pid, None).context("waiting for the daemon")? {
                    WaitStatus::Exited(_, code) => format!("exit status: {code}"),
                    WaitStatus::Signaled(_, signal, _) => format!("signal: {signal}"),
                    other => format!("{other:?}"),
                };
                bail!(
                    "the daemon ended before the mount was ready ({end}); see {}",
                    log.display()
                )
            }
        }
    }
}

/// Waits until the daemon speaks or dies, who holds the only other end of `word`; returns `false`
/// if the program is asked to end before.
fn speaks(word: &PipeReader, interrupt: &Interrupt) -> anyhow::Result<bool> {
    loop {
        let mut waits = [
            PollFd::new(word.as_fd(), PollFlags::POLLIN),
            PollFd::new(interrupt.fd(), PollFlags::POLLIN),
        ];
        match poll(&mut waits, PollTimeout::NONE) {
            Ok(_) => return Ok(waits[0].any().unwrap_or(true)),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno).context("waiting for the daemon"),
        }
    }
}

/// Waits for the place to serve at; returns none if the process is not needed.
fn awaited(mut place: PipeReader) -> anyhow::Result<Option<PathBuf>> {
    // A session of its own: neither Ctrl-C nor the end of the terminal is meant for a daemon.
    setsid().context("leaving the terminal's session")?;
    // Until there is something to be undone, they end this process at once.
    unblock_signals()?;
    let mut bytes = Vec::new();
    place
        .read_to_end(&mut bytes)
        .context("waiting for the mount point")?;
    // Without its end, whoever started this was ended before it had told.
    let is_whole = bytes.pop() == Some(0);
    Ok(is_whole.then(|| OsString::from_vec(bytes).into()))
}

/// Serves, and tells once how the start went. Returns the exit code.
fn become_daemon(
    mountpoint: &Path,
    log: impl FnOnce(&Path) -> PathBuf,
    serve: impl FnOnce(&Path, Serving<'_>) -> anyhow::Result<()>,
    tell: PipeWriter,
) -> u8 {
    let tell = Cell::new(Some(tell));
    let serving = |warnings| match tell.take() {
        Some(pipe) => say(pipe, &Started::Serving { warnings }),
        None => Ok(()),
    };
    let result = log_to(&log(mountpoint)).and_then(|()| serve(mountpoint, &serving));
    match (result, tell.take()) {
        (Err(error), Some(pipe)) => tell_failure(pipe, &error),
        (result, _) => {
            let code = u8::from(result.is_err());
            let _same = report("yolofs", &result.map(|()| Outcome::Done));
            code
        }
    }
}

/// Detaches this process from the terminal of whoever started it.
fn log_to(log: &Path) -> anyhow::Result<()> {
    let log_file = File::create(log).with_context(|| format!("making {}", log.display()))?;
    let mut null = File::options();
    let null = null.read(true).write(true).open("/dev/null");
    let null = null.context("opening /dev/null")?;
    dup2_stdin(&null)
        .and_then(|()| dup2_stdout(&null))
        .and_then(|()| dup2_stderr(&log_file))
        .context("leaving the terminal")
}

/// Tells the command that started this process how the start went.
fn say(mut pipe: PipeWriter, started: &Started) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(started).context("writing JSON")?;
    line.push(b'\n');
    let told = pipe.write_all(&line);
    told.context("telling the command that it is served")
}

/// Tells that there is no mount. Returns the exit code.
fn tell_failure(pipe: PipeWriter, error: &anyhow::Error) -> u8 {
    let why = format!("{error:#}");
    // Who does not listen any more sees that there is no mount.
    let _told = say(pipe, &Started::Failed { why });
    1
}
