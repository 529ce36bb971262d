//! One worker, as the node knows it: what it is asked, how it ends, and what it serves.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use host::run_dir::{RunDir, process_start};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use node_api::spec::MountSpec;
use node_records::company::Company;
use node_records::instance::ProcessRef;
use parking_lot::Mutex;
use rawio::pidfd::PidFd;

use super::images::Rights;
use crate::connector;
use crate::deaths::Cause;
use crate::gap::millis;
use crate::wire::{self, WorkerRequest, WorkerResponse};

/// How often a worker is looked at that has not ended: whether it is dead all the same.
const LOOK: Duration = Duration::from_millis(500);

/// How long the other threads of a worker whose first has ended may take, on a busy machine: how
/// it ended is known only when all have.
const ENDING: Duration = Duration::from_secs(1);

/// How long a worker may take to take the link by which it asks for connections.
const LINK: Duration = Duration::from_secs(5);

/// How long a worker that is replaced may take to answer what it has read: longer than a request may
/// wait for a source.
pub(crate) const RETIRE: Duration = Duration::from_secs(35);
/// How long its response may take beyond that.
const RESPONSE: Duration = Duration::from_secs(1);

/// One worker.
#[derive(Debug)]
pub(crate) struct Worker {
    /// The process.
    pub process: ProcessRef,
    /// Whether it serves one mount, and will serve no other.
    pub(super) company: Company,
    pub(super) socket: PathBuf,
    handle: PidFd,
    /// Only of those that this process has started.
    child: Mutex<Option<Child>>,
    /// The keys of the mounts and devices that it serves or is asked to; `None` when it is dead.
    mounts: Mutex<Option<BTreeSet<String>>>,
    /// What it may do for images that it shares its cache with.
    pub(super) rights: Rights,
    /// Runs the program that new workers run.
    current: AtomicBool,
    /// Was killed on purpose, to be replaced.
    replaced: AtomicBool,
    /// Since when it reads no more requests, if it was told so.
    retired_at: OnceLock<Instant>,
    /// Consecutive probes without a response.
    missed: AtomicU32,
}

impl Worker {
    pub(super) fn new(
        process: ProcessRef,
        run_dir: &Path,
        (company, rights): (Company, Rights),
        child: Option<Child>,
    ) -> anyhow::Result<Self> {
        let opening = || format!("opening process {}", process.pid);
        let handle = PidFd::open(process.pid).with_context(opening)?;
        // The number may have been given away before it was opened.
        if process_start(process.pid)? != process.started {
            bail!("process {} has ended", process.pid);
        }
        Ok(Self {
            process,
            company,
            rights,
            socket: RunDir::worker_socket(run_dir, process.pid),
            handle,
            child: Mutex::new(child),
            mounts: Mutex::new(Some(BTreeSet::new())),
            current: AtomicBool::new(true),
            replaced: AtomicBool::new(false),
            retired_at: OnceLock::new(),
            missed: AtomicU32::new(0),
        })
    }

    /// Sends it a request without descriptors.
    ///
    /// # Errors
    /// If it does not respond in time.
    pub(crate) fn ask(
        &self,
        question: &WorkerRequest,
        patience: Duration,
    ) -> anyhow::Result<WorkerResponse> {
        Ok(self.ask_with(question, &[], patience)?.0)
    }

    /// Sends it a request with descriptors, and returns those that came with the response.
    ///
    /// # Errors
    /// If it does not respond in time.
    pub(crate) fn ask_with(
        &self,
        question: &WorkerRequest,
        beside: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> anyhow::Result<(WorkerResponse, Vec<OwnedFd>)> {
        let address = (self.process.pid, &*self.socket);
        wire::ask(address, question, beside, patience)
    }

    /// Makes its connections to the block service of its mount from now on, if the service listens at a
    /// socket in the file system.
    ///
    /// # Errors
    /// If the worker refuses, as one of an earlier release does, which connects by itself.
    pub(crate) fn connect_for(&self, spec: &MountSpec) -> anyhow::Result<()> {
        let services = spec
            .nic
            .as_ref()
            .map(connector::sockets)
            .unwrap_or_default();
        if services.is_empty() {
            return Ok(());
        }
        let link = connector::serve(&services)?;
        let question = WorkerRequest::Connections;
        match self.ask_with(&question, &[link.as_fd()], LINK)? {
            (WorkerResponse::Done, _) => Ok(()),
            (other, _) => bail!("unexpected response: {other:?}"),
        }
    }

    /// Ends it. Its mounts go to another.
    pub(crate) fn kill(&self) {
        if let Err(error) = self.handle.signal(Signal::SIGKILL)
            && error.raw_os_error() != Some(Errno::ESRCH as i32)
        {
            log::error!("cannot kill worker {}: {error}", self.process.pid);
        }
    }

    /// Ends it because another program is to serve. It is no death that anybody counts.
    pub(crate) fn replace(&self) {
        self.replaced.store(true, SeqCst);
        self.kill();
    }

    /// The same, after it has answered what it had read, if it does in time: for kernels that do not send
    /// that again.
    pub(crate) fn retire(&self) {
        self.replaced.store(true, SeqCst);
        let within_ms = millis(RETIRE);
        let pid = self.process.pid;
        log::info!("worker {pid} reads no more requests");
        self.retired_at.get_or_init(Instant::now);
        match self.ask(&WorkerRequest::Retire { within_ms }, RETIRE + RESPONSE) {
            Ok(WorkerResponse::Done) => log::info!("worker {pid} has answered what it had read"),
            Ok(other) => log::warn!("worker {pid} may leave requests unanswered: {other:?}"),
            Err(error) => log::warn!("worker {pid} may leave requests unanswered: {error:#}"),
        }
        self.kill();
    }

    /// Ends it if it has no mounts, and returns whether it has ended. It accepts no more then.
    pub(crate) fn end_if_idle(&self) -> bool {
        {
            let mut mounts = self.mounts.lock();
            if mounts.as_ref().is_some_and(|mounts| !mounts.is_empty()) {
                return false;
            }
            *mounts = None;
        }
        self.end()
    }

    /// Returns since when it reads no more requests, if it was told so.
    pub(crate) fn retired_at(&self) -> Option<Instant> {
        self.retired_at.get().copied()
    }

    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.load(SeqCst)
    }

