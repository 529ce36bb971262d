//! `yolofs pull`: pulls an image into containerd; each layer is unpacked while it is being downloaded.
//!
//! containerd fetches a layer completely before it unpacks it, and unpacks one after another. Here several
//! layers are unpacked at once, each as it arrives, in directories that the snapshotter adopts
//! by a rename: after the last byte little work is left.

mod blobs;
mod fetch;
mod land;
mod leases;
pub mod report;
mod wanted;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::time::Instant;

use anyhow::{Context as _, bail};
use engine::Containerd;
use engine::containerd::{Collected, Lease};
use oci::Reference;
use oci::registry::{Access, RegistryConfig, Repository};
use tiering::lass::Placement;

use crate::snapshotter_service::staging::SnapshotterClient;
use fetch::{Fetch, Ready, Shared, places};
use host::interrupt::Interrupt;
use host::progress;
use host::run_dir::RunDir;
use mounting::confinement::{Asks, Intake, Rights};
use report::{LayerOutcome, LayerReport, PullReport};
use wanted::{Layer, Wanted};

/// A request to pull an image.
#[derive(Clone, Debug)]
pub struct PullRequest {
    /// The image.
    pub image: Reference,
    /// Socket of containerd.
    pub address: PathBuf,
    /// Namespace of containerd that the image is for.
    pub namespace: String,
    /// Name of the snapshotter in the configuration of containerd.
    pub snapshotter: String,
    /// Layers that are downloaded at once.
    pub concurrent: u8,
    /// What becomes of compressed layers.
    pub blobs: Blobs,
    /// Whether nothing is pulled, and only the plan is reported.
    pub dry_run: bool,
}

/// The namespace of Docker's images.
const DOCKER: &str = "moby";

/// What becomes of compressed layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blobs {
    /// They are kept, and those that are missing of layers that are there are downloaded.
    Keep,
    /// They are not.
    Drop,
}

/// Pulls. Confines this process first, so it must have one thread.
///
/// # Errors
/// If the image cannot be downloaded, or containerd or the snapshotter refuse it; downloaded data is removed then.
pub fn pull(
    request: &PullRequest,
    registry: RegistryConfig,
    run_dir: &Path,
) -> anyhow::Result<PullReport> {
    let began = Instant::now();
    check_blobs(request)?;
    let run_dir = RunDir::open(run_dir)?;
    let context = || format!("pulling {}", request.image.familiar());
    confine(request, &run_dir).with_context(context)?;
    let interrupt = Interrupt::install()?;
    let pull = Pull::new(request, registry, &run_dir, &interrupt);
    let pulled = pull.and_then(|pull| pull.run(began));
    interrupt.check()?;
    pulled.with_context(context)
}

/// Refuses what would make an image that is not whole to its engine: Docker saves and pushes layers as
/// they came, and saves an image without them as if nothing were missing.
fn check_blobs(request: &PullRequest) -> anyhow::Result<()> {
    if request.namespace == DOCKER && request.blobs == Blobs::Drop {
        bail!(
            "Docker, whose namespace {DOCKER:?} is, needs the compressed layers of its images: docker save \
             would write them without layers. Keep them (`blobs`)"
        );
    }
    Ok(())
}

impl Blobs {
    /// Returns the default for a namespace: Docker needs them.
    #[must_use]
    pub fn of(namespace: &str) -> Self {
        if namespace == DOCKER {
            Self::Keep
        } else {
            Self::Drop
        }
    }
}

impl PullRequest {
    fn concurrent(&self) -> NonZeroUsize {
        NonZeroUsize::new(self.concurrent.into()).unwrap_or(NonZeroUsize::MIN)
    }
}

/// Leaves to this process what a pull takes: the snapshotter's directories, its registry, and the sockets of
/// snapshotter and containerd.
fn confine(args: &PullRequest, run_dir: &RunDir) -> anyhow::Result<()> {
    let containerd = connect(args)?;
    let client = client(args, run_dir, &containerd)?;
    let places = client.places(None)?;
    // Layers land beside where they are staged.
    let places = places.fast.iter().chain([&places.disk]);
    let intake = Intake {
        reads: [run_dir.path().to_owned()]
            .into_iter()
            .chain(RATES.map(PathBuf::from))
            .collect(),
        writes: places
            .filter_map(|place| Some(place.parent()?.to_owned()))
            .collect(),
        clears: Vec::new(),
        asks: Asks::Registry,
        rights: Rights::Unpacks,
    };
    intake.confine()
}

