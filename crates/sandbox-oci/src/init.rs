//! The first process of a container, from its start to its program.
//!
//! It is a fork of the program that makes the container, and notifies that one of its progress: when its
//! namespaces exist, for which an engine's hooks wait, and when it is ready. Then it waits, with all of its rights,
//! which no process in the container can use yet, until it is started; only then it executes the container's program.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use nix::sched::{CloneFlags, setns, unshare};

use crate::cgroup::Groups;
use crate::error::{OciError, Result, at};
use crate::plan::{Namespace, Plan};
use crate::{console, identity, root, starters};

/// What a new process is given.
#[derive(Debug)]
pub(crate) struct Given<'a> {
    pub(crate) id: &'a str,
    pub(crate) plan: &'a Plan,
    pub(crate) bundle: &'a Path,
    pub(crate) groups: &'a Groups,
    /// The groups of version 1, to be entered.
    pub(crate) doors: &'a [File],
    /// Existing namespaces, to be entered.
    pub(crate) namespaces: &'a [(File, CloneFlags)],
    /// The engine's socket for the terminal.
    pub(crate) engine: Option<&'a UnixStream>,
    /// The socket on which it waits for its start.
    pub(crate) starts: &'a UnixListener,
}

/// Messages to the parent: its namespaces exist, and it is ready.
pub(crate) const NAMESPACES: u8 = b'N';
pub(crate) const READY: u8 = b'R';
/// It failed; the reason follows.
pub(crate) const FAILED: u8 = b'E';
/// The parent's message: continue.
pub(crate) const GO: u8 = b'G';

/// The longest message about a failure.
pub(crate) const MESSAGE_MAX_BYTES: usize = 4096;

/// Runs the first process. Returns only after a failure, which was reported.
pub(crate) fn run(given: &Given<'_>, mut parent: UnixStream) -> u8 {
    if let Err(error) = prepare(given, &mut parent) {
        tell(&mut parent, &error);
        return 1;
    }
    drop(parent);
    let Ok(mut starter) = starters::wait(given.starts, GO) else {
        return 1;
    };
    let error = identity::become_program(&given.plan.process, given.plan.seccomp.as_ref());
    tell(&mut starter, &error);
    1
}

/// Reports a failure, in one message.
pub(crate) fn tell(to: &mut UnixStream, error: &OciError) {
    let mut message = vec![FAILED];
    // Its kind comes with it, since engines look for words.
    message.extend(error.to_string().bytes().take(MESSAGE_MAX_BYTES - 1));
    // Who does not listen any more has ended.
    let _gone = to.write_all(&message);
}

fn say(to: &mut UnixStream, what: u8) -> Result<()> {
    to.write_all(&[what]).map_err(at("telling", "the parent"))
}

fn hear(from: &mut UnixStream) -> Result<()> {
    let mut byte = [0];
    from.read_exact(&mut byte)
        .map_err(at("waiting for", "the parent"))
}

fn prepare(given: &Given<'_>, parent: &mut UnixStream) -> Result<()> {
    let plan = given.plan;
    // Nobody in the container looks into it, at its descriptors or its memory.
    nix::sys::prctl::set_dumpable(false).map_err(at("hiding", "the process"))?;
    for door in given.doors {
        let mut door = door;
        door.write_all(b"0")
            .map_err(at("entering", "a control group"))?;
    }
    if let Some(score) = plan.process.oom_score {
        let path = "/proc/self/oom_score_adj";
        std::fs::write(path, score.to_string()).map_err(at("writing to", path))?;
    }
    for (namespace, kind) in given.namespaces {
        setns(namespace, *kind).map_err(at("entering a namespace", format!("{kind:?}")))?;
    }
    if plan.namespaces.cgroup == Namespace::New {
        unshare(CloneFlags::CLONE_NEWCGROUP).map_err(at("making", "a namespace"))?;
    }
    join_keyring(given.id)?;
    if plan.namespaces.network == Namespace::New {
        rawio::net::raise_loopback().map_err(at("raising", "the loopback device"))?;
    }
    say(parent, NAMESPACES)?;
    hear(parent)?;
    nix::unistd::setsid().map_err(at("starting", "a session"))?;
    let root = root::build(plan, given.bundle, given.groups)?;
    let terminal = match given.engine {
        Some(engine) => {
            let other = console::open(root.top(), &plan.process, engine)?;
            root.mount_console(other.as_fd())?;
            Some(other)
        }
        None => None,
    };
    root.enter(plan)?;
    if let Some(name) = &plan.hostname {
        nix::unistd::sethostname(name).map_err(at("setting the name", name))?;
    }
    root::set_parameters(plan)?;
    if let Some(terminal) = terminal {
        console::take(terminal.as_fd(), plan.process.uid)?;
    }
    // What cannot run is told by `create` already.
    identity::find_program(&plan.process)?;
    rawio::fd::close_on_exec_from(3).map_err(at("closing", "descriptors"))?;
    say(parent, READY)?;
    hear(parent)
}

/// Joins a new session keyring, and so drops that of the process that makes the container.
pub(crate) fn join_keyring(id: &str) -> Result<()> {
    let name = CString::new(format!("_ses.{id}")).unwrap_or_default();
    match rawio::keyring::join_new_session(&name) {
        // A kernel without keys has none to leave, and a filter of an outer container may not know the call.
        Err(error) if matches!(error.raw_os_error(), Some(1 | 38)) => Ok(()),
        joined => joined.map_err(at("making", "a keyring")),
    }
}
