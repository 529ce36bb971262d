//! Recording a command on a directory tree or a disk image.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail, ensure};
use localfs::SourceKind;
use tracer::{Limits, MergeOptions, Recorder, Summary, Trace};
use yolofs::{Busy, Config, FileSystem, Mode, Mount, MountOptions};

use super::{RecordArgs, Report, Run, keep_trace, text};
use crate::bootimg::keep::{Recording, keep};
use crate::bootimg::scratch::{Scratch, clear_dead};
use crate::exit::Outcome;
use crate::interrupt::Interrupt;
use crate::mount_table::needs_root;
use crate::output::print;
use crate::read_around::ReadAround;
use crate::run_dir::RunDir;
use crate::source::{Source, space, trace_info};
use crate::store::StoreArgs;
use crate::until::{Until, port_answers};
use crate::workload::{Place, Workload};

/// How long a mount may stay in use after the command was killed: its processes end first.
pub(super) const UMOUNT_PATIENCE: Duration = Duration::from_secs(10);

/// Records the runs of a command, and keeps what they read.
///
/// # Errors
/// If a run cannot be recorded, or the boot image cannot be kept.
pub(super) fn record(
    args: &RecordArgs,
    store: &StoreArgs,
    run_dir: &RunDir,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    let until = check(args)?;
    clear_dead(run_dir)?;
    let source = Source::open(&args.source)?;
    interrupt.check()?; // a scan takes as long as the disk does
    let mut runs = Vec::new();
    let mut traces = Vec::new();
    for number in 1..=args.runs {
        let (trace, ready) = record_once(args, &until, &source, run_dir, interrupt)
            .with_context(|| format!("recording run {number} of {}", args.runs))?;
        if let Some(dir) = &args.keep_traces {
            keep_trace(dir, &format!("run{number}"), &trace)?;
        }
        runs.push(Run::of(ready, &[Summary::of(&trace)]));
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

/// Refuses what only images have.
fn check(args: &RecordArgs) -> anyhow::Result<Until> {
    ensure!(
        !args.command.is_empty(),
        "a directory or a disk image needs a command: bootimg record SOURCE -- COMMAND"
    );
    ensure!(
        args.run_args.is_empty() && !args.fresh,
        "--run-args and --fresh are for container images, and {} is a path",
        args.source.display()
    );
    match &args.until {
        Some(Until::Healthy(_)) => bail!(
            "{} is a path: only container images have health checks",
            args.source.display()
        ),
        Some(until) => Ok(until.clone()),
        None => Ok(Until::Exit),
    }
}

/// Records one run on a fresh mount, whose page cache is empty.
fn record_once(
    args: &RecordArgs,
    until: &Until,
    source: &Source,
    run_dir: &RunDir,
    interrupt: &Interrupt,
) -> anyhow::Result<(Trace, Duration)> {
    if let Until::Tcp(port) = until {
        ensure!(
            !port_answers(*port),
            "something listens on port {port} already: stop it first"
        );
    }
    let place = Scratch::new(run_dir)?;
    let recorder = Arc::new(Recorder::new(Limits::default()));
    let label = source.root.path().to_string_lossy();
    let mount = mount_recorded(source, &recorder, &place.mountpoint, &label)?;
    let started = SystemTime::now();
    let mut workload = start(args, source, &place)?;
    let idle = || {
        recorder
            .last_event()
            .map_or(Duration::ZERO, |last| last.elapsed())
    };
    let ready = workload.wait_ready(until, args.timeout, interrupt, &idle);
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

/// Mounts a source with a recorder that sees every request; `label` is what the mount table shows.
///
/// # Errors
/// If it cannot be mounted.
pub(super) fn mount_recorded(
    source: &Source,
    recorder: &Arc<Recorder>,
    mountpoint: &Path,
    label: &str,
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
        Arc::new(ReadAround::new(Arc::clone(&reader))),
        config,
    )
    .with_sparse(Arc::clone(&reader) as _)
    .with_residency(reader)
    .with_space(space(&source.root))
    .with_observer(Arc::clone(recorder) as _);
    let options = MountOptions::new(mountpoint, label);
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