fn connect(args: &PullRequest) -> anyhow::Result<Containerd> {
    Containerd::connect(&args.address, &args.namespace, &args.snapshotter)
        .context("is containerd running? Name its socket (`address`)")
}

/// Where the kernel says how disks do.
const RATES: [&str; 2] = ["/sys", "/proc/meminfo"];

/// The registry and the image of a pull.
struct Pull<'a> {
    args: &'a PullRequest,
    run_dir: &'a RunDir,
    interrupt: &'a Interrupt,
    registry: RegistryConfig,
    containerd: Containerd,
    client: SnapshotterClient,
    /// What this pull calls itself: its lease has this name.
    name: String,
}

impl<'a> Pull<'a> {
    fn new(
        args: &'a PullRequest,
        registry: RegistryConfig,
        run_dir: &'a RunDir,
        interrupt: &'a Interrupt,
    ) -> anyhow::Result<Self> {
        let containerd = connect(args)?;
        let client = client(args, run_dir, &containerd)?;
        Ok(Self {
            args,
            run_dir,
            interrupt,
            registry,
            containerd,
            client,
            name: leases::name()?,
        })
    }

    fn run(&self, began: Instant) -> anyhow::Result<PullReport> {
        let repository = Repository::open(&self.args.image, Access::Pull, &self.registry)
            .context("setting up the registry")?;
        let wanted = Wanted::ask(&self.args.image, &repository, self.interrupt)?;
        drop(repository);
        let mut report = PullReport::of(&wanted, &self.args.namespace);
        if self.args.dry_run {
            let there = there(&wanted.layers, |chain| self.containerd.has_layer(chain))?;
            let there = there.max(self.client.count_known(wanted.chains()));
            let staging = self.client.places(None)?;
            let missing = &wanted.layers[there..];
            let places = places(missing, self.args.concurrent(), &staging);
            report.layers = LayerReport::all(&wanted.layers, there, &places);
            report.dry_run = true;
            return Ok(report);
        }
        leases::clear_dead(&self.containerd)?;
        let lease = self.containerd.lease(&self.name, leases::LASTS)?;
        let pulled = self.pull(&wanted, &lease, &mut report);
        self.client.ended(&self.name);
        let collected = match &pulled {
            Ok(()) => Collected::Later,
            // What came is to be gone when we are.
            Err(_) => Collected::Now,
        };
        if let Err(error) = lease.end(collected) {
            log::warn!("{error}; containerd deletes the lease after a day, or the next pull does");
        }
        pulled?;
        report.took(began);
        Ok(report)
    }

    fn pull(
        &self,
        wanted: &Wanted,
        lease: &Lease<'_>,
        report: &mut PullReport,
    ) -> anyhow::Result<()> {
        let there = there(&wanted.layers, |chain| lease.keep_layer(chain))?;
        let there = self.adopt(wanted, lease, there)?;
        let missing = &wanted.layers[there..];
        let downloads = Some(self.name.as_str()).filter(|_| !missing.is_empty());
        let staging = self.client.places(downloads)?;
        let places = places(missing, self.args.concurrent(), &staging);
        report.layers = LayerReport::all(&wanted.layers, there, &places);
        let total = missing.iter().map(|layer| layer.blob.size).sum();
        let bar = progress::bytes("pulling", total);
        let fetch = Fetch {
            reference: &wanted.reference,
            registry: &self.registry,
            layers: missing,
            places: &places,
            staging: &staging,
            client: &self.client,
            pull: &self.name,
            interrupt: self.interrupt,
            bar: &bar,
            run_dir: self.run_dir,
            concurrent: self.args.concurrent(),
            keeper: Some(lease).filter(|_| self.args.blobs == Blobs::Keep),
            shared: Shared::default(),
        };
        let mut landed_one = |at: usize, ready: &Ready| {
            let layer = &mut report.layers[there + at];
            layer.went = LayerOutcome::of(ready.place);
            layer.unpacked_bytes = Some(ready.unpacked.bytes);
        };
        let landed = self.fetch_and_land(&fetch, lease, wanted, &mut landed_one);
        report.fetched_bytes = fetch.shared.came();
        landed?;
        if self.args.blobs == Blobs::Keep {
            let (there, reference) = (&wanted.layers[..there], &wanted.reference);
            report.fetched_bytes += blobs::fetch_missing(
                lease,
                reference,
                &self.registry,
                there,
                &self.name,
                self.interrupt,
            )?;
        }
        self.interrupt.check()?;
        land::name(lease, wanted)?;
        report.last_byte = fetch.shared.last_byte();
        bar.finish_and_clear();
        Ok(())
    }

