//! Another program in a sandbox that runs.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::Signal;
use rawio::child::{Birth, Started, Step};

use crate::begun::start;
use crate::cgroup::Group;
use crate::confinement::{Confinement, confine_starter};
use crate::error::{Result, SandboxError, at, step};
use crate::launch::{User, code_mount, confine_steps};
use crate::process::{ExitStatus, exit_status};
use crate::request::Request;
use crate::sandbox::Sandbox;

/// A program that was started in a sandbox beside its own. Dropping it kills the program.
#[derive(Debug)]
pub struct Execution {
    started: Started,
    status: Option<ExitStatus>,
}

impl Execution {
    /// Starts it. It has the user, the limits and the rights of the sandbox.
    pub(crate) fn start(
        sandbox: &Arc<Sandbox>,
        request: Request,
        stdio: [OwnedFd; 3],
        user: User,
        confinement: Arc<Confinement>,
    ) -> Result<Self> {
        let strings = request.strings()?;
        let sandbox = Arc::clone(sandbox);
        // On a thread of its own: who enters a PID namespace starts all of its processes there.
        let thread = std::thread::Builder::new()
            .name("sandbox-exec".to_owned())
            .spawn(move || {
                let held = sandbox.hold_running()?;
                let places = Places::of(&held.group)?;
                enter(&sandbox)?;
                confine_starter()?;
                // The sandbox ends behind all processes that were born in it. On its way to its program this one may be
                // kept by others of its user, and the sandbox must not be out of reach meanwhile.
                let born = || drop(held);
                begin(
                    &request,
                    &strings,
                    &stdio,
                    user,
                    &confinement,
                    &places,
                    born,
                )
            });
        let thread = thread.map_err(step("starting a thread"))?;
        let started = thread.join().map_err(|_| SandboxError::Closed)??;
        Ok(Self {
            started,
            status: None,
        })
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.started.pid
    }

    /// Waits until it has ended; `None` if it has not within `patience`.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub fn wait(&mut self, patience: Duration) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            let ended = self.started.process.ended_within(patience);
            if ended.map_err(step("waiting for a program"))? {
                self.status = Some(exit_status(&self.started.process, self.started.pid));
            }
        }
        Ok(self.status)
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        if self.status.is_none() {
            let _gone = self.started.process.signal(Signal::SIGKILL);
            // Uninterruptible sleep ends at some time, and a process that is not reaped stays.
            let _late = self.wait(Duration::from_secs(10));
        }
    }
}

/// The control groups of a new process, opened for it: those of the sandbox may be given back before it is there.
struct Places {
    birth: OwnedFd,
    legacy: Vec<OwnedFd>,
}

impl Places {
    fn of(group: &Group) -> Result<Self> {
        let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
        let legacy: io::Result<_> = group.legacy().into_iter().map(copy).collect();
        let copied = copy(group.birth()).and_then(|birth| {
            let legacy = legacy?;
            Ok(Self { birth, legacy })
        });
        copied.map_err(step("copying a descriptor"))
    }
}

/// Has the calling thread be in the namespaces of a sandbox, but for its user namespace.
fn enter(sandbox: &Sandbox) -> Result<()> {
    let doing = "entering a sandbox";
    unshare(CloneFlags::CLONE_FS).map_err(step(doing))?;
    let all = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWNET;
    setns(sandbox.process.as_fd(), all).map_err(step(doing))
}

/// Mounts a directory at `/code` of a sandbox, read-only.
pub(crate) fn mount_code(sandbox: &Arc<Sandbox>, dir: &Path) -> Result<()> {
    let mount = code_mount(dir)?;
    let sandbox = Arc::clone(sandbox);
    // On a thread of its own, which ends with what it has entered.
    let thread = std::thread::Builder::new()
        .name("sandbox-mount".to_owned())
        .spawn(move || {
            sandbox.with_controls(|_| {
                let doing = "entering a sandbox";
                unshare(CloneFlags::CLONE_FS).map_err(step(doing))?;
                setns(sandbox.process.as_fd(), CloneFlags::CLONE_NEWNS).map_err(step(doing))?;
                let place = File::open("/code").map_err(at("opening", "/code"))?;
                mount
                    .attach(place.as_fd())
                    .map_err(at("mounting", "/code"))?;
                Ok(())
            })
        });
    let thread = thread.map_err(step("starting a thread"))?;
    thread.join().map_err(|_| SandboxError::Closed)?
}

fn begin(
    request: &Request,
    strings: &(Vec<CString>, Vec<CString>),
    stdio: &[OwnedFd; 3],
    user: User,
    confinement: &Confinement,
    places: &Places,
    born: impl FnOnce(),
) -> Result<Started> {
    let stdio = stdio.each_ref().map(OwnedFd::as_fd);
    let (arguments, variables) = strings;
    let Some(program) = arguments.first() else {
        return Err(SandboxError::Invalid("there is no program".to_owned()));
    };
    let mut steps = Vec::new();
    for procs in &places.legacy {
        let join = Step::JoinCgroup(procs.as_fd());
        steps.push(("joining a control group", join));
    }
    let scope = confinement.scope_of(request.network);
    let filter = &confinement.filter;
    steps.extend(confine_steps(&request.limits, user, scope, filter, c"/tmp"));
    steps.push(("placing descriptors", Step::Descriptors(&stdio)));
    let execute = Step::Execute(program, arguments, variables);
    steps.push(("executing the program", execute));
    let birth = Birth {
        namespaces: 0,
        cgroup: Some(places.birth.as_fd()),
    };
    start(&steps, birth, born)
}
