//! All sandboxes of a program: made, found again, and ended.

mod known;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rawio::child::Started;
use rawio::fd::make_room;
use rawio::file_lock::FileLock;
use rawio::pidfd::Namespace;
use rawio::private::make_dir;
use serde::{Deserialize, Serialize};

use crate::base::BaseSpec;
use crate::cgroup::{Hierarchies, Pool};
use crate::confinement::Confinement;
use crate::error::{Result, SandboxError, at, step};
use crate::exec::Execution;
use crate::later::Later;
use crate::launch::{Launch, Mounts, Parts, User};
use crate::network::{BridgeConfig, Lease, Networks};
use crate::process;
use crate::record::{self, Record, Records};
use crate::request::{Request, Stdio};
use crate::restore::{self, Found};
use crate::sandbox::{Controls, Next, Phase, Sandbox, now_ms};
use crate::starters::Starters;
use crate::stdio::{Streams, open_stdio};
use crate::watch::Shared;
use crate::zygote::Zygotes;
use known::Known;

/// For this many descriptors the table is made at once; a sandbox has some seven.
const DESCRIPTORS: u32 = 8 << 10;

/// Where and how sandboxes are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The directory that remembers what runs. It belongs to one program at a time.
    pub run_dir: PathBuf,
    /// The control group that sandboxes are in, in each hierarchy.
    pub cgroup: String,
    /// The user of the first sandbox; the others have the next ones.
    pub first_uid: u32,
    /// How many sandboxes there may be.
    pub sandboxes_max: u32,
    /// The bridge of those that have a network of their own; `None` for no such sandboxes.
    pub bridge: Option<BridgeConfig>,
}

impl Config {
    /// Returns the default configuration, with a directory and a control group.
    pub fn new(run_dir: impl Into<PathBuf>, cgroup: &str) -> Self {
        Self {
            run_dir: run_dir.into(),
            cgroup: cgroup.to_owned(),
            // Behind all that systemd gives to containers (`systemd-nspawn(1)`), and below the
            // numbers that some programs take for negative.
            first_uid: 0x7000_0000,
            sandboxes_max: 4096,
            bridge: None,
        }
    }
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Sandboxes that were started.
    pub started: u64,
    /// Starts that failed.
    pub failed: u64,
    /// Sandboxes that have ended.
    pub ended: u64,
    /// Sandboxes of a former process that run on.
    pub adopted: u64,
}

/// The sandboxes of a program. Dropping it ends none of them: the next program finds them again.
#[derive(Debug)]
pub struct Sandboxes {
    pub(crate) config: Config,
    pub(crate) shared: Arc<Shared>,
    pub(crate) confinement: Arc<Confinement>,
    /// Has Zygotes fork in advance.
    pub(crate) preparing: Later,
    bases: RwLock<BTreeMap<String, Arc<Starters>>>,
    known: Mutex<Known>,
    started: AtomicU64,
    failed: AtomicU64,
    adopted: u64,
    watch: Option<JoinHandle<()>>,
    _lock: FileLock,
}

/// A process that is to be a sandbox.
#[derive(Debug)]
pub(crate) struct Newborn {
    pub(crate) started: Started,
    pub(crate) user: User,
    /// The Zygotes that it descends from.
    pub(crate) ancestry: Vec<String>,
}

impl Sandboxes {
    /// Opens the directory, finds the running sandboxes, and removes the rest of others. From now on this process leaves no
    /// core file, and only root reads its memory.
    ///
    /// # Errors
    /// If another program uses the directory, the machine lacks the needed control groups, or this
    /// process is not root.
    pub fn open(config: Config) -> Result<Self> {
        // Until its program runs, a sandbox shares this memory, and is its user already.
        nix::sys::prctl::set_dumpable(false).map_err(step("closing this memory to others"))?;
        let dir = &config.run_dir;
        // Records have the variables of programs in them.
        make_dir(dir).map_err(at("making", dir))?;
        let dir = dir.canonicalize().map_err(at("opening", dir))?;
        let lock = take_lock(&dir)?;
        let null = File::open("/dev/null").map_err(at("opening", "/dev/null"))?;
        make_room(null.as_fd(), DESCRIPTORS).map_err(step("making room for descriptors"))?;
        let config = Config {
            run_dir: dir.clone(),
            ..config
        };
        let hierarchies = Hierarchies::open(&config.cgroup)?;
        let records = Records::open(dir.join("sandboxes"))?;
        let found = restore::find(&hierarchies, &records)?;
        let pool = Pool::new(hierarchies, config.sandboxes_max, &found.slots());
        let found = found.running;
        let addresses: Vec<_> = found.iter().filter_map(Found::address).collect();
        let networks = Networks::open(config.bridge.as_ref(), &dir, &addresses)?;
        // Behind those of sandboxes that are no Zygote's.
        let first = config.first_uid + config.sandboxes_max;
        let zygotes = Zygotes::new(first, config.sandboxes_max + 1);
        let shared = Arc::new(Shared::new(pool, networks, records, zygotes)?);
        let watch = Some(shared.watch()?);
        let sandboxes = Self {
            config,
            shared,
            confinement: Arc::new(Confinement::new()?),
            preparing: Later::start("sandbox-spares", 1)?,
            bases: RwLock::default(),
            known: Mutex::default(),
            started: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            adopted: u64::try_from(found.len()).unwrap_or(0),
            watch,
            _lock: lock,
        };
        for found in found {
            let group = sandboxes.shared.pool.adopt(&found.dir, found.slot)?;
            let sandbox = found.into_sandbox(group, &sandboxes.shared.networks);
            sandboxes.know(&Arc::new(sandbox))?;
        }
        Ok(sandboxes)
    }

