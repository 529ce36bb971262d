//! The processes of the node service: the node itself and, without systemd, its keeper.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::Context as _;
use confine::Identity;
use fdstore::{Inherited, Keeper, Limits, Notifier, Program, StoreError, Variables};

use super::api::{self, Api};
use super::attach::keep_restoring;
use super::keep::{self, Keep, Returned};
use super::owner::{Config, Owner, Tools, own_program};
use super::ownership::{Ownership, taken};
use super::takeover::Orphans;
use super::workers::Pool;
use super::{guard, learn, probe, restore, watch};
use bootstore::store::StoreSettings;
use bootstore::tiers::background::Background;
use host::interrupt::Interrupt;
use host::run_dir::RunDir;
use node_records::devices::DeviceRecords;
use node_records::instance::Records;

/// The name of the API's socket among the descriptors: ours, and that of the socket unit.
const API: &str = "api";

/// The flag of the process that becomes the keeper of the node that started it.
pub const KEEP_FLAG: &str = "--keep-parent";

/// How long the first attempt to restore all mounts holds up who waits for the node: the engines,
/// on a machine that boots.
const RESTORE: Duration = Duration::from_secs(60);

/// The node is among the last to go when memory runs out: all mounts hang on it.
const OOM_SCORE: &str = "-900";

/// What the service is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where sockets, records of mounts and workers are.
    pub run_dir: PathBuf,
    /// Where is written what survives a reboot.
    pub state_dir: PathBuf,
    /// At most so many mounts.
    pub most_mounts: usize,
    /// The user of the workers; `None` if it is the node's.
    pub worker_user: Option<Identity>,
    /// The store whose boot images lie on tiers, and the tiers file.
    pub store: StoreSettings,
}

/// Runs the node, or the keeper that starts it, until it receives a request to end.
///
/// # Errors
/// If the directories cannot be used, or another node uses them.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    spare_from_oom();
    match std::env::var_os("NOTIFY_SOCKET") {
        Some(manager) => serve(settings, &manager),
        None => {
            let run_dir = RunDir::open(&settings.run_dir)?;
            // Asked before anything of the other's is touched: that may have no keeper at the moment.
            Ownership::is_free(&run_dir)?;
            Ownership::is_free_state(&settings.state_dir)?;
            let keeper = Keeper::new(node_program(), &keeper_lock(&run_dir), Limits::default());
            let keeper = keeper.map_err(|error| match error {
                StoreError::Taken { process } => taken(&run_dir, process),
                error => error.into(),
            })?;
            // Where a keeper of an earlier release has listened.
            let _gone = std::fs::remove_file(run_dir.path().join("keeper.sock"));
            keeper.run().context("keeping the node running").map(drop)
        }
    }
}

/// Runs as the keeper of the node that started this process.
///
/// # Errors
/// If that node has ended.
pub fn keep_parent(settings: &Settings) -> anyhow::Result<()> {
    let inherited = Inherited::take(&variables())?;
    let lock = keeper_lock(&RunDir::open(&settings.run_dir)?);
    let keeper = Keeper::adopt(node_program(), &lock, Limits::default(), inherited)?;
    keeper.run().context("keeping the node running").map(drop)
}

/// What a keeper starts: this program with the same arguments, and without [`KEEP_FLAG`].
fn node_program() -> Program {
    let arguments = std::env::args_os().skip(1);
    Program {
        path: own_program(),
        arguments: arguments.filter(|argument| argument != KEEP_FLAG).collect(),
        variables: std::env::vars_os().collect(),
    }
}

fn keeper_lock(run_dir: &RunDir) -> PathBuf {
    run_dir.path().join("keeper.lock")
}

fn variables() -> Variables {
    let get = |name: &str| std::env::var_os(name);
    Variables {
        pid: get("LISTEN_PID"),
        count: get("LISTEN_FDS"),
        names: get("LISTEN_FDNAMES"),
    }
}

/// Returns the way to what keeps this node, the keeper with this number or else systemd.
fn way_to(
    manager: &OsStr,
    keeper: Option<u32>,
    inherited: &mut Inherited,
) -> anyhow::Result<Notifier> {
    let notifier = Notifier::find(manager, inherited).context("reaching the service manager")?;
    if let Some(keeper) = keeper.filter(|_| notifier.has_name()) {
        log::warn!(
            "the keeper (process {keeper}) is of an earlier release, which accepts messages of anyone at \
             it: end it and start `yolofs node` again, mounts stay"
        );
    }
    Ok(notifier)
}

