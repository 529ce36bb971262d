//! Recording a command on a directory tree or a disk image.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use localfs::{DiskFormat, Patience, SourceKind, SourceRoot};
use serde::Serialize;
use tracer::{MergeOptions, RawTrace, Summary, Trace};
use yolofs::Busy;

use crate::disk_names::{self, DiskUse};
use crate::keep::{KeepPlace, Kept, Recording, keep};
use crate::machine::{Machine, MachineSign, Signs};
use crate::recorder_mount::{UMOUNT_PATIENCE, mount_recorded};
use crate::run::{Run, RunSettings};
use crate::scratch::{Scratch, clear_dead};
use crate::until::{Until, port_answers};
use crate::workload::{WorkingRoot, Workload};
use bootstore::store::StoreSettings;
use host::interrupt::Interrupt;
use host::run_dir::RunDir;
use mounting::recorded::Recorded;
use mounting::source::{LateSource, Source};

/// A recording of a command on a directory tree or a disk image.
#[derive(Clone, Debug)]
pub struct TreeRequest {
    /// The directory tree or the disk image.
    pub source: PathBuf,
    /// The machine that boots the disk image, in place of a command.
    pub machine: Option<Machine>,
    /// What the command's root is, with a directory tree.
    pub root: CommandRoot,
    /// When the command counts as ready.
    pub until: Until,
    /// How the runs are made.
    pub runs: RunSettings,
    /// Where the boot image is kept.
    pub keep: KeepPlace,
}

impl TreeRequest {
    /// Returns the command as the boot image tells it. That of a machine names places of this run only.
    fn shown_command(&self) -> Vec<OsString> {
        match &self.machine {
            Some(machine) => machine.shown_command(),
            None => self.runs.command.clone(),
        }
    }
}

/// What the root of a recorded command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandRoot {
    /// An overlay on the recorded mount, in namespaces of its own.
    Recorded,
    /// The host's; the command gets the path of the mount.
    Host,
}

/// What became of a recording of a directory tree or a disk image.
#[derive(Debug, Serialize)]
pub struct TreeReport {
    /// The boot image.
    #[serde(flatten)]
    pub kept: Kept,
    /// The results of the runs.
    pub runs: Vec<Run>,
    /// What of a raw disk image that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskUse>,
    /// What the boot image has nothing of: disk images that are read past the mount.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Records the runs of a command, and stores a boot image of them.
///
/// # Errors
/// If a run cannot be recorded, or the boot image cannot be stored.
pub fn record(
    request: &TreeRequest,
    store: &StoreSettings,
    run_dir: &RunDir,
    interrupt: &Interrupt,
) -> anyhow::Result<TreeReport> {
    clear_dead(run_dir)?;
    let patience = Patience::default().deadline;
    let root = SourceRoot::open_within(&request.source, patience)?;
    ensure!(
        request.machine.is_none() || matches!(root.kind(), SourceKind::Disk { .. }),
        "{} is a directory: a machine boots from a disk image",
        root.path().display()
    );
    interrupt.be_orderly();
    let mut source = LateSource::new(Arc::new(root));
    let warnings = source.root().warnings().to_vec();
    if request.machine.is_some() {
        names_none_elsewhere(source.root())?;
    }
    for warning in &warnings {
        log::warn!("{warning}");
    }
    let mut runs = Vec::new();
    let mut traces = Vec::new();
    let mut left_out = BTreeSet::new();
    let count = request.runs.runs;
    for number in 1..=count {
        let recorded = record_once(request, source.root(), run_dir, interrupt)
            .and_then(|boot| boot.traced(&mut source, &mut left_out));
        let (trace, ready) =
            recorded.with_context(|| format!("recording run {number} of {count}"))?;
        interrupt.check()?; // a scan takes as long as the disk does
        request.runs.keep_trace(&format!("run{number}"), &trace)?;
        runs.push(Run::of(ready, &[Summary::of(&trace)]));
        traces.push(trace);
    }
    let source = source.scanned()?;
    let merged = tracer::merge(&traces, &source.tree, &MergeOptions::default())
        .context("merging the recorded runs")?;
    let ready_ms = runs.iter().map(|run| run.ready_ms).collect();
    let recording = Recording {
        merged,
        command: request.shown_command(),
        ready_ms,
        left_out,
    };
    let kept = keep(&request.keep, store, source, &recording, interrupt)?;
    let disk = disk_use(source, &recording);
    Ok(TreeReport {
        kept,
        disk,
        runs,
        warnings,
    })
}

/// Refuses an image that names files by absolute paths. QEMU would read them with all rights of the caller; the guest of a raw
/// disk can write such names, too.
pub(crate) fn names_none_elsewhere(image: &SourceRoot) -> anyhow::Result<()> {
    ensure!(
        image.warnings().is_empty(),
        "the image names files by absolute paths, and whoever wrote it chose which: {}",
        image.warnings().join("; ")
    );
    Ok(())
}

/// Reports what was read of a raw disk image; what cannot be examined is not reported.
fn disk_use(source: &Source, recording: &Recording) -> Option<DiskUse> {
    let SourceKind::Disk {
        format: DiskFormat::Raw,
        ..
    } = source.root.kind()
    else {
        return None;
    };
    let extents = recording.merged.plan.extents.iter();
    let ranges: Vec<_> = extents.map(|extent| extent.range).collect();
    disk_names::of_ranges(source.root.path(), &ranges).ok()
}

/// A boot that was recorded.
struct Boot {
    recorded: Recorded,
    raw: RawTrace,
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
        let (trace, changed) = self.recorded.trace(self.raw, source.scanned()?);
        left_out.extend(changed);
        ensure!(
            trace.lost == 0,
            "the run made more events than a trace can hold ({} lost): stop earlier (`until`)",
            trace.lost
        );
        Ok((trace, self.ready))
    }
}

