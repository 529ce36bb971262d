//! `bootimg record`: starts a command on a recorded mount, and keeps what it read.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, ensure};
use localfs::SourceKind;
use serde::Serialize;
use tracer::{Limits, MergeOptions, Recorder, Summary, Trace};
use yolofs::{Busy, Config, FileSystem, Mode, Mount, MountOptions};

use super::keep::{KeepArgs, Kept, Recording, keep};
use super::scratch::Scratch;
use crate::exit::Outcome;
use crate::interrupt::Interrupt;
use crate::mount_table::needs_root;
use crate::output::{FormatArg, duration, print};
use crate::run_dir::{RunDir, RunDirArg};
use crate::size::Size;
use crate::source::{Source, space, trace_info, write_trace};
use crate::store::StoreArgs;
use crate::until::{Until, port_answers, seconds};
use crate::workload::{Place, Workload};

/// How long the mount may stay in use after the command was killed: its processes end first.
const UMOUNT_PATIENCE: Duration = Duration::from_secs(10);

/// Start a command on a recorded mount of a source, and keep what it read
///
/// The command is stopped when it is ready; what it read until then becomes the boot image.
///
/// A directory tree becomes the lower layer of an overlay, which is the command's root, in fresh
/// mount and PID namespaces. A disk image is mounted, and the command gets its path in
/// `$YOLOFS_IMAGE`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  bootimg record /srv/rootfs -- python3 -c 'import ssl, json'
  bootimg record /srv/rootfs --until http://127.0.0.1:8000/ -- \\
      python3 -m http.server
  bootimg record disk.raw --until line:login: -- sh -c \\
      'exec qemu-system-x86_64 -m 512 -nographic \\
      -drive file=$YOLOFS_IMAGE,format=raw,if=virtio,snapshot=on'")]
pub(super) struct RecordArgs {
    /// A directory tree, or a disk image (raw or qcow2)
    source: PathBuf,
    /// When the command counts as ready: line:REGEX, tcp:PORT, http:URL, exit or quiet:SECS
    #[arg(long, default_value = "exit", value_name = "WHEN")]
    until: Until,
    /// Give up after so many seconds
    #[arg(long, default_value = "300", value_name = "SECS", value_parser = seconds)]
    timeout: Duration,
    /// Record so many runs, and keep for each block how many of them read it
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    runs: u16,
    /// Do not change the command's root: it gets the path of the mount in $YOLOFS_MNT
    #[arg(long)]
    no_chroot: bool,
    /// Keep the traces of the runs in this directory, too
    #[arg(long, value_name = "DIR")]
    keep_traces: Option<PathBuf>,
    #[command(flatten)]
    keep: KeepArgs,
    #[command(flatten)]
    format: FormatArg,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true)]
    command: Vec<OsString>,
}

/// What `bootimg record --json` prints.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    kept: Kept,
    runs: Vec<Run>,
}

#[derive(Debug, Serialize)]
struct Run {
    /// Milliseconds from the start to readiness.
    ready_ms: u64,
    /// Reads of content that reached the mount.
    reads: u64,
    /// Bytes of these reads.
    bytes: u64,
}

pub(super) fn run(
    args: &RecordArgs,
    store: &StoreArgs,
    run_dir: &RunDirArg,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    let run_dir = RunDir::open(&run_dir.run_dir)?;
    super::scratch::clear_dead(&run_dir)?;
    let source = Source::open(&args.source)?;
    interrupt.check()?; // a scan takes as long as the disk does
    let mut runs = Vec::new();
    let mut traces = Vec::new();
    for number in 1..=args.runs {
        let (trace, ready) = record_once(args, &source, &run_dir, interrupt)
            .with_context(|| format!("recording run {number} of {}", args.runs))?;
        if let Some(dir) = &args.keep_traces {
            keep_trace(dir, number, &trace)?;
        }
        let summary = Summary::of(&trace);
        let ready_ms = u64::try_from(ready.as_millis()).unwrap_or(u64::MAX);
        runs.push(Run {
            ready_ms,
            reads: summary.reads,
            bytes: summary.bytes_asked,
        });
        traces.push(trace);
    }
    let merged = tracer::merge(&traces, &source.tree, &MergeOptions::default())
        .context("merging the recorded runs")?;
    let ready_ms = runs.iter().map(|run| run.ready_ms).collect();
    let recording = Recording {
        merged,
        command: args.command.clone(),
        ready_ms,
    };
    let kept = keep(&args.keep, store, &source, &recording, interrupt)?;
    print(args.format.format(), &Report { kept, runs }, text)?;
    Ok(Outcome::Done)
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for (number, run) in report.runs.iter().enumerate() {
        text.push_str(&format!(
            "run {}: ready after {}, {} reads, {}\n",
            number + 1,
            duration(Duration::from_millis(run.ready_ms)),
            run.reads,
            Size(run.bytes)
        ));
    }
    if report.runs.len() > 1 {
        text.push_str(&report.kept.similarity_text());
    }
    text + &report.kept.text()
}

