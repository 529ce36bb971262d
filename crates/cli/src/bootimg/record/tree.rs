//! Recording a command on a directory tree or a disk image.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use localfs::{Patience, SourceKind, SourceRoot};
use tracer::{Heard, MergeOptions, Summary, Trace};
use yolofs::{Busy, Mount, MountOptions};

use super::{RecordArgs, Report, Run, keep_trace, text};
use crate::bootimg::keep::{Recording, keep};
use crate::bootimg::scratch::{Scratch, clear_dead};
use crate::exit::Outcome;
use crate::output::print;
use bootstore::store::StoreSettings;
use host::interrupt::Interrupt;
use host::mount_table::needs_root;
use host::run_dir::RunDir;
use mounting::recorded::Recorded;
use mounting::source::LateSource;
use recording::until::{Until, port_answers};
use recording::workload::{Place, Workload};

/// How long a mount may stay in use after the command was killed: its processes end first.
pub(super) const UMOUNT_PATIENCE: Duration = Duration::from_secs(10);

/// Records the runs of a command, and keeps what they read.
///
/// # Errors
/// If a run cannot be recorded, or the boot image cannot be kept.
pub(super) fn record(
    args: &RecordArgs,
    store: &StoreSettings,
    run_dir: &RunDir,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    let until = check(args)?;
    clear_dead(run_dir)?;
    let patience = Patience::default().deadline;
    let root = SourceRoot::open_within(&args.source, patience)?;
    interrupt.be_orderly();
    let mut source = LateSource::new(Arc::new(root));
    let warnings = source.root().warnings().to_vec();
    for warning in &warnings {
        log::warn!("{warning}");
    }
    let mut runs = Vec::new();
    let mut traces = Vec::new();
    let mut left_out = BTreeSet::new();
    for number in 1..=args.runs {
        let recorded = record_once(args, &until, source.root(), run_dir, interrupt)
            .and_then(|boot| boot.traced(&mut source, &mut left_out));
        let (trace, ready) =
            recorded.with_context(|| format!("recording run {number} of {}", args.runs))?;
        interrupt.check()?; // a scan takes as long as the disk does
        if let Some(dir) = &args.keep_traces {
            keep_trace(dir, &format!("run{number}"), &trace)?;
        }
        runs.push(Run::of(ready, &[Summary::of(&trace)]));
        traces.push(trace);
    }
    let source = source.scanned()?;
    let merged = tracer::merge(&traces, &source.tree, &MergeOptions::default())
        .context("merging the recorded runs")?;
    let ready_ms = runs.iter().map(|run| run.ready_ms).collect();
    let recording = Recording {
        merged,
        command: args.command.clone(),
        ready_ms,
        left_out,
    };
    let kept = keep(&args.keep, store, source, &recording, interrupt)?;
    print(
        args.format.format(),
        &Report {
            kept,
            runs,
            warnings,
        },
        text,
    )?;
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

/// A boot that was recorded.
struct Boot {
    recorded: Recorded,
    heard: Heard,
    ready: Duration,
}

impl Boot {
    /// Returns the trace, and when it was ready. Adds the files that are not in the trace, because
    /// they changed, to `left_out`.
    fn traced(
        self,
        source: &mut LateSource,
        left_out: &mut BTreeSet<String>,
    ) -> anyhow::Result<(Trace, Duration)> {
        let (trace, changed) = self.recorded.trace(self.heard, source.scanned()?);
        left_out.extend(changed);
        ensure!(
            trace.lost == 0,
            "the run made more events than a trace can hold ({} lost): use an earlier --until",
            trace.lost
        );
        Ok((trace, self.ready))
    }
}

/// Records one run on a fresh mount, whose page cache is empty.
fn record_once(
    args: &RecordArgs,
    until: &Until,
    root: &Arc<SourceRoot>,
    run_dir: &RunDir,
    interrupt: &Interrupt,
) -> anyhow::Result<Boot> {
    if let Until::Tcp(port) = until {
        ensure!(
            !port_answers(*port),
            "something listens on port {port} already: stop it first"
        );
    }
    let place = Scratch::new(run_dir)?;
    let recorded = Recorded::new(root)?;
    let mount = mount_recorded(&recorded, &place.mountpoint, &root.path().to_string_lossy())?;
    let mut workload = start(args, root, &place)?;
    let idle = || {
        recorded
            .last_event()
            .map_or(Duration::ZERO, |last| last.elapsed())
    };
    let ready = workload.wait_ready(until, args.timeout, interrupt, &idle);
    // The boot ends here: what stopping the command reads is not part of it.
    let heard = recorded.stop();
    workload.stop();
    mount
        .unmount(Busy::Lazy, UMOUNT_PATIENCE)
        .context("unmounting the recorded mount")?;
    let ready = ready?;
    Ok(Boot {
        recorded,
        heard,
        ready,
    })
}

/// Mounts a source with a recorder that sees every request; `label` is what the mount table shows.
///
/// # Errors
/// If it cannot be mounted.
pub(super) fn mount_recorded(
    recorded: &Recorded,
    mountpoint: &Path,
    label: &str,
) -> anyhow::Result<Mount> {
    let options = MountOptions::new(mountpoint, label);
    Mount::start(Arc::new(recorded.file_system()), &options).with_context(|| {
        format!(
            "mounting the source with a recorder under it{}",
            needs_root()
        )
    })
}

fn start(args: &RecordArgs, root: &SourceRoot, place: &Scratch) -> anyhow::Result<Workload> {
    match root.kind() {
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
