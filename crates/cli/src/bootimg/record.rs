//! `bootimg record`: starts a command or a container on recorded mounts, and keeps what it read.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{bail, ensure};
use engine::ImageName;

use super::engine_args::EngineArgs;
use super::keep::{KeepArgs, kept_text, similarity_text};
use super::start_args::StartArgs;
use crate::exit::Outcome;
use crate::output::{FormatArg, complain, count, duration, percent, print};
use crate::run_dir_arg::RunDirArg;
use bootstore::store::StoreSettings;
use host::interrupt::Interrupt;
use host::run_dir::RunDir;
use host::size::Size;
use layers::keep::Earlier;
use recording::image_recording::{self, ImageReport, ImageRequest};
use recording::locate::{Located, locate};
use recording::machine::{self, Machine};
use recording::run::{Event, Run, RunSettings};
use recording::tree_recording::{self, CommandRoot, TreeReport, TreeRequest};
use recording::until::{Checks, Until, seconds};

/// Begins the line that says when a container was ready: what comes after it, a scan above all, is
/// no part of the start. The bench waits for it.
const READY: &str = "ready after ";

/// How long a machine reads nothing when it is ready, unless the user says otherwise.
const MACHINE_QUIET: Duration = Duration::from_secs(5);

/// Start a command, a machine or a container on recording mounts, and keep what it reads as a boot image
///
/// The command is stopped when it is ready (--until).
///
/// A directory tree becomes the lower layer of an overlay, which is the command's root, in fresh
/// mount and PID namespaces. A disk image is mounted, and the command gets its path in
/// `$YOLOFS_IMAGE`. With vm: before it, QEMU boots it, without a window; what the guest writes is thrown away.
///
/// A container image is started by its engine, with a recorder under each of its layers. Each
/// layer gets a boot image, which all images that stack the layer share.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  bootimg record /srv/rootfs -- python3 -c 'import ssl, json'
  bootimg record /srv/rootfs --until http://127.0.0.1:8000/ -- \\
      python3 -m http.server
  bootimg record disk.raw --until line:login: -- sh -c \\
      'exec qemu-system-x86_64 -m 512 -nographic \\
      -drive file=$YOLOFS_IMAGE,format=raw,if=virtio,snapshot=on'
  bootimg record vm:disk.qcow2 --until ssh --runs 2
  bootimg record docker://nginx:1.25
  bootimg record containerd://k8s.io/docker.io/library/redis:7
  bootimg record oci:images:nginx --until http://127.0.0.1/
  bootimg record docker://app --until http://127.0.0.1:8080/health \\
      --run-args '--network none -e MODE=test'")]
pub(super) struct RecordArgs {
    /// A directory tree, a disk image (raw or qcow2), vm:IMAGE to boot a disk image, or a container image: docker://REF,
    /// containerd://NAMESPACE/REF, oci:DIR[:TAG], docker-archive:FILE[:REF], or a name that Docker
    /// knows
    source: PathBuf,
    /// When it counts as ready: line:REGEX, tcp:PORT, http:URL, exit, quiet:SECS, after:SECS or, for
    /// images, healthy or docker:healthy, or, for vm:IMAGE, ssh, agent or qmp:EVENT [default: exit; for images
    /// healthy if they have a health check, else their port, else quiet:2; for vm:IMAGE quiet:5]
    #[arg(long, value_name = "WHEN")]
    until: Option<Until>,
    /// Fail if it is not ready after this many seconds
    #[arg(long, default_value = "300", value_name = "SECS", value_parser = seconds)]
    timeout: Duration,
    /// Number of runs to record; the boot image notes how many of them read each block
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    runs: u16,
    #[command(flatten)]
    start: StartArgs,
    /// Forget what earlier recordings needed of the image's layers
    #[arg(long, help_heading = "Images")]
    fresh: bool,
    #[command(flatten)]
    engines: EngineArgs,
    /// Keep the traces of the runs in this directory, too
    #[arg(long, value_name = "DIR")]
    keep_traces: Option<PathBuf>,
    #[command(flatten)]
    keep: KeepArgs,
    #[command(flatten)]
    format: FormatArg,
    /// The command and its arguments; images have their own
    #[arg(trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// Unpack the layers of an image, confined to that
#[derive(Clone, Debug, clap::Args)]
pub(super) struct UnpackArgs {
    /// The image: oci:DIR[:TAG] or docker-archive:FILE[:REF]
    image: String,
    /// Empty directory to make a directory of each layer in
    #[arg(value_name = "DIR")]
    into: PathBuf,
}

pub(super) fn run(
    args: &RecordArgs,
    store: &StoreSettings,
    run_dir: &RunDirArg,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    let run_dir = RunDir::open(&run_dir.run_dir)?;
    if args.keep.is_in_store() {
        // Before the boot, which may take long, and not after it.
        store.open()?;
    }
    if let Some(image) = machine::image_of(&args.source) {
        let request = args.machine_request(image, interrupt)?;
        let report = tree_recording::record(&request, store, &run_dir, interrupt)?;
        print(args.format.format(), &report, tree_text)?;
        return Ok(Outcome::Done);
    }
    match locate(&args.source, args.engines.docker_host.as_deref())? {
        Located::Path => {
            let request = args.tree_request()?;
            let report = tree_recording::record(&request, store, &run_dir, interrupt)?;
            print(args.format.format(), &report, tree_text)?;
        }
        Located::Image(name) => {
            let request = args.image_request(name)?;
            let report = image_recording::record(&request, store, interrupt, &tell)?;
            print(args.format.format(), &report, image_text)?;
        }
    }
    Ok(Outcome::Done)
}

/// The process that unpacks the image of a layout or an archive.
pub(super) fn unpack(args: &UnpackArgs) -> anyhow::Result<Outcome> {
    recording::unpack::unpack(&args.image, &args.into, &mut std::io::stdout())?;
    Ok(Outcome::Done)
}

impl RecordArgs {
    /// Refuses what only images have.
    fn tree_request(&self) -> anyhow::Result<TreeRequest> {
        ensure!(
            self.start.qemu_args.is_empty(),
            "--qemu-args are for vm:IMAGE"
        );
        ensure!(
            !self.command.is_empty(),
            "a directory or a disk image needs a command: bootimg record SOURCE -- COMMAND"
        );
        ensure!(
            self.start.run_args.is_empty() && !self.fresh,
            "--run-args and --fresh are for container images, and {} is none",
            self.source.display()
        );
        let until = match &self.until {
            Some(until @ (Until::Healthy(_) | Until::Machine(_))) => bail!(
                "{} is a path, which has no {until}: container images have health checks, and vm:IMAGE is booted",
                self.source.display()
            ),
            Some(until) => until.clone(),
            None => Until::Exit,
        };
        Ok(TreeRequest {
            source: self.source.clone(),
            machine: None,
            root: if self.start.no_chroot {
                CommandRoot::Host
            } else {
                CommandRoot::Recorded
            },
            until,
            runs: self.run_settings(),
            keep: self.keep.place(),
        })
    }

