//! Making a container: its groups, its first process, and its state file.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};
use rawio::child::{Birth, Started};
use serde_json::Value;

use super::{PATIENCE, end, failure, short, write_pid_file};
use crate::cgroup::Groups;
use crate::error::{OciError, Result, at, invalid};
use crate::init::{GO, Given, NAMESPACES, READY};
use crate::plan::{Namespace, Plan};
use crate::state::{Home, Saved, Status, began, now};
use crate::{console, hooks, init};

/// A specification is not longer than this.
const SPECIFICATION_MAX_BYTES: u64 = 16 << 20;

/// What a container is made from.
#[derive(Clone, Debug)]
pub struct Creation {
    /// Its name.
    pub id: String,
    /// The directory of its `config.json`.
    pub bundle: PathBuf,
    /// Where its process's number is written.
    pub pid_file: Option<PathBuf>,
    /// Where its terminal is sent.
    pub console_socket: Option<PathBuf>,
}

/// Makes a container, up to the moment before its program starts.
///
/// # Errors
/// [`OciError::NotHonoured`] if its specification has fields that are not honoured: then nothing was done.
pub fn create(root: &Path, creation: &Creation) -> Result<()> {
    let path = creation.bundle.join("config.json");
    let specification = read(&path)?;
    let plan = Plan::new(&specification)?;
    if plan.process.terminal != creation.console_socket.is_some() {
        let problem = "process.terminal and --console-socket do not come together";
        return Err(OciError::NotHonoured(vec![problem.to_owned()]));
    }
    let bundle = creation
        .bundle
        .canonicalize()
        .map_err(at("finding", &creation.bundle))?;
    let home = Home::of(root, &creation.id)?;
    home.make()?;
    let made = make(&home, creation, &bundle, &plan, &specification);
    if made.is_err() {
        home.remove()?;
    }
    made
}

/// Reads what an engine wrote.
pub(super) fn read(path: &Path) -> Result<Value> {
    let file = File::open(path).map_err(at("opening", path))?;
    let mut text = Vec::new();
    let mut bounded = file.take(SPECIFICATION_MAX_BYTES + 1);
    bounded
        .read_to_end(&mut text)
        .map_err(at("reading", path))?;
    if text.len() as u64 > SPECIFICATION_MAX_BYTES {
        return invalid(format!("{} is longer than 16 MiB", path.display()));
    }
    serde_json::from_slice(&text)
        .map_err(|error| OciError::Invalid(format!("{} cannot be read: {error}", path.display())))
}

fn make(
    home: &Home,
    creation: &Creation,
    bundle: &Path,
    plan: &Plan,
    specification: &Value,
) -> Result<()> {
    let default = Path::new("/").join(&creation.id);
    let path = plan.cgroup.as_deref().unwrap_or(&default);
    let groups = Groups::make(path, &plan.resources)?;
    let at_spec = |pointer: &str| specification.pointer(pointer).cloned().unwrap_or_default();
    let mut saved = Saved {
        id: creation.id.clone(),
        version: plan.version.clone(),
        bundle: bundle.to_owned(),
        rootfs: bundle.join(&plan.root),
        created: now(),
        pid: 0,
        began: 0,
        groups,
        annotations: plan.annotations.clone(),
        process: at_spec("/process"),
        seccomp: at_spec("/linux/seccomp"),
        poststart: plan.hooks.poststart().clone().unwrap_or_default(),
        poststop: plan.hooks.poststop().clone().unwrap_or_default(),
    };
    // Kept before there is a process, so that whoever cleans up after a crash finds the groups.
    let begun = home
        .save(&saved)
        .and_then(|()| begin(home, creation, plan, &mut saved));
    if begun.is_err() {
        saved.groups.kill()?;
        saved.groups.remove()?;
    }
    begun
}