    pub(crate) fn is_current(&self) -> bool {
        self.current.load(SeqCst)
    }

    /// Notes whether it runs the program that new workers run.
    pub(super) fn set_current(&self, is_current: bool) {
        self.current.store(is_current, SeqCst);
    }

    /// Replaces it and waits for its end; returns whether that came.
    pub(super) fn end(&self) -> bool {
        self.replace();
        self.handle.ended_within(ENDING).unwrap_or(false)
    }

    /// Notes whether it has responded to a probe, and returns how many it missed in a row.
    pub(crate) fn probed(&self, answered: bool) -> u32 {
        if answered {
            self.missed.store(0, SeqCst);
            return 0;
        }
        self.missed.fetch_add(1, SeqCst) + 1
    }

    /// Returns whether it has answered the last probe.
    pub(crate) fn answers(&self) -> bool {
        self.missed.load(SeqCst) == 0
    }

    /// Waits until it serves no more, and returns why.
    pub(crate) fn wait(&self) -> Cause {
        loop {
            match self.is_dead() {
                Ok(false) => {}
                Ok(true) => break,
                Err(error) => {
                    log::error!("cannot wait for worker {}: {error}", self.process.pid);
                    break;
                }
            }
        }
        if !self.handle.ended_within(ENDING).unwrap_or(true) {
            // It was killed, and is gone when its mounts are served again.
            let pid = self.process.pid;
            log::warn!("worker {pid} is dead, and the kernel has not released it yet");
            let child = self.child.lock().take();
            if let Some(mut child) = child {
                let reap = std::thread::Builder::new().name("reap".to_owned());
                if let Err(error) = reap.spawn(move || child.wait()) {
                    log::warn!("cannot reap worker {pid}: {error}");
                }
            }
            return Cause::Killed;
        }
        let status = self.child.lock().as_mut().map(Child::wait);
        match status {
            Some(Ok(status)) => match (status.signal(), status.code()) {
                (Some(signal), _) if BY_OTHERS.iter().any(|s| *s as i32 == signal) => Cause::Killed,
                // It has nothing to serve.
                (None, Some(0)) => Cause::Killed,
                _ => Cause::Crashed,
            },
            // Not our child: its parent has the result.
            _ => Cause::Killed,
        }
    }

    /// Waits a while for its end. One that is killed while it pushes a page that a reader waits for
    /// does not end before somebody else answers that reader; but its first thread does.
    fn is_dead(&self) -> std::io::Result<bool> {
        Ok(self.handle.ended_within(LOOK)? || self.handle.is_exiting()?)
    }

    /// Takes the mount or device with this key in, unless it is full or dead.
    pub(super) fn reserve(&self, key: &str) -> bool {
        let mut mounts = self.mounts.lock();
        let Some(mounts) = mounts.as_mut() else {
            return false;
        };
        if mounts.len() >= self.company.room() {
            return false;
        }
        mounts.insert(key.to_owned());
        true
    }

    /// Takes a mount or device in that it serves already.
    pub(crate) fn claim(&self, key: &str) {
        if let Some(mounts) = self.mounts.lock().as_mut() {
            mounts.insert(key.to_owned());
        }
    }

    /// Takes a mount or device out.
    pub(crate) fn release(&self, key: &str) {
        if let Some(mounts) = self.mounts.lock().as_mut() {
            mounts.remove(key);
        }
    }

    /// Returns how many mounts and devices it has.
    pub(crate) fn load(&self) -> usize {
        self.mounts.lock().as_ref().map_or(0, BTreeSet::len)
    }

    /// Returns the keys of its mounts and devices.
    pub(crate) fn keys(&self) -> BTreeSet<String> {
        self.mounts.lock().clone().unwrap_or_default()
    }

    /// Returns the keys of its mounts and devices, and takes no more.
    pub(super) fn close(&self) -> BTreeSet<String> {
        self.mounts.lock().take().unwrap_or_default()
    }
}

/// Signals by which others end a process; the rest is what a process does to itself.
const BY_OTHERS: [Signal; 5] = [
    Signal::SIGKILL,
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
];
