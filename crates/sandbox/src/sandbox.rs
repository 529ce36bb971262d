//! One sandbox: its process, and what can be done to it.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;
use parking_lot::{Condvar, MappedMutexGuard, Mutex, MutexGuard};
use rawio::pidfd::PidFd;
use serde::{Deserialize, Serialize};

use crate::cgroup::{Group, Lent, Pool};
use crate::error::{Result, SandboxError, step};
use crate::network::{Lease, Networks};
use crate::output::{Stream, Written};
use crate::process::ExitStatus;
use crate::record::Record;
use crate::request::Request;

/// Memory that a paused sandbox may take beyond what it has: what the kernel needs to wake it.
const PAUSED_SPARE_BYTES: u64 = 1 << 20;

/// The phase of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Its program runs.
    Running,
    /// All of its processes are frozen, and memory was reclaimed.
    Paused,
    /// All of its processes have ended, and its resources are freed.
    Ended(Exit),
}

/// How a sandbox ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// How its first process ended.
    pub status: ExitStatus,
    /// Why, if not by itself.
    pub cause: Option<Cause>,
}

/// Why a sandbox was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// On request.
    Killed,
    /// By the timeout.
    Timeout,
    /// It wanted more memory than it may use.
    Memory,
}

/// The resources that are needed to pause and to end it, and are returned at the end.
#[derive(Debug)]
pub(crate) struct Controls {
    pub(crate) group: Group,
    pub(crate) network: Option<Lease>,
    pub(crate) next: Next,
    /// Its namespace of mounts, so that it does not end before the sandbox's end is told: see `watch`.
    pub(crate) mounts: Option<OwnedFd>,
}

/// Who may use a control group next.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    /// Any sandbox.
    Anybody,
    /// Children of the same Zygote.
    Siblings(Arc<Lent>),
    /// No sandbox: it belonged to a Zygote of a former program.
    Nobody,
}

impl Controls {
    /// Returns all resources.
    pub(crate) fn give_back(self, pool: &Pool, networks: &Networks) {
        let is_empty = match self.next {
            Next::Anybody => pool.put_back(self.group),
            Next::Siblings(lent) => {
                lent.put_back(self.group, pool);
                false
            }
            Next::Nobody => pool.discard(self.group),
        };
        if let Some(network) = self.network {
            networks.put_back(network, is_empty);
        }
    }
}

#[derive(Debug)]
struct State {
    phase: Phase,
    cause: Option<Cause>,
}

/// A sandbox that was started.
#[derive(Debug)]
pub struct Sandbox {
    record: Record,
    pub(crate) process: PidFd,
    pub(crate) deadline: Option<Instant>,
    /// Held while the sandbox is paused, resumed, killed or cleaned up: each waits for the kernel,
    /// and they must not overlap.
    controls: Mutex<Option<Controls>>,
    streams: Mutex<Option<[Stream; 2]>>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Sandbox {
    pub(crate) fn new(
        record: Record,
        process: PidFd,
        controls: Controls,
        streams: Option<[Stream; 2]>,
        phase: Phase,
    ) -> Self {
        let age = now_ms().saturating_sub(record.created_ms);
        let left = |timeout: Duration| timeout.saturating_sub(Duration::from_millis(age));
        let deadline = record.request.timeout().map(left);
        Self {
            deadline: deadline.and_then(|left| Instant::now().checked_add(left)),
            record,
            process,
            controls: Mutex::new(Some(controls)),
            streams: Mutex::new(streams),
            state: Mutex::new(State { phase, cause: None }),
            changed: Condvar::new(),
        }
    }

    /// Returns its id.
    pub fn id(&self) -> &str {
        &self.record.id
    }

    /// Returns the number of its first process.
    pub fn pid(&self) -> u32 {
        self.record.pid
    }

    /// Returns its specification.
    pub fn request(&self) -> &Request {
        &self.record.request
    }

    /// Returns the user that it is.
    pub fn user(&self) -> u32 {
        self.record.user
    }

    /// Returns the Zygotes that it descends from, the first one first.
    pub fn ancestry(&self) -> &[String] {
        &self.record.ancestry
    }

    /// Returns its address, if it has one of its own.
    pub fn address(&self) -> Option<Ipv4Addr> {
        self.record.address
    }

    /// Returns when it was made, in milliseconds since 1970.
    pub fn created_ms(&self) -> u64 {
        self.record.created_ms
    }

    /// Returns its phase.
    pub fn phase(&self) -> Phase {
        self.state.lock().phase
    }

    /// Waits until it has ended, and its resources are freed; `None` if not within `patience`.
    pub fn wait(&self, patience: Duration) -> Option<Exit> {
        let deadline = Instant::now() + patience;
        let mut state = self.state.lock();
        loop {
            if let Phase::Ended(exit) = state.phase {
                return Some(exit);
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return match state.phase {
                    Phase::Ended(exit) => Some(exit),
                    Phase::Running | Phase::Paused => None,
                };
            }
        }
    }

    /// Returns its standard output and standard error.
    pub fn written(&self) -> Option<[Written; 2]> {
        let streams = self.streams.lock();
        streams
            .as_ref()
            .map(|both| both.each_ref().map(Stream::written))
    }

    /// Freezes all of its processes, and gives back memory.
    ///
    /// # Errors
    /// If it has ended, or the kernel cannot.
    pub fn pause(&self) -> Result<()> {
        let controls = self.controls.lock();
        let group = &controls.as_ref().ok_or_else(|| self.ended())?.group;
        let paused = group.freeze().and_then(|()| self.shrink(group));
        if paused.is_err() && self.phase() != Phase::Paused {
            // What is told to run runs.
            let limited = group.limit_memory(self.record.request.limits.memory_bytes);
            if let Err(error) = limited.and(group.thaw()) {
                log::error!("the sandbox {} may stay frozen: {error}", self.id());
            }
        }
        paused?;
        self.enter(Phase::Paused);
        Ok(())
    }

    /// Gives back the memory of a frozen sandbox, and has it take little more.
    fn shrink(&self, group: &Group) -> Result<()> {
        group.reclaim()?;
        let left = group.memory_bytes()?.saturating_add(PAUSED_SPARE_BYTES);
        group.limit_memory(left.min(self.record.request.limits.memory_bytes))
    }

    /// Resumes its processes.
    ///
    /// # Errors
    /// If it has ended, or the kernel cannot.
    pub fn resume(&self) -> Result<()> {
        let controls = self.controls.lock();
        let group = &controls.as_ref().ok_or_else(|| self.ended())?.group;
        group.limit_memory(self.record.request.limits.memory_bytes)?;
        group.thaw()?;
        self.enter(Phase::Running);
        Ok(())
    }

    /// Sends a signal to its first process. A program that has no handler for it ignores it, as every
    /// first process of a PID namespace does; [`Self::kill`] ends it.
    ///
    /// # Errors
    /// If it has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process
            .signal(signal)
            .map_err(step("signalling a sandbox"))
    }

