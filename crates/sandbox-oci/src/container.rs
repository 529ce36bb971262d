//! What can be done with a container: one file for each command that does more than a few calls.

mod create;
mod exec;
mod inspect;
mod update;

use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use create::{Creation, create};
pub use exec::{Execution, exec};
pub use inspect::{Listed, list, processes, state};
pub use update::update;

use crate::cgroup::Frozen;
use crate::error::{OciError, Result, at};
use crate::hooks;
use crate::init::{FAILED, GO, MESSAGE_MAX_BYTES};
pub use crate::state::now;
use crate::state::{Home, Saved, Status};

/// How long a process may take to come to its program.
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns whether a container was made by this program.
///
/// # Errors
/// If its name is invalid.
pub fn is_ours(root: &Path, id: &str) -> Result<bool> {
    Ok(Home::of(root, id)?.is_ours())
}

/// Has a container's process become its program.
///
/// # Errors
/// If it waits for nothing, or cannot be executed.
pub fn start(root: &Path, id: &str) -> Result<()> {
    let home = Home::of(root, id)?;
    let saved = home.load()?;
    match home.status(&saved)? {
        Status::Created => {}
        Status::Stopped => {
            return Err(OciError::State(
                "cannot start a container that has stopped".to_owned(),
            ));
        }
        _ => {
            return Err(OciError::State(
                "cannot start an already running container".to_owned(),
            ));
        }
    }
    let mut process = crate::console::connect(&home.socket(), PATIENCE)?;
    process
        .set_read_timeout(Some(PATIENCE))
        .map_err(at("watching", home.socket()))?;
    process
        .write_all(&[GO])
        .map_err(at("starting", &saved.bundle))?;
    let told = heard(&mut process, "starting")?;
    // Whoever comes now is too late.
    std::fs::remove_file(home.socket()).map_err(at("removing", home.socket()))?;
    if let Some(failure) = told {
        return Err(failure);
    }
    if let Err(error) = hooks::run(
        Some(&saved.poststart),
        &saved.state(Status::Running).to_string(),
    ) {
        saved.groups.kill()?;
        return Err(error);
    }
    Ok(())
}

/// Reads until the other side is closed, which executing its program does, or tells of a failure.
fn heard(process: &mut UnixStream, doing: &'static str) -> Result<Option<OciError>> {
    let mut kind = [0];
    match process.read(&mut kind).map_err(at(doing, "a process"))? {
        0 => Ok(None),
        _ => failure(process, kind[0]).map(Some),
    }
}

/// Reads why a process failed, behind the byte that says that it did.
fn failure(process: &mut UnixStream, kind: u8) -> Result<OciError> {
    let mut text = Vec::new();
    let mut bounded = process.take(MESSAGE_MAX_BYTES as u64);
    bounded
        .read_to_end(&mut text)
        .map_err(at("hearing", "a process"))?;
    let text = String::from_utf8_lossy(&text);
    let text = text.trim_start_matches("unable to start container process: ");
    Ok(match kind {
        FAILED => OciError::Process(text.to_owned()),
        other => OciError::Process(format!("it said {other}")),
    })
}

/// Which processes a signal is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// The first process.
    First,
    /// All processes.
    All,
}

/// Sends a signal.
///
/// # Errors
/// If the first process has ended, unless all are meant.
pub fn kill(root: &Path, id: &str, signal: i32, whom: Whom) -> Result<()> {
    let home = Home::of(root, id)?;
    let saved = home.load()?;
    let failed = || at("signalling", format!("container {id}"));
    if whom == Whom::All {
        for pid in saved.groups.processes()? {
            let process = rawio::pidfd::PidFd::open(pid);
            // One that has ended since needs no signal.
            let _ended = process.and_then(|process| process.signal_number(signal));
        }
        return Ok(());
    }
    let Some(process) = saved.process()? else {
        return Err(OciError::State("container not running".to_owned()));
    };
    process.signal_number(signal).map_err(failed())?;
    // One that is frozen dies when it goes on.
    if signal == nix::sys::signal::Signal::SIGKILL as i32 && saved.groups.is_frozen()? {
        saved.groups.freeze(Frozen::No)?;
    }
    Ok(())
}

/// Whether a container is ended that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Running {
    /// It is ended.
    IsEnded,
    /// It is an error.
    IsRefused,
}

/// Removes a container, and its resources.
///
/// # Errors
/// If it runs and must not be ended.
pub fn delete(root: &Path, id: &str, running: Running) -> Result<()> {
    let home = Home::of(root, id)?;
    let saved = home.load()?;
    let status = home.status(&saved)?;
    let is_alive = matches!(status, Status::Running | Status::Paused);
    if is_alive && running == Running::IsRefused {
        let word = status.word();
        return Err(OciError::State(format!(
            "cannot delete container {id} that is not stopped: {word}"
        )));
    }
    // Its first process takes the others along only if they are in its namespace.
    saved.groups.kill()?;
    saved.groups.remove()?;
    let state = saved.state(Status::Stopped).to_string();
    let hooked = hooks::run(Some(&saved.poststop), &state);
    home.remove()?;
    hooked
}

/// Freezes a container.
///
/// # Errors
/// If it does not run.
pub fn pause(root: &Path, id: &str) -> Result<()> {
    let (home, saved) = running(root, id)?;
    match home.status(&saved)? {
        Status::Running => saved.groups.freeze(Frozen::Yes),
        other => Err(OciError::State(format!(
            "container not running: {}",
            other.word()
        ))),
    }
}

/// Resumes a frozen container.
///
/// # Errors
/// If it is not frozen.
pub fn resume(root: &Path, id: &str) -> Result<()> {
    let (home, saved) = running(root, id)?;
    match home.status(&saved)? {
        Status::Paused => saved.groups.freeze(Frozen::No),
        _ => Err(OciError::State("container not paused".to_owned())),
    }
}

fn running(root: &Path, id: &str) -> Result<(Home, Saved)> {
    let home = Home::of(root, id)?;
    let saved = home.load()?;
    Ok((home, saved))
}

/// Writes a process's number where the engine looks for it: whole, whenever it looks.
fn write_pid_file(path: &Path, pid: u32) -> Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    std::fs::write(&new, pid.to_string()).map_err(at("writing", &new))?;
    std::fs::rename(&new, path).map_err(at("renaming", &new))
}

/// Ends a process that did not come to its program, and reaps it.
fn end(process: &rawio::pidfd::PidFd) {
    use nix::sys::wait::{Id, WaitPidFlag, waitid};
    use std::os::fd::AsFd as _;
    let _gone = process.signal(nix::sys::signal::Signal::SIGKILL);
    let _reaped = waitid(Id::PIDFd(process.as_fd()), WaitPidFlag::WEXITED);
}

/// A path by which an open directory is short enough for the address of a socket.
fn short(dir: &std::fs::File, name: &str) -> PathBuf {
    Path::new("/proc/self/fd")
        .join(dir.as_raw_fd().to_string())
        .join(name)
}