/// Is the node.
fn serve(settings: &Settings, manager: &OsStr) -> anyhow::Result<()> {
    let end = Interrupt::install()?;
    mounting::descriptors::allow_many_files();
    let run_dir = RunDir::open(&settings.run_dir)?;
    let records = Records::open(run_dir.path(), &settings.state_dir)?;
    let device_records = DeviceRecords::open(run_dir.path(), &settings.state_dir)?;
    let _only_one = Ownership::take(&run_dir)?;
    let _only_keeper = Ownership::take_state(&settings.state_dir)?;
    let mut inherited = Inherited::take(&variables())?;
    let listener = inherited.remove(API).into_iter().next();
    let keeper = guard::keeper_pid();
    let keep = Keep::new(way_to(manager, keeper, &mut inherited)?);
    let listener = match listener {
        Some(socket) => UnixListener::from(socket),
        None => {
            let listener = api::listen(&node_api::bodies::socket(&run_dir))?;
            keep.put_one(API, listener.as_fd());
            listener
        }
    };
    let found = records.instances()?;
    let mut damaged = found.damaged;
    damaged.extend(records.desired_mounts()?.damaged);
    let found_devices = device_records.instances()?;
    damaged.extend(found_devices.damaged);
    damaged.extend(device_records.desired()?.damaged);
    let background = match settings.store.names_tiers() {
        true => Some(Background::start(&settings.store)?),
        false => None,
    };
    let config = Config {
        tiers: background.as_ref().map(Background::watched),
        most_mounts: settings.most_mounts,
        kept_by: match keeper {
            Some(_) => "keeper",
            None => "systemd",
        }
        .to_owned(),
        damaged,
        store: settings.store.clone(),
    };
    let tools = Tools {
        pool: Pool::new(
            run_dir.path(),
            own_program(),
            settings.worker_user,
            settings.store.tiers_env().into_iter().collect(),
        )?,
        run_dir: run_dir.clone(),
        records,
        device_records,
        keep,
        end: end.clone(),
    };
    let owner = Owner::new(config, tools);
    let instances = found.records.into_iter().map(|(_, instance)| instance);
    let devices = found_devices.records.into_iter().map(|(_, device)| device);
    let orphans = owner.take_over(instances.collect(), devices.collect(), sort(inherited));
    watch::start(Arc::downgrade(&owner))?;
    let probed = Arc::downgrade(&owner);
    probe::start(move || Some(probed.upgrade()?.pool.all()))?;
    restore::start(Arc::downgrade(&owner))?;
    learn::start(Arc::downgrade(&owner))?;
    if let Some(keeper) = keeper {
        let listener = listener.try_clone().context("sharing the API's socket")?;
        guard::start(Arc::downgrade(&owner), keeper, listener, keep_program())?;
    }
    let api = Api::serve(listener, Arc::clone(&owner) as _)?;
    begin(&owner, orphans)?;
    end.wait();
    // Whoever asked for something has the answer first.
    drop(api);
    owner.leave();
    drop(background);
    Ok(())
}

/// Has everything served that shall be: what an earlier node left, and then the desired mounts. Tells
/// the manager when that is done, or takes so long that others must not wait for it.
fn begin(owner: &Arc<Owner>, orphans: Orphans) -> anyhow::Result<()> {
    let (tell, told) = channel();
    let beginning = Arc::clone(owner);
    let begin = move || {
        let Orphans { mounts, devices } = orphans;
        std::thread::scope(|scope| {
            scope.spawn(|| beginning.serve_devices(devices));
            beginning.serve_all(mounts);
            beginning.restore();
        });
        if !beginning.restore_devices()
            && let Err(error) = keep_restoring(Arc::downgrade(&beginning))
        {
            log::error!("{error:#}");
        }
        let _too_late = tell.send(());
    };
    let waiting = Arc::clone(owner);
    let report = move || {
        if told.recv_timeout(RESTORE).is_err() {
            let seconds = RESTORE.as_secs();
            log::warn!(
                "not all mounts are restored within {seconds} s; continuing in the background"
            );
        }
        waiting.keep.tell(Notifier::ready);
    };
    let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(work)
    };
    spawn("begin", Box::new(begin))
        .and_then(|_| spawn("report", Box::new(report)))
        .map(drop)
        .context("starting the threads that restore mounts")
}

/// What keeps a node that has lost its keeper: this program with the same arguments.
fn keep_program() -> Program {
    let mut program = node_program();
    program.arguments.push(OsString::from(KEEP_FLAG));
    program
}

/// Sorts what the keeper returned by mount. What is none of ours is dropped.
fn sort(inherited: Inherited) -> BTreeMap<u32, Returned> {
    let mut returned: BTreeMap<u32, Returned> = BTreeMap::new();
    for (name, file) in inherited {
        match keep::parse(&name) {
            Some((kind, minor)) => returned.entry(minor).or_default().put(kind, file),
            None => log::warn!("the keeper handed over an unknown descriptor {name}"),
        }
    }
    returned
}

/// Has the kernel end other processes before this one when memory runs out, if it lets us.
fn spare_from_oom() {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE) {
        log::debug!("the node is as likely to be killed as any other process: {error}");
    }
}