    /// Refuses what machines do not have, and converts the image if need be.
    fn machine_request(
        &self,
        image: PathBuf,
        interrupt: &Interrupt,
    ) -> anyhow::Result<TreeRequest> {
        ensure!(
            self.command.is_empty()
                && self.start.run_args.is_empty()
                && !self.fresh
                && !self.start.no_chroot,
            "a machine boots by itself: give options for it with --qemu-args"
        );
        let machine = Machine::new(&self.start.qemu_args)?;
        let source = match machine::convert(&image, interrupt)? {
            Some(made) => {
                let (from, to, format) = (made.from.display(), made.to.display(), made.format);
                complain(&format!(
                    "{from} is {format}: converted to {to}, which is recorded, and is to be mounted"
                ));
                made.to
            }
            None => image,
        };
        let until = self.until.clone().unwrap_or_else(|| {
            let until = Until::Quiet(MACHINE_QUIET);
            tell(Event::Chosen {
                until: &until,
                because: "the image is booted as it is",
            });
            until
        });
        ensure!(
            !matches!(until, Until::Healthy(_)),
            "only container images have health checks"
        );
        Ok(TreeRequest {
            source,
            machine: Some(machine),
            root: CommandRoot::Host,
            until,
            runs: self.run_settings(),
            keep: self.keep.place(),
        })
    }

    /// Refuses what images do not have.
    fn image_request(&self, name: ImageName) -> anyhow::Result<ImageRequest> {
        ensure!(
            !self.keep.are_given() && !self.start.no_chroot && self.start.qemu_args.is_empty(),
            "--name, --out, --no-chroot and --qemu-args are for directories and disk images: the boot images of a \
             container image are named after its layers"
        );
        ensure!(
            !matches!(self.until, Some(Until::Healthy(Checks::AsDocker)))
                || matches!(name, ImageName::Docker { .. }),
            "docker:healthy needs Docker, which does not run {name}: use --until healthy"
        );
        Ok(ImageRequest {
            name,
            until: self.until.clone(),
            runs: self.run_settings(),
            run_options: self.start.run_args.clone(),
            earlier: if self.fresh {
                Earlier::Forgotten
            } else {
                Earlier::United
            },
            engines: self.engines.engines(),
            scratch: self.engines.scratch.clone(),
        })
    }

    fn run_settings(&self) -> RunSettings {
        RunSettings {
            runs: self.runs,
            timeout: self.timeout,
            keep_traces: self.keep_traces.clone(),
            command: self.command.clone(),
        }
    }
}

pub(super) fn tell(event: Event<'_>) {
    match event {
        Event::Chosen { until, because } => complain(&format!(
            "waiting for {until}, because {because} (choose with --until)"
        )),
        Event::Ready(ready) => complain(&format!("{READY}{}", duration(ready))),
    }
}

fn tree_text(report: &TreeReport) -> String {
    let mut text = runs_text(&report.runs);
    if report.runs.len() > 1 {
        text.push_str(&similarity_text(&report.kept));
    }
    let disk = report.disk.as_ref().map(super::inspect::disk_text);
    text + &kept_text(&report.kept) + &disk.unwrap_or_default()
}

fn runs_text(runs: &[Run]) -> String {
    let mut text = String::new();
    for (number, run) in runs.iter().enumerate() {
        text.push_str(&format!(
            "run {}: ready after {}, {} reads, {}\n",
            number + 1,
            duration(Duration::from_millis(run.ready_ms)),
            run.reads,
            Size(run.bytes)
        ));
    }
    text
}

fn image_text(report: &ImageReport) -> String {
    let mut text = runs_text(&report.runs);
    for layer in &report.layers {
        let short = layer.layer.short();
        // Names and attributes may have been looked at all the same.
        text.push_str(&match layer.kept.as_ref().filter(|kept| kept.blocks > 0) {
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
