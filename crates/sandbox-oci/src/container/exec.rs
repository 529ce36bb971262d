//! Another process in a container that runs.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};
use oci_spec::runtime::LinuxSeccomp;
use rawio::child::Birth;
use rawio::pidfd::PidFd;
use serde_json::Value;

use super::{PATIENCE, end, heard, running, write_pid_file};
use crate::error::{OciError, Result, at};
use crate::init::{join_keyring, tell};
use crate::plan::process::ProcessPlan;
use crate::seccomp::Filter;
use crate::state::{Saved, Status};
use crate::{console, identity};

/// The parameters of an execution.
#[derive(Clone, Debug, Default)]
pub struct Execution {
    /// The container.
    pub id: String,
    /// A file with its process, as a specification has it.
    pub process: Option<PathBuf>,
    /// Without that file: its arguments, in a process as the container's first.
    pub arguments: Vec<String>,
    /// Variables that it has beside those.
    pub variables: Vec<String>,
    /// Where it starts, if elsewhere.
    pub directory: Option<PathBuf>,
    /// Its user and group, if they differ.
    pub user: Option<(u32, u32)>,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// Where its number is written.
    pub pid_file: Option<PathBuf>,
    /// Where its terminal is sent.
    pub console_socket: Option<PathBuf>,
    /// Whether the caller does not wait for its end.
    pub is_left: bool,
}

/// Executes a program in a container. Returns how it ended, if the caller waits for that.
///
/// # Errors
/// If the container does not run; or if the process has fields that are not honoured, where `runc` cannot help.
pub fn exec(root: &Path, execution: &Execution) -> Result<Option<u8>> {
    let (home, saved) = running(root, &execution.id)?;
    let first = match home.status(&saved)? {
        Status::Running | Status::Created => saved.process()?,
        Status::Paused => {
            return Err(OciError::State(
                "cannot exec in a paused container".to_owned(),
            ));
        }
        Status::Stopped => None,
    };
    let Some(first) = first else {
        return Err(OciError::State(
            "cannot exec in a stopped container".to_owned(),
        ));
    };
    let plan = ProcessPlan::new(&process_of(execution, &saved)?)?;
    if plan.terminal != execution.console_socket.is_some() {
        return Err(OciError::Invalid(
            "a terminal needs --console-socket, and the other way round".to_owned(),
        ));
    }
    let filter = filter_of(&saved)?;
    let engine = execution
        .console_socket
        .as_deref()
        .map(|path| console::connect(path, PATIENCE))
        .transpose()?;
    let doors = saved.groups.doors()?;
    let birthplace = saved.groups.birthplace()?;
    let birth = Birth {
        namespaces: 0,
        cgroup: Some(birthplace.as_fd()),
    };
    let (mut ours, theirs) = UnixStream::pair().map_err(at("making", "a pair of sockets"))?;
    ours.set_read_timeout(Some(PATIENCE))
        .map_err(at("watching", "a process"))?;
    setns(first.as_fd(), CloneFlags::CLONE_NEWPID).map_err(at("entering", "the container"))?;
    let (first, ours_too) = (&first, &ours);
    let started = rawio::fork::fork(birth, || {
        let Ok(mut parent) = theirs.try_clone() else {
            return 1;
        };
        // The parent's end is not ours.
        let _closed = ours_too.shutdown(std::net::Shutdown::Write);
        let joined = join(&saved, &plan, first, &doors, engine.as_ref());
        let error = match joined {
            Ok(()) => identity::become_program(&plan, filter.as_ref()),
            Err(error) => error,
        };
        tell(&mut parent, &error);
        1
    });
    let started = started.map_err(at("making", "a process"))?;
    drop(theirs);
    let arrived = heard(&mut ours, "executing").and_then(|failure| failure.map_or(Ok(()), Err));
    let arrived = arrived.and_then(|()| match &execution.pid_file {
        Some(path) => write_pid_file(path, started.pid),
        None => Ok(()),
    });
    if arrived.is_err() {
        end(&started.process);
        return arrived.map(|()| None);
    }
    match execution.is_left {
        true => Ok(None),
        false => wait(&started.process).map(Some),
    }
}

/// Enters the container, and has nothing of the machine's left open.
fn join(
    saved: &Saved,
    plan: &ProcessPlan,
    first: &PidFd,
    doors: &[File],
    engine: Option<&UnixStream>,
) -> Result<()> {
    nix::sys::prctl::set_dumpable(false).map_err(at("hiding", "the process"))?;
    for door in doors {
        let mut door = door;
        door.write_all(b"0")
            .map_err(at("entering", "a control group"))?;
    }
    if let Some(score) = plan.oom_score {
        let path = "/proc/self/oom_score_adj";
        std::fs::write(path, score.to_string()).map_err(at("writing to", path))?;
    }
    join_keyring(&saved.id)?;
    let all = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP;
    setns(first.as_fd(), all).map_err(at("entering", "the container"))?;
    nix::unistd::setsid().map_err(at("starting", "a session"))?;
    if let Some(engine) = engine {
        let root = File::open("/").map_err(at("opening", "/"))?;
        let terminal = console::open(root.as_fd(), plan, engine)?;
        console::take(terminal.as_fd(), plan.uid)?;
    }
    rawio::fd::close_on_exec_from(3).map_err(at("closing", "descriptors"))
}

fn process_of(execution: &Execution, saved: &Saved) -> Result<Value> {
    if let Some(path) = &execution.process {
        return super::create::read(path);
    }
    let mut process = saved.process.clone();
    process["terminal"] = execution.terminal.into();
    process["args"] = execution.arguments.clone().into();
    if let Some(directory) = &execution.directory {
        process["cwd"] = directory.to_string_lossy().into_owned().into();
    }
    if let Some((uid, gid)) = execution.user {
        process["user"]["uid"] = uid.into();
        process["user"]["gid"] = gid.into();
    }
    let variables = execution.variables.iter().cloned().map(Value::from);
    match &mut process["env"] {
        Value::Array(known) => known.extend(variables),
        none => *none = variables.collect(),
    }
    Ok(process)
}

/// The filter of the container, which was honoured when that was made.
fn filter_of(saved: &Saved) -> Result<Option<Filter>> {
    if saved.seccomp.is_null() {
        return Ok(None);
    }
    let parsed: LinuxSeccomp = serde_json::from_value(saved.seccomp.clone())
        .map_err(|error| OciError::Invalid(format!("the filter that was kept: {error}")))?;
    let mut reasons = Vec::new();
    match Filter::new(&parsed, &mut reasons) {
        Some(filter) => Ok(Some(filter)),
        None => Err(OciError::NotHonoured(reasons)),
    }
}

fn wait(process: &PidFd) -> Result<u8> {
    use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
    let status = waitid(Id::PIDFd(process.as_fd()), WaitPidFlag::WEXITED);
    Ok(match status.map_err(at("waiting for", "a process"))? {
        WaitStatus::Exited(_, code) => u8::try_from(code).unwrap_or(255),
        WaitStatus::Signaled(_, signal, _) => u8::try_from(128 + signal as i32).unwrap_or(255),
        _ => 255,
    })
}