    /// Has this namespace get the layers above `there` that another one has, and returns how many of all are there then.
    fn adopt(&self, wanted: &Wanted, lease: &Lease<'_>, mut there: usize) -> anyhow::Result<usize> {
        if there < wanted.layers.len() {
            let known = self.client.count_known(wanted.chains());
            while there < known && land::adopt(lease, &wanted.layers[there], &self.name)? {
                there += 1;
            }
        }
        Ok(there)
    }

    /// Downloads layers, and puts each into containerd as soon as all below it are there.
    fn fetch_and_land(
        &self,
        fetch: &Fetch<'_>,
        lease: &Lease<'_>,
        wanted: &Wanted,
        landed: &mut dyn FnMut(usize, &Ready),
    ) -> anyhow::Result<()> {
        let threads = self.args.concurrent().get().min(fetch.layers.len());
        let (sender, arrived) = channel();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let sender = sender.clone();
                let spawned = std::thread::Builder::new()
                    .name("layer".to_owned())
                    .spawn_scoped(scope, move || fetch.run(&sender));
                if let Err(error) = spawned {
                    fetch.shared.failed.store(true, SeqCst);
                    return Err(error).context("starting a thread for a download");
                }
            }
            drop(sender);
            let kept = land::documents(lease, wanted, &self.args.snapshotter, self.args.blobs);
            fetch.shared.failed.fetch_or(kept.is_err(), SeqCst);
            let (mut waiting, mut next, mut failed) = (BTreeMap::new(), 0, kept.err());
            for (at, ready) in arrived {
                match ready {
                    // Of those that end because of the first, nobody needs to hear.
                    Err(error) => failed = failed.or(Some(error)),
                    Ok(ready) => drop(waiting.insert(at, ready)),
                }
                while let Some(ready) = waiting.remove(&next).filter(|_| failed.is_none()) {
                    match land::land(lease, &fetch.layers[next], &ready) {
                        Ok(()) => landed(next, &ready),
                        Err(error) => {
                            fetch.shared.failed.store(true, SeqCst);
                            failed = Some(error);
                        }
                    }
                    next += 1;
                }
            }
            match failed {
                Some(error) => Err(error),
                None if next < fetch.layers.len() => {
                    bail!("a download thread ended without a result")
                }
                None => Ok(()),
            }
        })
    }
}

/// Returns how many layers are there, counted from the lowest: a layer is never there without those
/// below.
fn there<E: Into<anyhow::Error>>(
    layers: &[Layer],
    is_there: impl Fn(&blocks::Digest) -> Result<bool, E>,
) -> anyhow::Result<usize> {
    for (at, layer) in layers.iter().enumerate().rev() {
        if is_there(&layer.chain).map_err(Into::into)? {
            return Ok(at + 1);
        }
    }
    Ok(0)
}

/// Finds the snapshotter behind containerd's name for it.
fn client(
    args: &PullRequest,
    run_dir: &RunDir,
    containerd: &Containerd,
) -> anyhow::Result<SnapshotterClient> {
    let name = &args.snapshotter;
    let socket = containerd.snapshotter_socket()?;
    let Some(socket) = socket else {
        bail!(
            "containerd has no snapshotter {name:?}: add it to its configuration (proxy_plugins, see \
             docs/containerd.md), or name another (`snapshotter`)"
        );
    };
    let Some(socket) = socket else {
        bail!("{name:?} is a snapshotter of containerd's own; name that of yolofs (`snapshotter`)");
    };
    let found = SnapshotterClient::find(run_dir, &socket)?;
    found.with_context(|| {
        format!(
            "no yolofs snapshotter of the run directory {} answers containerd at {}: start it \
             (yolofs snapshotter), or name its run directory (`run_dir`)",
            run_dir.path().display(),
            socket.display()
        )
    })
}

impl LayerOutcome {
    const fn of(place: Placement) -> Self {
        match place {
            Placement::Fast => Self::Fast,
            Placement::Slow => Self::Disk,
        }
    }
}