    /// Kills all of its processes. Returns before they have ended: see [`Self::wait`].
    ///
    /// # Errors
    /// If the kernel refuses. An ended sandbox is no error.
    pub fn kill(&self) -> Result<()> {
        self.end(Cause::Killed)
    }

    pub(crate) fn end(&self, cause: Cause) -> Result<()> {
        self.state.lock().cause.get_or_insert(cause);
        // The first process takes all others of its PID namespace with it, frozen or not.
        match self.process.signal(Signal::SIGKILL) {
            Err(error) if error.raw_os_error() != Some(nix::libc::ESRCH) => {
                Err(step("killing a sandbox")(error))
            }
            _ => Ok(()),
        }
    }

    /// Returns the bytes of memory that it is charged for.
    ///
    /// # Errors
    /// If it has ended, or the kernel does not report it.
    pub fn memory_bytes(&self) -> Result<u64> {
        let controls = self.controls.lock();
        let group = &controls.as_ref().ok_or_else(|| self.ended())?.group;
        group.memory_bytes()
    }

    /// Returns the bytes of memory of its processes, of which a page that several processes share counts in parts.
    pub fn unshared_bytes(&self) -> u64 {
        let processes = self.processes().unwrap_or_default();
        processes
            .into_iter()
            .map(crate::process::unshared_bytes)
            .sum()
    }

    /// Returns its processes.
    ///
    /// # Errors
    /// If it has ended, or the kernel does not report them.
    pub fn processes(&self) -> Result<Vec<u32>> {
        let controls = self.controls.lock();
        let group = &controls.as_ref().ok_or_else(|| self.ended())?.group;
        group.processes()
    }

    /// Has something done with its controls, which are there as long as it has not ended.
    pub(crate) fn with_controls<T>(&self, act: impl FnOnce(&Controls) -> Result<T>) -> Result<T> {
        let controls = self.controls.lock();
        act(controls.as_ref().ok_or_else(|| self.ended())?)
    }

    /// Holds its controls while something begins in it that a frozen sandbox would not let go on.
    pub(crate) fn hold_running(&self) -> Result<MappedMutexGuard<'_, Controls>> {
        let controls = self.controls.lock();
        if self.phase() == Phase::Paused {
            return Err(SandboxError::Invalid(format!(
                "the sandbox {} is paused: resume it first",
                self.id()
            )));
        }
        MutexGuard::try_map(controls, Option::as_mut).map_err(|_| self.ended())
    }

    /// Takes the resources to return; they cannot be used any more.
    pub(crate) fn take_controls(&self) -> Option<Controls> {
        self.controls.lock().take()
    }

    /// Has something done with its streams.
    pub(crate) fn with_streams(&self, act: impl FnOnce(&mut [Stream; 2])) {
        if let Some(streams) = &mut *self.streams.lock() {
            act(streams);
        }
    }

    /// Notifies all waiting threads that it has ended.
    pub(crate) fn ended_as(&self, status: ExitStatus, killed_for_memory: u64) -> Exit {
        let mut state = self.state.lock();
        let memory = (killed_for_memory > 0).then_some(Cause::Memory);
        let cause = state.cause.or(memory);
        let exit = Exit { status, cause };
        state.phase = Phase::Ended(exit);
        self.changed.notify_all();
        exit
    }

    fn enter(&self, phase: Phase) {
        let mut state = self.state.lock();
        if !matches!(state.phase, Phase::Ended(_)) {
            state.phase = phase;
        }
    }

    fn ended(&self) -> SandboxError {
        SandboxError::Invalid(format!("the sandbox {} has ended", self.id()))
    }
}

/// The time, in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}
