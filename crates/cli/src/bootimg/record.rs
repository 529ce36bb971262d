//! `bootimg record`: starts a command or a container on recorded mounts, and keeps what it read.

mod check;
mod containerd;
mod docker;
mod image;
mod layers;
mod locate;
mod ready;
mod tree;
mod unpack;
mod unpacked;
mod words;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use engine::containerd::{DEFAULT_ADDRESS, DEFAULT_SNAPSHOTTER};
use serde::Serialize;
use tracer::{Summary, Trace};

use super::keep::{KeepArgs, Kept};
use crate::exit::Outcome;
use crate::output::{FormatArg, duration};
use crate::run_dir_arg::RunDirArg;
use bootstore::store::StoreSettings;
use host::interrupt::Interrupt;
use host::run_dir::RunDir;
use host::size::Size;
use locate::{Located, locate};
use mounting::source::write_trace;
use recording::until::{Until, seconds};
pub(super) use unpack::{UnpackArgs, unpack};
pub(super) use unpacked::PREFIX as UNPACKED;

/// Start a command or a container on recorded mounts, and keep what it read
///
/// It is stopped when it is ready; what it read until then becomes the boot image.
///
/// A directory tree becomes the lower layer of an overlay, which is the command's root, in fresh
/// mount and PID namespaces. A disk image is mounted, and the command gets its path in
/// `$YOLOFS_IMAGE`.
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
  bootimg record docker://nginx:1.25
  bootimg record containerd://k8s.io/docker.io/library/redis:7
  bootimg record oci:images:nginx --until http://127.0.0.1/
  bootimg record docker://app --until http://127.0.0.1:8080/health \\
      --run-args '--network none -e MODE=test'")]
pub(super) struct RecordArgs {
    /// A directory tree, a disk image (raw or qcow2), or a container image: docker://REF,
    /// containerd://NAMESPACE/REF, oci:DIR[:TAG], docker-archive:FILE[:REF], or a name that Docker
    /// knows
    source: PathBuf,
    /// When it counts as ready: line:REGEX, tcp:PORT, http:URL, exit, quiet:SECS, after:SECS or, for
    /// images, healthy or docker:healthy [default: exit; for images healthy if they have a health check,
    /// else their port, else quiet:2]
    #[arg(long, value_name = "WHEN")]
    until: Option<Until>,
    /// Give up after so many seconds
    #[arg(long, default_value = "300", value_name = "SECS", value_parser = seconds)]
    timeout: Duration,
    /// Record so many runs, and keep for each block how many of them read it
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    runs: u16,
    /// Do not change the command's root: it gets the path of the mount in $YOLOFS_MNT
    #[arg(long)]
    no_chroot: bool,
    /// Options for the engine's run command, in one piece or several
    #[arg(
        long,
        value_name = "ARGS",
        allow_hyphen_values = true,
        help_heading = "Images"
    )]
    run_args: Vec<String>,
    /// Forget what earlier recordings needed of the image's layers
    #[arg(long, help_heading = "Images")]
    fresh: bool,
    /// The Docker daemon to use [default: the docker client's choice]
    #[arg(long, value_name = "HOST", help_heading = "Images")]
    docker_host: Option<String>,
    /// Where containerd listens
    #[arg(
        long,
        value_name = "SOCKET",
        env = "CONTAINERD_ADDRESS",
        default_value = DEFAULT_ADDRESS,
        help_heading = "Images"
    )]
    containerd: PathBuf,
    /// Containerd's snapshotter that has the image unpacked
    #[arg(
        long,
        value_name = "NAME",
        env = "CONTAINERD_SNAPSHOTTER",
        default_value = DEFAULT_SNAPSHOTTER,
        help_heading = "Images"
    )]
    snapshotter: String,
    /// Where layouts and archives are unpacked for the recording
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/tmp",
        help_heading = "Images"
    )]
    scratch: PathBuf,
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

/// What `bootimg record --json` prints.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    kept: Kept,
    runs: Vec<Run>,
    /// What the boot image has nothing of: disk images that are read past the mount.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Run {
    /// Milliseconds from the start to readiness.
    ready_ms: u64,
    /// Reads of content that reached the mounts.
    reads: u64,
    /// Bytes of these reads.
    bytes: u64,
}

impl Run {
    fn of(ready: Duration, summaries: &[Summary]) -> Self {
        Self {
            ready_ms: u64::try_from(ready.as_millis()).unwrap_or(u64::MAX),
            reads: summaries.iter().map(|summary| summary.reads).sum(),
            bytes: summaries.iter().map(|summary| summary.bytes_asked).sum(),
        }
    }
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
    match locate(&args.source, args.docker_host.as_deref())? {
        Located::Path => tree::record(args, store, &run_dir, interrupt),
        Located::Image(name) => image::record(args, &name, store, interrupt),
    }
}

fn text(report: &Report) -> String {
    let mut text = runs_text(&report.runs);
    if report.runs.len() > 1 {
        text.push_str(&report.kept.similarity_text());
    }
    text + &report.kept.text()
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

fn keep_trace(dir: &Path, name: &str, trace: &Trace) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    write_trace(trace, &dir.join(format!("{name}.trace")))
}
