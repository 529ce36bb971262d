//! Recording a container image: a recorder under each of its layers, and a container on top.

use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::{Context as _, ensure};
use blocks::Digest;
use bootimg::Stack;
use engine::{Docker, ImageName, LocalImage};
use serde::Serialize;
use tracer::Summary;

use crate::container_engine::{Engine, Start};
use crate::containerd_engine::{ContainerdEngine, ImageLocation};
use crate::docker_engine::DockerEngine;
use crate::layer_recorders::{LayerReport, Layers};
use crate::ready::{choose, wait_ready};
use crate::run::{Event, Run, RunSettings};
use crate::undo::Guard;
use crate::unpacked::Unpacked;
use crate::until::Until;
use crate::words;
use bootstore::store::StoreSettings;
use host::interrupt::Interrupt;
use layers::keep::{About, Earlier};
use mounting::source::timestamp;

/// A recording of a container image's boot.
#[derive(Clone, Debug)]
pub struct ImageRequest {
    /// The image.
    pub name: ImageName,
    /// When it counts as ready; `None` for the image's own condition.
    pub until: Option<Until>,
    /// How the runs are made.
    pub runs: RunSettings,
    /// Options for the engine's run command, in one piece or several.
    pub run_options: Vec<String>,
    /// What becomes of earlier recordings of the layers.
    pub earlier: Earlier,
    /// The engines to use.
    pub engines: Engines,
    /// Where layouts and archives are unpacked.
    pub scratch: PathBuf,
}

impl ImageRequest {
    /// Returns the options for the engine's run command, each word for itself.
    pub(crate) fn options(&self) -> anyhow::Result<Vec<String>> {
        let mut options = Vec::new();
        for some in &self.run_options {
            options.extend(words::split(some).context("reading `run_args`")?);
        }
        Ok(options)
    }

    /// Returns the command; empty for the image's own.
    pub(crate) fn command(&self) -> anyhow::Result<Vec<String>> {
        let word = |word: &std::ffi::OsString| word.to_str().map(str::to_owned);
        let command: Option<Vec<String>> = self.runs.command.iter().map(word).collect();
        command.context("the command of a container is UTF-8")
    }
}

/// Where the engines are.
#[derive(Clone, Debug)]
pub struct Engines {
    /// The Docker daemon; `None` for the docker client's choice.
    pub docker_host: Option<String>,
    /// Containerd's socket.
    pub containerd: PathBuf,
    /// Containerd's snapshotter that has the image unpacked.
    pub snapshotter: String,
}

/// What became of a recording of an image.
#[derive(Debug, Serialize)]
pub struct ImageReport {
    /// The image's name in full.
    pub reference: String,
    /// Its ID.
    pub image: Digest,
    /// The digest of its manifest.
    pub manifest: Option<Digest>,
    /// What the runs waited for.
    pub until: String,
    /// The results of the runs.
    pub runs: Vec<Run>,
    /// The lowest layer first.
    pub layers: Vec<LayerReport>,
}

/// Records the boot of an image, and stores a boot image of each layer.
///
/// # Errors
/// If the image is missing, cannot be run, is not ready in time, or the boot images cannot be
/// stored.
pub fn record(
    request: &ImageRequest,
    store: &StoreSettings,
    interrupt: &Interrupt,
    tell: &dyn Fn(Event<'_>),
) -> anyhow::Result<ImageReport> {
    interrupt.be_orderly();
    let mut guard = Guard::start()?;
    let engine = open(request, &mut guard, interrupt)?;
    let image = engine.image();
    log::debug!("the image is {}", image.image);
    let chosen = choose(request.until.as_ref(), &image.config)?;
    if let Some(because) = chosen.because {
        let until = &chosen.until;
        tell(Event::Chosen { until, because });
    }
    let mut layers = Layers::open(&image.layers)?;
    ensure!(!image.layers.is_empty(), "the image has no layers");
    let count = request.runs.runs;
    engine.promise(&mut guard, count)?;
    let mut recording = Recording::new(request, &*engine, &chosen.until)?;
    for number in 1..=count {
        recording
            .run_once(number, &mut layers, &mut guard, interrupt, tell)
            .with_context(|| format!("recording run {number} of {count}"))?;
    }
    let report = recording.keep(&mut layers, store, interrupt)?;
    drop(guard); // removes the containers
    Ok(report)
}

/// Finds the image, and who runs it.
pub(crate) fn open(
    request: &ImageRequest,
    guard: &mut Guard,
    interrupt: &Interrupt,
) -> anyhow::Result<Box<dyn Engine>> {
    let name = &request.name;
    let engines = &request.engines;
    match name {
        ImageName::Docker { reference } => open_docker(engines, reference),
        ImageName::Containerd {
            namespace,
            reference,
        } => Ok(Box::new(ContainerdEngine::open(&ImageLocation {
            address: &engines.containerd,
            snapshotter: &engines.snapshotter,
            namespace,
            reference,
        })?)),
        ImageName::OciLayout { .. } | ImageName::DockerArchive { .. } => Ok(Box::new(
            Unpacked::open(name, &request.scratch, guard, interrupt)?,
        )),
    }
}

/// Finds an image of Docker's: in its own store, or in the containerd that has its images.
fn open_docker(engines: &Engines, reference: &str) -> anyhow::Result<Box<dyn Engine>> {
    let docker = Docker::new(engines.docker_host.clone());
    let Some(store) = docker.image_store()? else {
        let host = engines.docker_host.as_deref();
        return Ok(Box::new(DockerEngine::open(host, reference)?));
    };
    log::debug!("Docker's images are in {}", store.address.display());
    Ok(Box::new(ContainerdEngine::open(&ImageLocation {
        address: &store.address,
        snapshotter: &store.snapshotter,
        namespace: &store.namespace,
        reference: &docker.name_in(&store, reference)?,
    })?))
}

/// A recording that is going on.
struct Recording<'a> {
    request: &'a ImageRequest,
    engine: &'a dyn Engine,
    until: &'a Until,
    options: Vec<String>,
    command: Vec<String>,
    runs: Vec<Run>,
}

