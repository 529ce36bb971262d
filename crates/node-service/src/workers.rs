//! The processes that serve: starting them, finding them again, and which mount goes to which.

mod images;
mod start;

use node_records::company::Company;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use confine::Identity;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use parking_lot::Mutex;
use rawio::pidfd::PidFd;

use super::connector;
use super::deaths::Cause;
use super::gap::millis;
use super::wire::{self, WorkerRequest, WorkerResponse};
use host::run_dir::{RunDir, process_start};
use images::Rights;
pub(crate) use images::{Served, told as images_told};
use node_api::spec::MountSpec;
use node_records::instance::{ProcessRef, private_dir};

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
    company: Company,
    socket: PathBuf,
    handle: PidFd,
    /// Only of those that this process has started.
    child: Mutex<Option<Child>>,
    /// The keys of the mounts and devices that it serves or is asked to; `None` when it is dead.
    mounts: Mutex<Option<BTreeSet<String>>>,
    /// What it may do for images that it shares its cache with.
    rights: Rights,
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
    fn new(
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
        self.replace();
        self.handle.ended_within(ENDING).unwrap_or(false)
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
    fn reserve(&self, key: &str) -> bool {
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
    fn close(&self) -> BTreeSet<String> {
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

/// All workers.
#[derive(Debug)]
pub(crate) struct Pool {
    run_dir: PathBuf,
    /// The user of the workers; `None` if it is the node's.
    user: Option<Identity>,
    /// Variables of the environment that workers get.
    told: Vec<(&'static str, OsString)>,
    program: Mutex<PathBuf>,
    workers: Mutex<Vec<Arc<Worker>>>,
    /// What images take that share a cache, by that.
    rights: Mutex<BTreeMap<PathBuf, Rights>>,
    /// Held while one is started, so that concurrent callers share it.
    starting: Mutex<()>,
}

impl Pool {
    /// Returns one without workers, which will run `program` as `user`, with the variables `told`.
    ///
    /// # Errors
    /// If the directory of their sockets cannot be made.
    pub(crate) fn new(
        run_dir: &Path,
        program: PathBuf,
        user: Option<Identity>,
        told: Vec<(&'static str, OsString)>,
    ) -> anyhow::Result<Self> {
        let sockets = run_dir.join("workers");
        private_dir(&sockets)?;
        sweep(&sockets)?;
        Ok(Self {
            run_dir: run_dir.to_path_buf(),
            user,
            told,
            program: Mutex::new(program),
            workers: Mutex::default(),
            rights: Mutex::default(),
            starting: Mutex::new(()),
        })
    }

    /// Has workers run `program` from now on. Those there are run another.
    pub(crate) fn set_program(&self, program: PathBuf) {
        *self.program.lock() = program;
        for worker in self.all() {
            worker.current.store(false, SeqCst);
        }
    }

    /// Returns all workers.
    pub(crate) fn all(&self) -> Vec<Arc<Worker>> {
        self.workers.lock().clone()
    }

    /// Finds a worker for the mount or device with this key, or starts one; `started` is told of it then, before
    /// it has one. What has the key counts as that worker's from now on.
    ///
    /// # Errors
    /// If none can be started.
    pub(crate) fn place(
        &self,
        key: &str,
        company: &Company,
        served: Served<'_>,
        started: impl Fn(&Arc<Worker>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Arc<Worker>> {
        let needs = served.image_needs();
        self.allow(company, needs.as_ref());
        loop {
            if company.is_shared()
                && let Some(worker) = self.with_room(key, company)
            {
                return Ok(worker);
            }
            // Who shares none with others waits for none of theirs.
            let _one_at_a_time = company.is_shared().then(|| self.starting.lock());
            if company.is_shared()
                && let Some(worker) = self.with_room(key, company)
            {
                return Ok(worker);
            }
            let program = self.program.lock().clone();
            let worker =
                Arc::new(self.start(&program, company.clone(), served.mount(), needs.clone())?);
            let taken = worker.reserve(key);
            self.workers.lock().push(Arc::clone(&worker));
            if let Err(error) = started(&worker) {
                worker.kill();
                self.bury(&worker);
                return Err(error);
            }
            if taken {
                return Ok(worker);
            }
        }
    }

    fn with_room(&self, key: &str, company: &Company) -> Option<Arc<Worker>> {
        let fits = |worker: &&Arc<Worker>| {
            worker.company == *company
                && worker.is_current()
                && worker.answers()
                && worker.reserve(key)
        };
        self.workers.lock().iter().find(fits).cloned()
    }

    /// Adds a worker that an earlier node has started, for mounts of this kind.
    ///
    /// # Errors
    /// If it has ended.
    pub(crate) fn find(
        &self,
        process: ProcessRef,
        company: Company,
    ) -> anyhow::Result<Arc<Worker>> {
        let mut workers = self.workers.lock();
        if let Some(known) = workers.iter().find(|worker| worker.process == process) {
            return Ok(Arc::clone(known));
        }
        let kind = (company, Rights::of(process.pid));
        let worker = Arc::new(Worker::new(process, &self.run_dir, kind, None)?);
        worker.current.store(runs_our_program(process.pid), SeqCst);
        workers.push(Arc::clone(&worker));
        Ok(worker)
    }

    /// Takes a dead worker out, and returns the keys of its mounts and devices.
    pub(crate) fn bury(&self, worker: &Arc<Worker>) -> BTreeSet<String> {
        self.workers.lock().retain(|w| !Arc::ptr_eq(w, worker));
        // It left its socket behind, unless it was orderly.
        let _gone = std::fs::remove_file(&worker.socket);
        worker.close()
    }
}

/// Takes away what workers left that died while there was no node: their numbers will be others',
/// and may be ours.
fn sweep(sockets: &Path) -> anyhow::Result<()> {
    let reading = || format!("reading {}", sockets.display());
    for entry in std::fs::read_dir(sockets).with_context(reading)? {
        let path = entry.with_context(reading)?.path();
        let pid = path
            .file_stem()
            .and_then(|stem| stem.to_str()?.parse().ok());
        let Some(pid) = pid else { continue };
        if pid == std::process::id() || process_start(pid).is_err() || nobody_listens(&path) {
            let removing = || format!("removing {}", path.display());
            std::fs::remove_file(&path).with_context(removing)?;
        }
    }
    Ok(())
}

/// Returns whether the process that bound a socket is gone: its number may be another process's already.
fn nobody_listens(socket: &Path) -> bool {
    matches!(rawio::unix_socket::is_served(socket), Ok(false))
}

/// Returns whether a process runs the program that this one runs.
fn runs_our_program(pid: u32) -> bool {
    let program = |process: &str| std::fs::metadata(format!("/proc/{process}/exe"));
    match (program("self"), program(&pid.to_string())) {
        (Ok(ours), Ok(its)) => (ours.dev(), ours.ino()) == (its.dev(), its.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    #[test]
    fn what_the_dead_left_goes_whoever_has_their_numbers_now() {
        let dir = tempfile::tempdir().unwrap();
        let mut others = [(); 2].map(|()| Command::new("sleep").arg("60").spawn().unwrap());
        let [listens, taken] = [0, 1].map(|at| others[at].id());
        let at = |pid: u32| dir.path().join(format!("{pid}.sock"));
        let listening = UnixListener::bind(at(listens)).unwrap();
        drop(UnixListener::bind(at(taken)).unwrap());
        drop(UnixListener::bind(at(std::process::id())).unwrap());
        let mut gone = Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        drop(UnixListener::bind(at(gone.id())).unwrap());
        std::fs::write(dir.path().join("notes"), "").unwrap();
        sweep(dir.path()).unwrap();
        let names = std::fs::read_dir(dir.path()).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().path()).collect();
        names.sort();
        assert_eq!(names, [at(listens), dir.path().join("notes")]);
        drop(listening);
        for other in &mut others {
            other.kill().and_then(|()| other.wait()).unwrap();
        }
    }
}