/// Records one run on a fresh mount, whose page cache is empty.
fn record_once(
    request: &TreeRequest,
    root: &Arc<SourceRoot>,
    run_dir: &RunDir,
    interrupt: &Interrupt,
) -> anyhow::Result<Boot> {
    let until = &request.until;
    check_port(until)?;
    let place = Scratch::new(run_dir)?;
    let recorded = Recorded::new(root)?;
    let mount = mount_recorded(&recorded, &place.mountpoint, &root.path().to_string_lossy())?;
    let (mut workload, signs) = start(request, root, &place.mountpoint, &place)?;
    let idle = || {
        recorded
            .last_event()
            .map_or(Duration::ZERO, |last| last.elapsed())
    };
    let seen = |sign: &MachineSign| signs.as_ref().is_some_and(|signs| signs.seen(sign));
    let lost = || mount.wait_for(Duration::ZERO).is_some();
    let timeout = request.runs.timeout;
    let ready = workload.wait_ready(until, timeout, interrupt, &idle, &seen, &lost);
    // The boot ends here: what stopping the command reads is not part of it.
    let raw = recorded.stop();
    workload.stop();
    mount
        .unmount(Busy::Lazy, UMOUNT_PATIENCE)
        .context("unmounting the recorded mount")?;
    let ready = ready?;
    Ok(Boot {
        recorded,
        raw,
        ready,
    })
}

/// Refuses a port at which somebody else listens already.
pub(crate) fn check_port(until: &Until) -> anyhow::Result<()> {
    if let Until::Tcp(port) = until {
        ensure!(
            !port_answers(*port),
            "port {port} is in use: stop the program that listens there"
        );
    }
    Ok(())
}

/// Starts what is recorded; a machine comes with the signs that it shows when it is ready. `seen` is the directory
/// that the source is seen in: a mount of it, or itself.
pub(crate) fn start(
    request: &TreeRequest,
    root: &SourceRoot,
    seen: &Path,
    place: &Scratch,
) -> anyhow::Result<(Workload, Option<Signs>)> {
    if let (Some(machine), SourceKind::Disk { name, format }) = (&request.machine, root.kind()) {
        let image = seen.join(name);
        let sign = match &request.until {
            Until::Machine(sign) => Some(sign),
            _ => None,
        };
        let prepared = machine.prepare(&image, *format, &place.scratch, sign)?;
        let env = ("YOLOFS_IMAGE", image.as_path());
        let workload = Workload::start(&WorkingRoot::Here, env, &prepared.command)?;
        return Ok((workload, Some(prepared.signs)));
    }
    start_command(request, root, seen, place).map(|workload| (workload, None))
}

fn start_command(
    request: &TreeRequest,
    root: &SourceRoot,
    seen: &Path,
    place: &Scratch,
) -> anyhow::Result<Workload> {
    let command = &request.runs.command;
    match root.kind() {
        SourceKind::Disk { name, .. } => {
            let image = seen.join(name);
            Workload::start(&WorkingRoot::Here, ("YOLOFS_IMAGE", &image), command)
        }
        SourceKind::Tree if request.root == CommandRoot::Host => {
            Workload::start(&WorkingRoot::Here, ("YOLOFS_MNT", seen), command)
        }
        SourceKind::Tree => {
            let overlay = WorkingRoot::Overlay {
                lower: seen,
                scratch: &place.scratch,
            };
            Workload::start(&overlay, ("YOLOFS_MNT", Path::new("/")), command)
        }
    }
}