    /// Adds a base. Its threads are started, and its directories are mounted for them.
    ///
    /// # Errors
    /// If there is one of this name, or it cannot be mounted.
    pub fn add_base(&self, spec: &BaseSpec) -> Result<()> {
        let name = spec.name.clone();
        let exists = || SandboxError::Exists {
            kind: "base",
            name: name.clone(),
        };
        if self.bases.read().contains_key(&name) {
            return Err(exists());
        }
        let aside = self.config.run_dir.join("sandboxes");
        let starters = Arc::new(Starters::start(spec, &aside)?);
        match self.bases.write().entry(name.clone()) {
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(starters);
                Ok(())
            }
            std::collections::btree_map::Entry::Occupied(_) => Err(exists()),
        }
    }

    /// Removes a base. Sandboxes that use it keep it.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn remove_base(&self, name: &str) -> Result<()> {
        let removed = self.bases.write().remove(name);
        removed.map(drop).ok_or_else(|| unknown("base", name))
    }

    /// Returns the names of the bases.
    pub fn bases(&self) -> Vec<String> {
        self.bases.read().keys().cloned().collect()
    }

    pub(crate) fn starters(&self, base: &str) -> Result<Arc<Starters>> {
        let bases = self.bases.read();
        bases
            .get(base)
            .cloned()
            .ok_or_else(|| unknown("base", base))
    }

    /// Makes a sandbox, and returns when its program runs.
    ///
    /// # Errors
    /// If the request is invalid, there are too many sandboxes, or the kernel refuses; then nothing of it
    /// remains.
    pub fn create(&self, request: Request, stdio: Stdio) -> Result<Arc<Sandbox>> {
        let created = self.try_to_create(request, stdio);
        let counter = if created.is_ok() {
            &self.started
        } else {
            &self.failed
        };
        counter.fetch_add(1, Relaxed);
        created
    }

    fn try_to_create(&self, request: Request, stdio: Stdio) -> Result<Arc<Sandbox>> {
        let starters = self.starters(&request.base)?;
        request.strings()?;
        if request.python.is_some() {
            return self.create_python(request, stdio, &starters);
        }
        let mounts = Mounts::of(&request)?;
        let (stdio, streams) = open_stdio(stdio)?;
        self.create_fresh(request, &starters, &mounts, &stdio, streams)
    }

    /// Starts a program, and not a copy of one.
    pub(crate) fn create_fresh(
        &self,
        request: Request,
        starters: &Starters,
        mounts: &Mounts,
        stdio: &[OwnedFd; 3],
        streams: Streams,
    ) -> Result<Arc<Sandbox>> {
        let mut group = self.shared.pool.take()?;
        let user = self.user_of(group.slot);
        let limited = group.limit(&request.limits);
        let network = limited.and_then(|()| self.shared.networks.take(request.network));
        let network = match network {
            Ok(network) => network,
            Err(error) => {
                self.shared.pool.put_back(group);
                return Err(error);
            }
        };
        // Where the caller's directories are mounted ends with the last process, and not a moment later.
        let room = match request.has_directories() {
            true => None,
            false => starters.room(),
        };
        let parts = Parts {
            group: &group,
            network: network.as_ref(),
            room: room.as_ref(),
            mounts,
            stdio,
            user,
        };
        let started = Launch::start(&request, &parts, &self.confinement, starters);
        let controls = Controls {
            group,
            network,
            next: Next::Anybody,
            mounts: room.map(|room| room.mounts),
        };
        match started {
            Ok(started) => {
                let newborn = Newborn {
                    started,
                    user,
                    ancestry: Vec::new(),
                };
                self.enroll(request, newborn, controls, streams)
            }
            Err(error) => {
                controls.give_back(&self.shared.pool, &self.shared.networks);
                Err(error)
            }
        }
    }

    /// Writes a sandbox down whose program was just started, and watches it.
    pub(crate) fn enroll(
        &self,
        request: Request,
        newborn: Newborn,
        mut controls: Controls,
        streams: Streams,
    ) -> Result<Arc<Sandbox>> {
        let Newborn {
            started: Started { pid, process },
            user,
            ancestry,
        } = newborn;
        let shared = &self.shared;
        let slot = controls.group.slot;
        // The caller's directories are mounted nowhere any more when it is told of the end.
        if !request.has_directories() && controls.mounts.is_none() {
            controls.mounts = process.namespace(Namespace::Mount).unwrap_or_default();
        }
        let (streams, pipes) = streams.unzip();
        let written = record::new_id().and_then(|id| {
            let record = Record {
                id,
                pid,
                started: process::started(pid).unwrap_or(0),
                created_ms: now_ms(),
                user: user.0,
                pipes,
                ancestry,
                address: controls.network.as_ref().and_then(Lease::address),
                request,
            };
            shared.records.write(slot, &record).map(|()| record)
        });
        let record = match written {
            Ok(record) => record,
            Err(error) => {
                // It must not run without a record.
                process::end(&process);
                shared.records.remove(slot);
                controls.give_back(&shared.pool, &shared.networks);
                return Err(error);
            }
        };
        let sandbox = Sandbox::new(record, process, controls, streams, Phase::Running);
        let sandbox = Arc::new(sandbox);
        if let Err(error) = self.know(&sandbox) {
            // Nobody would be told of its end.
            shared.end_unwatched(&sandbox);
            return Err(error);
        }
        Ok(sandbox)
    }

    pub(crate) fn user_of(&self, slot: u32) -> User {
        User(self.config.first_uid + slot)
    }

    /// Lists a sandbox and watches it. If it cannot be watched, it is not listed.
    fn know(&self, sandbox: &Arc<Sandbox>) -> Result<()> {
        self.known.lock().add(sandbox);
        let watched = self.shared.add(sandbox);
        watched.inspect_err(|_| self.known.lock().forget(sandbox.id()))
    }

    /// Returns all sandboxes that run, and the last ones that have ended.
    pub fn list(&self) -> Vec<Arc<Sandbox>> {
        self.known.lock().all()
    }

    /// Returns a sandbox by its id.
    ///
    /// # Errors
    /// If there is none, or it ended long ago.
    pub fn get(&self, id: &str) -> Result<Arc<Sandbox>> {
        let sandbox = self.known.lock().get(id);
        sandbox.ok_or_else(|| unknown("sandbox", id))
    }

    /// Starts another program in a sandbox: with its user, its limits and its rights.
    ///
    /// # Errors
    /// If the sandbox has ended, or the program cannot be started.
    pub fn exec(
        &self,
        sandbox: &Arc<Sandbox>,
        command: &[String],
        stdio: [OwnedFd; 3],
    ) -> Result<Execution> {
        let mut request = sandbox.request().clone();
        request.command = command.to_vec();
        request.python = None;
        let confinement = Arc::clone(&self.confinement);
        let user = User(sandbox.user());
        Execution::start(sandbox, request, stdio, user, confinement)
    }

    /// Mounts a directory at `/code` of a sandbox that was made without one. For a program that was started before its
    /// handler was known.
    ///
    /// # Errors
    /// If the sandbox has ended, or the directory cannot be mounted.
    pub fn mount_code(&self, sandbox: &Arc<Sandbox>, dir: &std::path::Path) -> Result<()> {
        crate::exec::mount_code(sandbox, dir)
    }

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        Counts {
            started: self.started.load(Relaxed),
            failed: self.failed.load(Relaxed),
            ended: self.shared.ended.load(Relaxed),
            adopted: self.adopted,
        }
    }

    /// Ends all sandboxes, waits for that within a deadline, and removes prepared resources.
    ///
    /// # Errors
    /// If one does not end in time.
    pub fn end_all(&self, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        let all = self.list();
        for sandbox in &all {
            sandbox.kill()?;
        }
        for sandbox in &all {
            let left = deadline.saturating_duration_since(Instant::now());
            if sandbox.wait(left).is_none() {
                let doing = "ending all sandboxes";
                return Err(SandboxError::Late { doing, patience });
            }
        }
        self.end_zygotes();
        self.shared.pool.clear();
        Ok(())
    }
}

impl Drop for Sandboxes {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(watch) = self.watch.take()
            && watch.join().is_err()
        {
            log::error!("the thread that watches sandboxes ended in a panic");
        }
        self.end_zygotes();
        self.shared.pool.clear();
        self.shared.networks.close();
    }
}

/// How long a process that was just started by a killed program may hold the lock: until it executes
/// its own.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// Takes the directory for this program.
fn take_lock(dir: &Path) -> Result<FileLock> {
    let path = dir.join("lock");
    let lock = File::create(&path).map_err(at("making", &path))?;
    let taken = FileLock::unless(lock, LOCK_PATIENCE, || false);
    taken.map_err(at("locking", path))?.ok_or_else(|| {
        SandboxError::Invalid(format!(
            "another program has its sandboxes in {}: choose another directory",
            dir.display()
        ))
    })
}

fn unknown(kind: &'static str, name: &str) -> SandboxError {
    let name = name.to_owned();
    SandboxError::Unknown { kind, name }
}

#[cfg(all(test, feature = "privileged"))]
mod tests;
