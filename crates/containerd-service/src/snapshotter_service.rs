//! `yolofs snapshotter`: containerd's snapshotter, whose layers are served from boot images.

pub mod block_images;
mod chains;
mod disk_mover;
pub mod first_boot;
mod kernel;
pub mod layers_fast;
mod mounts;
pub mod place_arg;
pub mod placing;
mod pods;
mod served;
pub(crate) mod staging;
pub mod status;
mod unpacker;
pub mod upper;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rawio::private;
use snapshotter::{
    Config, FastConfig, FastPlace, Lowers, Snapshotter, UpperConfig, WhenFull, service,
};

use block_images::{BlockImageSettings, DeviceId, NodeBlockImages};
use bootstore::store::StoreSettings;
use disk_mover::DiskMover;
use first_boot::{Ending, FirstBootsHand, Policy, recorder};
use host::interrupt::Interrupt;
use host::mount_table::needs_root;
use host::run_dir::RunDir;
use layers_fast::LayersBy;
use mounting::confinement;
use mounting::confinement::Service;
use mounts::wait_for_the_last;
use place_arg::FastPlaceSpec;
use placing::Placing;
use recording::until::Until;
use served::ServedLowers;
use staging::Staging;
use status::{LayersFastStatus, Request, Response, SnapshotterStatus, UpperStatus};
use unpacker::ContainerdUnpacker;
use upper::UpperFull;
use yolofs::XattrAnswers;

/// Threads for requests: containerd sends few at once, and each waits for a disk.
const REQUEST_THREADS: usize = 64;

/// How long a former process may take to leave: it answers its last requests, and unmounts.
const HANDOVER: Duration = Duration::from_secs(30);
/// How often it is looked whether it has left: nothing tells.
const HANDOVER_LOOK_MS: u16 = 50;

/// How the snapshotter of one containerd works.
#[derive(Clone, Debug)]
pub struct SnapshotterSettings {
    /// Directory of the snapshots.
    pub root: PathBuf,
    /// Socket that it listens on.
    pub address: PathBuf,
    /// Fast place for what containers write.
    pub upper: Option<FastPlaceSpec>,
    /// What to do when that place is full.
    pub upper_full: UpperFull,
    /// Fast place for layers that a pull waits for.
    pub layers_fast: Option<FastPlaceSpec>,
    /// How it is decided which layers these are.
    pub layers_by: LayersBy,
    /// Seconds without unpacking after which layers go from there to the disk.
    pub layers_stay: u64,
    /// Directory of the containerd that is served.
    pub containerd_root: PathBuf,
    /// Which requests for extended attributes are answered where no file has any.
    pub xattrs: XattrAnswers,
    /// Whether the first boot of every image is recorded.
    pub auto_record: bool,
    /// When a first boot is over.
    pub until: Until,
    /// Socket of the containerd that is served.
    pub containerd: PathBuf,
    /// How block images are served.
    pub block_images: BlockImageSettings,
    /// Socket of its NRI, if layers are to be warmed for pods.
    pub nri: Option<PathBuf>,
}

impl SnapshotterSettings {
    fn policy(&self) -> anyhow::Result<Policy> {
        let ending = Ending::try_from(&self.until).context("reading `until`")?;
        Ok(Policy {
            always: self.auto_record.then_some(ending),
        })
    }

