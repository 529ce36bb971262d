//! The node: its state, and the handlers of requests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use fdstore::Notifier;
use parking_lot::Mutex;
use yolofs::Busy;

use super::assignment::Service;
use super::device::{self, Devices};
use super::keep::Keep;
use super::missing::{Missing, listed};
use super::mount_locks::MountLocks;
use super::owned::Owned;
use super::probe::{Statuses, ask_about, ask_all};
use super::wire::{WorkerRequest, WorkerResponse};
use super::workers::{Pool, Worker};
use bootstore::store::StoreSettings;
use bootstore::tiers::background::Watched;
use host::interrupt::Interrupt;
use host::run_dir::RunDir;
use node_api::boot_choice::BootChoice;
use node_api::control::{Made, NodeControl, NodeError, WhenInUse};
use node_api::device::{Attached, DeviceSpec, DeviceView};
use node_api::image::KeptPlan;
use node_api::mount_daemon::PrewarmSummary;
use node_api::spec::MountSpec;
use node_api::view::{Drained, MountView, NodeView, Upgraded, WorkerView};
use node_records::devices::DeviceRecords;
use node_records::instance::Records;

/// How long workers have to tell of their mounts; who takes longer is shown as the node knows it.
const TELL: Duration = Duration::from_secs(1);
/// How long a prewarm may take: it reads a whole boot image, from a disk that may be busy.
const PREWARM: Duration = Duration::from_secs(600);
/// How long the change of a boot image may take: it is opened, and compared with the source.
const SWAP: Duration = Duration::from_secs(60);

/// Settings of the node, from its start.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// At most so many mounts.
    pub most_mounts: usize,
    /// What keeps its descriptors, for people: `systemd` or `keeper`.
    pub kept_by: String,
    /// Records that could not be read when it started.
    pub damaged: Vec<PathBuf>,
    /// The store and the tiers.
    pub store: StoreSettings,
    /// The tiers that it moves boot images between, if it does.
    pub tiers: Option<Watched>,
}

/// What a node works with.
#[derive(Debug)]
pub(crate) struct Tools {
    /// Where mounts without a node are described.
    pub run_dir: RunDir,
    /// What is written down of mounts.
    pub records: Records,
    /// What is written down of devices.
    pub device_records: DeviceRecords,
    /// Who keeps descriptors.
    pub keep: Keep,
    /// The workers.
    pub pool: Pool,
    /// Ends the process, to be started again.
    pub end: Interrupt,
}

/// The node.
#[derive(Debug)]
pub(crate) struct Owner {
    /// A reference to itself, for its threads.
    pub me: Weak<Self>,
    pub config: Config,
    pub run_dir: RunDir,
    pub records: Records,
    pub device_records: DeviceRecords,
    pub keep: Keep,
    pub pool: Pool,
    pub devices: Devices,
    pub mount_locks: MountLocks,
    pub missing: Missing,
    /// Held while another program is put in.
    pub upgrading: Mutex<()>,
    /// Ends the process, to be started again.
    pub end: Interrupt,
    /// By key. Never held during a request or a wait.
    mounts: Mutex<BTreeMap<String, Arc<Owned>>>,
    draining: AtomicBool,
    restarting: AtomicBool,
    pub worker_restarts: AtomicU64,
    started: Instant,
}