fn begin(home: &Home, creation: &Creation, plan: &Plan, saved: &mut Saved) -> Result<()> {
    let dir = File::open(home.dir()).map_err(at("opening", home.dir()))?;
    let starts =
        UnixListener::bind(short(&dir, "start.sock")).map_err(at("binding", home.socket()))?;
    let engine = creation
        .console_socket
        .as_deref()
        .map(|path| console::connect(path, PATIENCE))
        .transpose()?;
    let (mut ours, theirs) = UnixStream::pair().map_err(at("making", "a pair of sockets"))?;
    ours.set_read_timeout(Some(PATIENCE))
        .map_err(at("watching", "a process"))?;
    let namespaces = open_namespaces(plan)?;
    let given = Given {
        id: &creation.id,
        plan,
        bundle: &saved.bundle,
        groups: &saved.groups,
        doors: &saved.groups.doors()?,
        namespaces: &namespaces,
        engine: engine.as_ref(),
        starts: &starts,
    };
    let birthplace = saved.groups.birthplace()?;
    let birth = Birth {
        namespaces: new_namespaces(plan),
        cgroup: Some(birthplace.as_fd()),
    };
    let parent = ours.try_clone().map_err(at("copying", "a socket"))?;
    let started = rawio::fork::fork(birth, || {
        drop(parent);
        match theirs.try_clone() {
            Ok(theirs) => init::run(&given, theirs),
            Err(_) => 1,
        }
    });
    let started = started.map_err(at("making", "the first process"))?;
    drop(theirs);
    drop(starts);
    let ready = attend(home, creation, plan, saved, &mut ours, &started);
    if ready.is_err() {
        end(&started.process);
    }
    ready
}

/// Does the parent's part, up to the moment when the process waits to be started.
fn attend(
    home: &Home,
    creation: &Creation,
    plan: &Plan,
    saved: &mut Saved,
    process: &mut UnixStream,
    started: &Started,
) -> Result<()> {
    expect(process, NAMESPACES)?;
    saved.pid = started.pid;
    saved.began = began(started.pid).map_or(0, |(began, _)| began);
    let state = saved.state(Status::Created).to_string();
    hooks::run(plan.hooks.prestart().as_ref(), &state)?;
    hooks::run(plan.hooks.create_runtime().as_ref(), &state)?;
    go(process)?;
    expect(process, READY)?;
    home.save(saved)?;
    if let Some(path) = &creation.pid_file {
        write_pid_file(path, saved.pid)?;
    }
    go(process)
}

fn go(process: &mut UnixStream) -> Result<()> {
    process
        .write_all(&[GO])
        .map_err(at("telling", "the first process"))
}

fn expect(process: &mut UnixStream, wanted: u8) -> Result<()> {
    let mut byte = [0];
    if process.read_exact(&mut byte).is_err() {
        return Err(OciError::Process("it ended before it was ready".to_owned()));
    }
    if byte[0] == wanted {
        return Ok(());
    }
    Err(failure(process, byte[0])?)
}

fn new_namespaces(plan: &Plan) -> u64 {
    let named = [
        (&plan.namespaces.pid, CloneFlags::CLONE_NEWPID),
        (&plan.namespaces.network, CloneFlags::CLONE_NEWNET),
        (&plan.namespaces.ipc, CloneFlags::CLONE_NEWIPC),
        (&plan.namespaces.uts, CloneFlags::CLONE_NEWUTS),
    ];
    let new = named.iter().filter(|(place, _)| **place == Namespace::New);
    let flags = new.fold(CloneFlags::CLONE_NEWNS, |flags, (_, flag)| flags | *flag);
    u64::from(flags.bits().cast_unsigned())
}

/// Opens the namespaces of others. Enters that of processes, which counts for those that are born afterwards.
fn open_namespaces(plan: &Plan) -> Result<Vec<(File, CloneFlags)>> {
    let named = [
        (&plan.namespaces.network, CloneFlags::CLONE_NEWNET),
        (&plan.namespaces.ipc, CloneFlags::CLONE_NEWIPC),
        (&plan.namespaces.uts, CloneFlags::CLONE_NEWUTS),
    ];
    let mut opened = Vec::new();
    for (place, kind) in named {
        if let Namespace::At(path) = place {
            opened.push((File::open(path).map_err(at("opening", path))?, kind));
        }
    }
    if let Namespace::At(path) = &plan.namespaces.pid {
        let file = File::open(path).map_err(at("opening", path))?;
        setns(file, CloneFlags::CLONE_NEWPID).map_err(at("entering", path))?;
    }
    Ok(opened)
}
