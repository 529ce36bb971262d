//! Recording a container image: a recorder under each of its layers, and a container on top.

use std::time::SystemTime;

use anyhow::{Context as _, ensure};
use blocks::Digest;
use bootimg::Stack;
use engine::{ImageName, LocalImage};
use serde::Serialize;
use tracer::Summary;

use super::containerd::{ContainerdEngine, Place};
use super::docker::DockerEngine;
use super::layers::{LayerReport, Layers};
use super::ready::{Chosen, Running, choose, wait_ready};
use super::unpacked::Unpacked;
use super::{RecordArgs, Run, keep_trace, runs_text, words};
use crate::exit::Outcome;
use crate::output::{complain, count, duration, percent, print};
use bootstore::store::StoreSettings;
use host::interrupt::Interrupt;
use host::size::Size;
use layers::keep::{About, Earlier};
use mounting::source::timestamp;
use recording::undo::Guard;
use recording::until::{Checks, Until};

/// Begins the line that says when a container was ready: what comes after it, a scan above all, is
/// no part of the start. The bench waits for it.
const READY: &str = "ready after ";

/// Who has the image that is recorded, and runs it.
pub(super) trait Engine {
    /// Returns the image.
    fn image(&self) -> &LocalImage;

    /// Checks that the image is still there: another user of the engine may have removed it.
    ///
    /// # Errors
    /// If it is not.
    fn check_is_there(&self) -> anyhow::Result<()>;

    /// Has the guard remove the containers that are to be started. They stay until all is kept:
    /// as long as one is there, the engine keeps the layers.
    ///
    /// # Errors
    /// If the guard is gone.
    fn promise(&self, guard: &mut Guard, runs: u16) -> anyhow::Result<()>;

    /// Starts a container.
    ///
    /// # Errors
    /// If the engine does not start it.
    fn start(&self, start: &Start<'_>) -> anyhow::Result<Box<dyn Running>>;
}

/// How a container is started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start<'a> {
    /// The engine's own options.
    pub(super) options: &'a [String],
    /// The command, if it is not the image's.
    pub(super) command: &'a [String],
    /// What is waited for.
    pub(super) until: &'a Until,
}

/// What `bootimg record --json` prints of an image.
#[derive(Debug, Serialize)]
struct ImageReport {
    reference: String,
    image: Digest,
    manifest: Option<Digest>,
    /// What the runs waited for.
    until: String,
    runs: Vec<Run>,
    /// The lowest layer first.
    layers: Vec<LayerReport>,
}

/// Records the boot of an image, and keeps what it read of each layer.
///
/// # Errors
/// If the image is not there, cannot be run, is not ready in time, or the boot images cannot be
/// kept.
pub(super) fn record(
    args: &RecordArgs,
    name: &ImageName,
    store: &StoreSettings,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    ensure!(
        !args.keep.are_given() && !args.no_chroot,
        "--name, --out and --no-chroot are for directories and disk images: the boot images of a \
         container image are named after its layers"
    );
    ensure!(
        !matches!(args.until, Some(Until::Healthy(Checks::AsDocker)))
            || matches!(name, ImageName::Docker { .. }),
        "docker:healthy is what Docker says, and it does not run {name}: use --until healthy"
    );
    interrupt.be_orderly();
    let mut guard = Guard::start()?;
    let engine = open(args, name, &mut guard, interrupt)?;
    let image = engine.image();
    log::debug!("the image is {}", image.image);
    let chosen = choose(args.until.as_ref(), &image.config)?;
    say(&chosen);
    let mut layers = Layers::open(&image.layers)?;
    ensure!(!image.layers.is_empty(), "the image has no layers");
    engine.promise(&mut guard, args.runs)?;
    let mut recording = Recording::new(args, &*engine, &chosen.until)?;
    for number in 1..=args.runs {
        recording
            .run_once(number, &mut layers, &mut guard, interrupt)
            .with_context(|| format!("recording run {number} of {}", args.runs))?;
    }
    let report = recording.keep(&mut layers, store, interrupt)?;
    drop(guard); // removes the containers
    print(args.format.format(), &report, text)?;
    Ok(Outcome::Done)
}