impl Owner {
    /// Returns a node without mounts.
    pub(crate) fn new(config: Config, tools: Tools) -> Arc<Self> {
        let Tools {
            run_dir,
            records,
            device_records,
            keep,
            pool,
            end,
        } = tools;
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            config,
            run_dir,
            records,
            device_records,
            keep,
            pool,
            devices: Devices::default(),
            mount_locks: MountLocks::default(),
            missing: Missing::default(),
            upgrading: Mutex::new(()),
            end,
            mounts: Mutex::default(),
            draining: AtomicBool::new(false),
            restarting: AtomicBool::new(false),
            worker_restarts: AtomicU64::new(0),
            started: Instant::now(),
        })
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(SeqCst)
    }

    /// Logs which mounts remain when the node ends.
    pub(crate) fn leave(&self) {
        for device in self.devices.all() {
            device.leave_place();
        }
        if self.restarting.load(SeqCst) {
            return;
        }
        self.keep.tell(Notifier::stopping);
        for worker in self.pool.all() {
            if worker.end_if_idle() {
                self.pool.bury(&worker);
            }
        }
        let (mounts, workers) = (self.count(), self.pool.all().len());
        let devices = self.devices.len();
        if mounts + devices > 0 {
            log::warn!(
                "the node ends; {mounts} mounts and {devices} devices stay, served by {workers} workers"
            );
        }
    }

    /// Ends the process, to be started again.
    pub(crate) fn restart(&self) {
        self.restarting.store(true, SeqCst);
        self.end.ask();
    }

    /// Returns all mounts, leaving ones and failed ones included.
    pub(crate) fn all(&self) -> Vec<Arc<Owned>> {
        self.mounts.lock().values().cloned().collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.mounts.lock().len()
    }

    pub(crate) fn add(&self, mount: &Arc<Owned>) {
        let mut mounts = self.mounts.lock();
        mounts.insert(mount.key.clone(), Arc::clone(mount));
    }

    /// Returns whether a mount still exists, if only for its remaining users.
    pub(crate) fn has(&self, mount: &Owned) -> bool {
        self.mounts.lock().contains_key(&mount.key)
    }

    /// Removes a mount, and returns whether it was there.
    pub(crate) fn remove(&self, mount: &Arc<Owned>) -> bool {
        let mut mounts = self.mounts.lock();
        let there = mounts
            .get(&mount.key)
            .is_some_and(|its| Arc::ptr_eq(its, mount));
        if there {
            mounts.remove(&mount.key);
        }
        there
    }

    /// Returns the mounts with these keys that are still there.
    pub(crate) fn with_keys(&self, keys: &BTreeSet<String>) -> Vec<Arc<Owned>> {
        let mounts = self.mounts.lock();
        keys.iter()
            .filter_map(|key| mounts.get(key).cloned())
            .collect()
    }

    /// Returns the mount at a place that is not leaving.
    pub(crate) fn visible_at(&self, id: &str) -> Option<Arc<Owned>> {
        let mounts = self.mounts.lock();
        let mut at = mounts.values().filter(|mount| mount.id == id);
        at.find(|mount| !mount.is_leaving()).cloned()
    }

    /// Returns a mount by what it is shown as: the id of its place or, if it is leaving, its key.
    fn shown_as(&self, id: &str) -> Result<Arc<Owned>, NodeError> {
        let leaving = || self.mounts.lock().get(id).cloned();
        self.visible_at(id)
            .or_else(leaving)
            .ok_or_else(|| NodeError::Unknown(id.to_owned()))
    }

    /// Writes a mount's record. A disk that is full costs no mount.
    pub(crate) fn record(&self, mount: &Owned) {
        if let Err(error) = mount.record(&self.records) {
            log::error!("{error:#}");
        }
    }

    /// Returns the view of one mount, from its worker if that responds in time.
    pub(crate) fn view_of(&self, mount: &Arc<Owned>) -> MountView {
        let worker = match mount.assigned.service() {
            Service::By(worker) if worker.answers() => vec![worker],
            _ => Vec::new(),
        };
        let (mut heard, _) = ask_about(&worker, Some(&mount.key), TELL);
        mount.view(heard.mounts.remove(&mount.key))
    }

    /// Returns the worker that serves a mount.
    fn worker_of(mount: &Owned) -> Result<Arc<Worker>, NodeError> {
        match mount.assigned.service() {
            Service::By(worker) => Ok(worker),
            Service::GivenUp(why) => Err(NodeError::Conflict(why)),
            Service::Nobody | Service::Asked(_) => Err(NodeError::Unavailable(
                "its worker is being replaced".to_owned(),
            )),
        }
    }
}

impl NodeControl for Owner {
    fn node(&self) -> NodeView {
        let workers = self.pool.all();
        let view = |worker: &Arc<Worker>| {
            let keys = worker.keys();
            let devices = keys.iter().filter(|key| device::is_key(key)).count() as u64;
            WorkerView {
                pid: worker.process.pid,
                mounts: keys.len() as u64 - devices,
                devices,
                current: worker.is_current(),
            }
        };
        NodeView {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs(),
            draining: self.is_draining(),
            mounts: u64::try_from(self.count()).unwrap_or(u64::MAX),
            devices: self.devices.len() as u64,
            worker_restarts: self.worker_restarts.load(SeqCst),
            workers: workers.iter().map(view).collect(),
            keeper: self.config.kept_by.clone(),
            damaged: self.config.damaged.clone(),
            tiers: self
                .config
                .tiers
                .as_ref()
                .map(Watched::view)
                .unwrap_or_default(),
        }
    }