impl<'a> Recording<'a> {
    fn new(
        request: &'a ImageRequest,
        engine: &'a dyn Engine,
        until: &'a Until,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            request,
            engine,
            until,
            options: request.options()?,
            command: request.command()?,
            runs: Vec::new(),
        })
    }

    /// Records one run on fresh mounts, whose page caches are empty.
    fn run_once(
        &mut self,
        number: u16,
        layers: &mut Layers,
        guard: &mut Guard,
        interrupt: &Interrupt,
        tell: &dyn Fn(Event<'_>),
    ) -> anyhow::Result<()> {
        let recorders = layers.mount(guard)?;
        log::debug!("recorders are mounted over the layers");
        let start = Start {
            options: &self.options,
            command: &self.command,
            until: self.until,
        };
        let mut running = self.engine.start(&start)?;
        log::debug!("the container is started");
        let (timeout, idle) = (self.request.runs.timeout, || recorders.idle());
        let ready = wait_ready(&mut *running, self.until, timeout, interrupt, &idle);
        let heard = recorders.stop();
        if let Ok(ready) = &ready {
            tell(Event::Ready(*ready));
        }
        let killed = running.kill().context("stopping the container");
        let recorded = layers.unmount(recorders, guard)?;
        let ready = ready?;
        killed?;
        let boot = recorded.into_iter().zip(heard).collect();
        let traces = layers.take_traces(boot, interrupt)?;
        for (index, trace) in traces.iter().enumerate() {
            let name = format!("run{number}-layer{index}");
            self.request.runs.keep_trace(&name, trace)?;
        }
        let summaries: Vec<_> = traces.into_iter().map(Summary::of).collect();
        self.runs.push(Run::of(ready, &summaries));
        Ok(())
    }

    fn keep(
        self,
        layers: &mut Layers,
        store: &StoreSettings,
        interrupt: &Interrupt,
    ) -> anyhow::Result<ImageReport> {
        let image = self.engine.image();
        let ready_ms: Vec<u64> = self.runs.iter().map(|run| run.ready_ms).collect();
        let about = About {
            command: image.config.argv(&self.command),
            ready_ms: ready_ms.clone(),
        };
        let kept = layers.keep(store, &about, self.request.earlier, interrupt);
        let kept = kept.map_err(|error| match self.engine.check_is_there() {
            Ok(()) => error,
            Err(gone) => error.context(gone),
        })?;
        ensure!(
            kept.iter().any(|layer| layer.kept.is_some()),
            "the command read nothing from the image: is it the right command?"
        );
        let stack = Stack {
            reference: full_name(image),
            image: image.image,
            manifest: image.manifest,
            layers: image.layers.iter().map(|layer| layer.diff_id).collect(),
            recorded_at: timestamp(SystemTime::now()).secs,
            ready_ms,
            command: self.command,
        };
        store
            .open()?
            .put_stack(&stack)
            .context("keeping what is known of the image")?;
        Ok(ImageReport {
            reference: stack.reference,
            image: stack.image,
            manifest: stack.manifest,
            until: self.until.to_string(),
            runs: self.runs,
            layers: kept,
        })
    }
}

/// Returns the image's name with everything that people leave out; its ID if it has no name.
pub(crate) fn full_name(image: &LocalImage) -> String {
    let mut names = std::iter::once(&image.reference).chain(&image.names);
    // An ID, and the beginning of one, look like names: only what the engine calls a name is one.
    let name = names.find_map(|name| {
        let full = name.parse::<oci::Reference>().ok()?.to_string();
        let known = |known: &String| {
            known == name
                || known
                    .parse::<oci::Reference>()
                    .is_ok_and(|it| it.to_string() == full)
        };
        image.names.iter().any(known).then_some(full)
    });
    name.unwrap_or_else(|| image.image.to_string())
}