    fn lowers(
        &self,
        root: &Path,
        run_dir: &RunDir,
        store: &StoreSettings,
        first_boots: &Arc<FirstBootsHand>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<ServedLowers> {
        let first_boots = Arc::clone(first_boots);
        ServedLowers::new(
            store.open()?,
            root,
            run_dir,
            first_boots,
            self.xattrs,
            interrupt,
        )
    }

    fn layers(&self, placing: &Placing) -> anyhow::Result<Option<FastConfig>> {
        let Some(layers) = &self.layers_fast else {
            return Ok(None);
        };
        let (place, max_bytes) = layers.open("layers_fast", layers_fast::DEFAULT_MAX)?;
        Ok(Some(FastConfig {
            place,
            max_bytes,
            unpacks: Arc::new(placing.clone()),
        }))
    }

    fn config(&self, placing: &Placing, containerd: &Path) -> anyhow::Result<Config> {
        let upper = self.upper.as_ref().map(|upper| {
            let (place, max_bytes) = upper.open("upper", upper::DEFAULT_MAX)?;
            Ok::<_, anyhow::Error>(UpperConfig {
                place,
                max_bytes,
                when_full: match self.upper_full {
                    UpperFull::Refuse => WhenFull::Refuse,
                    UpperFull::Spill => WhenFull::Spill,
                },
            })
        });
        private::make_dir(&self.root)
            .with_context(|| format!("making {}{}", self.root.display(), needs_root()))?;
        // Its path goes to containerd, and into mounts that outlive a directory change.
        let root = self.root.canonicalize();
        if let Ok(root) = &root {
            close_root(root);
        }
        let (upper, layers) = (upper.transpose()?, self.layers(placing)?);
        if let (Some(upper), Some(layers)) = (&upper, &layers)
            && upper.place == layers.place
            && upper.place != FastPlace::Tmpfs
        {
            bail!("`upper` and `layers_fast` must be different directories");
        }
        Ok(Config {
            root: root.with_context(|| format!("resolving {}", self.root.display()))?,
            upper,
            layers,
            unpacker: Some(Arc::new(ContainerdUnpacker::at(containerd))),
            blocks: None,
        })
    }
}

/// Entries of a root. Each directory is closed to other users by the part that owns it.
const IN_ROOT: [&str; 10] = [
    "metadata.redb",
    "snapshots",
    "staged",
    "turning",
    "upper",
    "layers",
    "served",
    "recorded",
    "devices",
    "blobs",
];

/// Closes a root that an earlier release left open, or somebody made for us. One that has something else
/// in it is another's as well.
fn close_root(root: &Path) {
    let closed = private::close_if(root, |name| IN_ROOT.iter().any(|own| name == *own));
    match closed {
        Ok(true) => log::warn!("closed {} to other users", root.display()),
        Ok(false) => {}
        Err(error) => log::warn!("cannot close {} to other users: {error}", root.display()),
    }
}

/// Serves containerd's snapshots and their layers, until it receives a request to end.
///
/// # Errors
/// If its directories cannot be used, or another one uses them.
pub fn run(
    args: &SnapshotterSettings,
    store: &StoreSettings,
    run_dir: &Path,
) -> anyhow::Result<()> {
    let run_dir = RunDir::open(run_dir)?;
    mounting::descriptors::allow_many_files();
    let by = match &args.layers_fast {
        Some(_) => args.layers_by,
        None => LayersBy::Foreseen, // Nothing is placed, so nobody is to wait.
    };
    let placing = Placing::new(&args.containerd_root, by, &args.root, &run_dir);
    let containerd = std::path::absolute(&args.containerd).context("finding containerd")?;
    let mut config = args.config(&placing, &containerd)?;
    let root = config.root.clone();
    // While this process may execute programs yet.
    let recorder = recorder::start(&root, &containerd, store, &run_dir)?;
    confinement::engine(Service::Snapshotter)?;
    let interrupt = Interrupt::install()?;
    recorder::reap(recorder)?;
    let first_boots = Arc::new(FirstBootsHand::new(args.policy()?, &run_dir, &root));
    let served = args.lowers(&root, &run_dir, store, &first_boots, &interrupt)?;
    let images = NodeBlockImages::new(
        &root,
        &args.block_images,
        &containerd,
        store.absolute(),
        &run_dir,
        first_boots,
        &interrupt,
    )?;
    let retired = Arc::clone(images.retired());
    config.blocks = Some(Arc::new(images));
    let snapshotter = open(&config, &served, &interrupt)
        .with_context(|| format!("opening the snapshots in {}", root.display()))?;
    // Who has the metadata has the mounts: only now is it sure that no other process lives here.
    let present = snapshotter.walk(&[])?;
    let devices = present.iter().map(|snapshot| match snapshot.device {
        Some(_) => DeviceId::Own(snapshot.id),
        None => DeviceId::Layers(snapshot.id),
    });
    let devices = devices.collect();
    let present = present.iter().map(|snapshot| snapshot.id).collect();
    served.start(&present, &interrupt)?;
    let snapshotter = Arc::new(snapshotter);
    let mut threads = place_layers(args, &placing, &snapshotter, &interrupt)?;
    threads.push(retired.start(&devices)?);
    if let Some(nri) = &args.nri {
        threads.push(pods::start(nri.clone(), served.clone(), interrupt.clone())?);
    }
    let socket = status::socket(&run_dir, &root);
    answer_status(&socket, args, &served, placing, &snapshotter)?;
    let answered = serve(args, Arc::clone(&snapshotter), &interrupt);
    // A successor may have its own there as soon as we let go of the metadata.
    if let Err(error) = std::fs::remove_file(&socket) {
        log::debug!("{}: {error}", socket.display());
    }
    served.leave();
    retired.leave();
    // Should the socket have failed, nobody has asked the threads to end.
    interrupt.ask();
    for thread in threads {
        if thread.join().is_err() {
            log::warn!("a thread of the snapshotter died");
        }
    }
    drop(snapshotter);
    answered?;
    wait_for_the_last(|| served.in_use())?;
    Ok(())
}

/// Begins to have layers unpacked on the fast place, if there is one, and to bring them to the disk.
fn place_layers(
    args: &SnapshotterSettings,
    placing: &Placing,
    snapshotter: &Arc<Snapshotter<ServedLowers>>,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<JoinHandle<()>>> {
    let Some(layers) = snapshotter.fast_layers() else {
        return Ok(Vec::new());
    };
    let disk_mover = DiskMover {
        snapshotter: Arc::downgrade(snapshotter),
        placing: placing.clone(),
        stay: Duration::from_secs(args.layers_stay),
        interrupt: interrupt.clone(),
    };
    Ok(vec![placing.start(layers, interrupt)?, disk_mover.start()?])
}

/// Tells whoever asks how things are, until the snapshots are closed.
fn answer_status(
    socket: &Path,
    args: &SnapshotterSettings,
    served: &ServedLowers,
    placing: Placing,
    snapshotter: &Arc<Snapshotter<ServedLowers>>,
) -> anyhow::Result<()> {
    let (address, served) = (args.address.clone(), served.clone());
    // Weak: who only looks keeps nobody from taking over.
    let snapshotter = Arc::downgrade(snapshotter);
    let answer = move |ask: Request| {
        // It takes a while, and is to keep nobody from closing the snapshots.
        if let Request::Prewarm { image } = &ask {
            return match image.parse() {
                Ok(image) => Response::Warmed(served.prewarm(&image)),
                Err(error) => Response::Failed(format!("{image} is no boot image: {error}")),
            };
        }
        let Some(snapshotter) = snapshotter.upgrade() else {
            return Response::Failed("the snapshotter is about to end".to_owned());
        };
        let staging = Staging {
            snapshotter: &snapshotter,
            placing: &placing,
        };
        if let Some(told) = staging.answer(&ask) {
            return told;
        }
        let upper = match snapshotter.upper() {
            Ok(upper) => upper,
            Err(error) => return Response::Failed(error.to_string()),
        };
        let (layers, plain_layers, first_boots) = served.status();
        let fast = snapshotter.fast_layers();
        Response::Status(Box::new(SnapshotterStatus {
            root: snapshotter.root().to_owned(),
            address: address.clone(),
            pid: std::process::id(),
            served_by: served.served_by(),
            layers,
            plain_layers,
            first_boots,
            upper: upper.map(|upper| UpperStatus {
                dir: upper.dir,
                used_bytes: upper.used_bytes,
                max_bytes: upper.max_bytes,
            }),
            layers_fast: fast.map(|fast| LayersFastStatus::of(fast.usage(), &placing)),
        }))
    };
    host::control::serve(host::control::listen(socket)?, answer)?;
    Ok(())
}

/// Opens the snapshots, after a little wait for a former process that is about to leave them.
fn open(
    config: &Config,
    lowers: &ServedLowers,
    interrupt: &Interrupt,
) -> anyhow::Result<Snapshotter<ServedLowers>> {
    let deadline = Instant::now() + HANDOVER;
    loop {
        match Snapshotter::open(config.clone(), lowers.clone()) {
            Err(error) if error.is_in_use() && Instant::now() < deadline => {
                let mut waits = [PollFd::new(interrupt.fd(), PollFlags::POLLIN)];
                // Ended early by a signal, which is asked for next.
                let _events = poll(&mut waits, PollTimeout::from(HANDOVER_LOOK_MS));
                interrupt.check()?;
            }
            Err(error) if error.is_in_use() => bail!(
                "another snapshotter has them: use that one (yolofs snapshotter status), end it first, or give this one a \
                 directory and a socket of its own (--root, --address)"
            ),
            opened => return Ok(opened?),
        }
    }
}

/// Answers containerd until we are asked to end, and the requests that run then are answered.
fn serve<L: Lowers>(
    args: &SnapshotterSettings,
    snapshotter: Arc<Snapshotter<L>>,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(REQUEST_THREADS)
        .thread_name("snapshotter")
        .enable_all()
        .build()
        .context("starting the threads that answer containerd")?;
    if let Some(dir) = args.address.parent() {
        private::make_dir(dir).with_context(|| format!("making {}", dir.display()))?;
    }
    let served = runtime.block_on(async {
        let listener = service::listen(&args.address)?;
        log::info!("serving containerd at {}", args.address.display());
        let waiting = interrupt.clone();
        let asked = tokio::task::spawn_blocking(move || waiting.wait());
        let served = service::serve(snapshotter, listener, async {
            // Only a panic ends it early, and then it is time to end, too.
            let _asked = asked.await;
        });
        served.await.context("serving containerd")
    });
    // Should the socket have failed, somebody still waits for a signal.
    runtime.shutdown_background();
    if let Err(error) = rawio::unix_socket::remove_dead(&args.address) {
        log::debug!("the socket stays: {error}");
    }
    served
}