    fn mounts(&self) -> Vec<MountView> {
        // Before the others: what is made meanwhile is listed twice, and not missed.
        let missing = self.missing.views();
        let mut workers = self.pool.all();
        workers.retain(|worker| worker.answers() && worker.load() > 0);
        let (mut heard, _): (Statuses, _) = ask_all(&workers, TELL);
        let mounts = self.all();
        let there = mounts
            .iter()
            .map(|mount| mount.view(heard.mounts.remove(&mount.key)));
        listed(missing, there.collect())
    }

    fn mount(&self, id: &str) -> Result<MountView, NodeError> {
        let missing = self.missing.view(id);
        match (self.shown_as(id), missing) {
            (Ok(mount), _) => Ok(self.view_of(&mount)),
            (Err(_), Some(view)) => Ok(view),
            (Err(error), None) => Err(error),
        }
    }

    fn make(&self, spec: MountSpec) -> Result<Made, NodeError> {
        self.make_mount(&spec)
    }

    fn unmount(&self, id: &str, when_in_use: WhenInUse) -> Result<(), NodeError> {
        let busy = match when_in_use {
            WhenInUse::Refuse => Busy::Wait,
            WhenInUse::Detach => Busy::Lazy,
        };
        self.unmount_at(id, busy)
    }

    fn prewarm(&self, id: &str, budget_bytes: Option<u64>) -> Result<PrewarmSummary, NodeError> {
        let mount = self.shown_as(id)?;
        let question = WorkerRequest::Prewarm {
            id: mount.key.clone(),
            budget_bytes,
        };
        match Self::worker_of(&mount)?.ask(&question, PREWARM)? {
            WorkerResponse::Prewarmed(summary) => Ok(summary),
            other => Err(unexpected(id, other)),
        }
    }

    fn swap(&self, id: &str, boot: BootChoice) -> Result<MountView, NodeError> {
        let _lock = self.mount_locks.take(id)?;
        let mount = self.shown_as(id)?;
        let question = WorkerRequest::Swap {
            id: mount.key.clone(),
            boot: boot.clone(),
        };
        match Self::worker_of(&mount)?.ask(&question, SWAP)? {
            WorkerResponse::Done => {}
            other => return Err(unexpected(id, other)),
        }
        // A later worker, and the mount after a reboot, serve from it, too.
        let spec = MountSpec {
            boot,
            ..mount.spec()
        };
        mount.set_spec(spec.clone());
        self.record(&mount);
        self.keep_desired(&mount.id, &spec)?;
        Ok(self.view_of(&mount))
    }

    fn devices(&self) -> Vec<DeviceView> {
        let mut views = self.device_views(&self.devices.all());
        views.extend(self.file_views());
        views.extend(self.devices.missing_views());
        views.sort_by(|a, b| a.name.cmp(&b.name));
        views
    }

    fn attach(&self, spec: DeviceSpec) -> Result<Attached, NodeError> {
        self.attach_device(&spec)
    }

    fn detach(&self, name: &str) -> Result<(), NodeError> {
        self.detach_device(name)
    }

    fn resize(&self, name: &str, size: u64) -> Result<DeviceView, NodeError> {
        self.resize_device(name, size)
    }

    fn keep_plan(&self, name: &str) -> Result<KeptPlan, NodeError> {
        self.keep_plan_of(name)
    }

    fn drain(&self) -> Result<Drained, NodeError> {
        self.draining.store(true, SeqCst);
        Ok(self.take_all_away())
    }

    fn upgrade(&self, program: &Path) -> Result<Upgraded, NodeError> {
        self.upgrade_to(program)
    }
}

/// What a worker's response means for the caller of a request about a mount.
fn unexpected(id: &str, answer: WorkerResponse) -> NodeError {
    match answer {
        WorkerResponse::Refused { fault, why } => match fault.error(why) {
            // The worker knows it by its key.
            NodeError::Unknown(_) => NodeError::Unknown(id.to_owned()),
            error => error,
        },
        other => NodeError::Failed(anyhow::anyhow!("a worker answered {other:?}")),
    }
}

/// Returns this program, whatever has become of the file it was started from.
pub(crate) fn own_program() -> PathBuf {
    PathBuf::from("/proc/self/exe")
}