/// Records one run on a fresh mount, whose page cache is empty.
fn record_once(
    args: &RecordArgs,
    source: &Source,
    run_dir: &RunDir,
    interrupt: &Interrupt,
) -> anyhow::Result<(Trace, Duration)> {
    if let Until::Tcp(port) = args.until {
        ensure!(
            !port_answers(port),
            "something listens on port {port} already: stop it first"
        );
    }
    let place = Scratch::new(run_dir)?;
    let recorder = Arc::new(Recorder::new(Limits::default()));
    let mount = mount_recorded(source, &recorder, &place.mountpoint)?;
    let started = SystemTime::now();
    let mut workload = start(args, source, &place)?;
    let idle = || {
        recorder
            .last_event()
            .map_or(Duration::ZERO, |last| last.elapsed())
    };
    let ready = workload.wait_ready(&args.until, args.timeout, interrupt, &idle);
    // The boot ends here: what stopping the command reads is not part of it.
    let trace = recorder.finish(trace_info(&source.root, started), &source.tree);
    workload.stop();
    mount
        .unmount(Busy::Lazy, UMOUNT_PATIENCE)
        .context("unmounting the recorded mount")?;
    let ready = ready?;
    ensure!(
        trace.lost == 0,
        "the run made more events than a trace can hold ({} lost): use an earlier --until",
        trace.lost
    );
    Ok((trace, ready))
}

fn mount_recorded(
    source: &Source,
    recorder: &Arc<Recorder>,
    mountpoint: &Path,
) -> anyhow::Result<Mount> {
    let reader = source.reader();
    let mode = match source.root.kind() {
        SourceKind::Tree => Mode::Lower,
        SourceKind::Disk { .. } => Mode::Disk,
    };
    let config = Config {
        mode,
        ..Config::default()
    };
    let fs = FileSystem::new(
        Arc::clone(&source.tree) as _,
        Arc::clone(&reader) as _,
        config,
    )
    .with_sparse(Arc::clone(&reader) as _)
    .with_residency(reader)
    .with_space(space(&source.root))
    .with_observer(Arc::clone(recorder) as _);
    let options = MountOptions::new(mountpoint, source.root.path().to_string_lossy());
    Mount::start(Arc::new(fs), &options).with_context(|| {
        format!(
            "mounting the source with a recorder under it{}",
            needs_root()
        )
    })
}

fn start(args: &RecordArgs, source: &Source, place: &Scratch) -> anyhow::Result<Workload> {
    match source.root.kind() {
        SourceKind::Disk { name, .. } => {
            let image = place.mountpoint.join(name);
            Workload::start(&Place::Here, ("YOLOFS_IMAGE", &image), &args.command)
        }
        SourceKind::Tree if args.no_chroot => {
            let env = ("YOLOFS_MNT", place.mountpoint.as_path());
            Workload::start(&Place::Here, env, &args.command)
        }
        SourceKind::Tree => {
            let overlay = Place::Overlay {
                lower: &place.mountpoint,
                scratch: &place.scratch,
            };
            Workload::start(&overlay, ("YOLOFS_MNT", Path::new("/")), &args.command)
        }
    }
}

fn keep_trace(dir: &Path, number: u16, trace: &Trace) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    write_trace(trace, &dir.join(format!("run{number}.trace")))
}