fn open(
    args: &RecordArgs,
    name: &ImageName,
    guard: &mut Guard,
    interrupt: &Interrupt,
) -> anyhow::Result<Box<dyn Engine>> {
    match name {
        ImageName::Docker { reference } => {
            let host = args.docker_host.as_deref();
            Ok(Box::new(DockerEngine::open(host, reference)?))
        }
        ImageName::Containerd {
            namespace,
            reference,
        } => Ok(Box::new(ContainerdEngine::open(&Place {
            address: &args.containerd,
            snapshotter: &args.snapshotter,
            namespace,
            reference,
        })?)),
        ImageName::OciLayout { .. } | ImageName::DockerArchive { .. } => Ok(Box::new(
            Unpacked::open(name, &args.scratch, guard, interrupt)?,
        )),
    }
}

/// Says what is waited for, if the user left that to us.
fn say(chosen: &Chosen) {
    if let Some(because) = chosen.because {
        let until = &chosen.until;
        complain(&format!(
            "recording until {until}, because {because} (choose with --until)"
        ));
    }
}

/// A recording that is going on.
struct Recording<'a> {
    args: &'a RecordArgs,
    engine: &'a dyn Engine,
    until: &'a Until,
    options: Vec<String>,
    command: Vec<String>,
    runs: Vec<Run>,
}

impl<'a> Recording<'a> {
    fn new(args: &'a RecordArgs, engine: &'a dyn Engine, until: &'a Until) -> anyhow::Result<Self> {
        let mut options = Vec::new();
        for some in &args.run_args {
            options.extend(words::split(some).context("reading --run-args")?);
        }
        let word = |word: &std::ffi::OsString| word.to_str().map(str::to_owned);
        let command: Option<Vec<String>> = args.command.iter().map(word).collect();
        Ok(Self {
            args,
            engine,
            until,
            options,
            command: command.context("the command of a container is UTF-8")?,
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
        let (timeout, idle) = (self.args.timeout, || recorders.idle());
        let ready = wait_ready(&mut *running, self.until, timeout, interrupt, &idle);
        let heard = recorders.stop();
        if let Ok(ready) = &ready {
            complain(&format!("{READY}{}", duration(*ready)));
        }
        let killed = running.kill().context("stopping the container");
        let recorded = layers.unmount(recorders, guard)?;
        let ready = ready?;
        killed?;
        let boot = recorded.into_iter().zip(heard).collect();
        let traces = layers.take_traces(boot, interrupt)?;
        for (index, trace) in traces.iter().enumerate() {
            if let Some(dir) = &self.args.keep_traces {
                keep_trace(dir, &format!("run{number}-layer{index}"), trace)?;
            }
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
        let earlier = if self.args.fresh {
            Earlier::Forgotten
        } else {
            Earlier::United
        };
        let kept = layers.keep(store, &about, earlier, interrupt);
        let kept = kept.map_err(|error| match self.engine.check_is_there() {
            Ok(()) => error,
            Err(gone) => error.context(gone),
        })?;
        ensure!(
            kept.iter().any(|layer| layer.kept.is_some()),
            "nothing was read from the image: does the command use it?"
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
fn full_name(image: &LocalImage) -> String {
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

fn text(report: &ImageReport) -> String {
    let mut text = runs_text(&report.runs);
    for layer in &report.layers {
        let short = layer.layer.short();
        text.push_str(&match &layer.kept {
            None => format!("layer {short}: nothing was read\n"),
            Some(kept) => format!(
                "layer {short}: {}, {}, {}, {} of the layer's {}\n",
                count(kept.files, "file"),
                count(kept.blocks, "block"),
                Size(kept.bytes),
                percent(kept.bytes.min(kept.layer_bytes), kept.layer_bytes),
                Size(kept.layer_bytes)
            ),
        });
    }
    let (reference, image) = (&report.reference, report.image.short());
    text + &format!("kept as {reference} (image {image})\n")
}
