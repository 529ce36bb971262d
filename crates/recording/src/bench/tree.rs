//! Starts of a command on a directory tree or a disk image, or of a virtual machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use bootimg::StoreError;
use localfs::{Patience, SourceKind, SourceRoot};
use yolofs::{Busy, Mount, MountOptions, Request};

use super::disk_reads::DiskReads;
use super::{
    Asked, BenchEvent, BenchReport, BenchSettings, CACHES, Started, Subject, Way, check_until,
    take_turns,
};
use crate::machine::{Machine, MachineSign};
use crate::recorder_mount::UMOUNT_PATIENCE;
use crate::scratch::{Scratch, clear_dead};
use crate::tree_recording::{TreeRequest, check_port, names_none_elsewhere, start};
use bootstore::store::StoreSettings;
use host::interrupt::Interrupt;
use host::mount_table::needs_root;
use host::run_dir::RunDir;
use mounting::assembly::{self, Assembly, AssemblyOptions, Parts};
use mounting::boot::{Boot, BootRequest, Foreign, Unusable};
use mounting::prewarming::{PrewarmRequest, Prewarming};
use mounting::source::Source;
use node_api::boot_choice::BootChoice;
use node_api::mount_state::PrewarmState;

/// A bench of a directory tree or a disk image.
#[derive(Clone, Debug)]
pub struct TreeBench {
    /// What is started, and when it is ready. An empty command is the recorded one.
    pub request: TreeRequest,
    /// Its boot image.
    pub boot: BootChoice,
}

/// Starts a command on a recorded source in each way.
///
/// # Errors
/// If the source was not recorded, or a start is not ready in time;
/// [`Interrupted`](host::interrupt::Interrupted) on Ctrl-C.
pub fn bench_tree(
    bench: &TreeBench,
    settings: BenchSettings,
    store: &StoreSettings,
    run_dir: &RunDir,
    interrupt: &Interrupt,
    tell: &dyn Fn(BenchEvent<'_>),
) -> anyhow::Result<BenchReport> {
    clear_dead(run_dir)?;
    let mut request = bench.request.clone();
    check_until(&request.until)?;
    let patience = Patience::default().deadline;
    let root = Arc::new(SourceRoot::open_within(&request.source, patience)?);
    ensure!(
        request.machine.is_none() || matches!(root.kind(), SourceKind::Disk { .. }),
        "{} is a directory: a machine boots from a disk image",
        root.path().display()
    );
    if request.machine.is_some() {
        names_none_elsewhere(&root)?;
        nobody_else_changes(&root)?;
    }
    interrupt.be_orderly();
    let source = Source::scan(Arc::clone(&root))?;
    let boot = recorded(&bench.boot, store, &source)?;
    if request.machine.is_none() && request.runs.command.is_empty() {
        let image = boot.image().context("the boot image has no source")?;
        let words = image.image().info().source.command.iter();
        request.runs.command = words.map(Into::into).collect();
        ensure!(
            !request.runs.command.is_empty(),
            "nobody knows the command that was recorded of {}: name it behind --",
            root.path().display()
        );
    }
    let name = boot.name.clone();
    let warnings = boot.stale().into_iter().collect();
    let mut subject = Tree {
        request,
        source,
        boot,
        settings,
        run_dir,
    };
    let samples = take_turns(&name, &mut subject, settings, interrupt, tell)?;
    Ok(BenchReport {
        recorded_as: name.clone(),
        subject: name,
        until: subject.request.until.to_string(),
        caches: CACHES,
        samples,
        warnings,
    })
}

/// Refuses an image that another user could change or replace: what names other files is looked at once, and QEMU opens the image
/// itself, natively, again and again.
fn nobody_else_changes(image: &SourceRoot) -> anyhow::Result<()> {
    for path in image.disk_paths() {
        rawio::trusted::open_file(&path).with_context(|| {
            format!(
                "{} would be booted as it is, and may name files of this machine",
                path.display()
            )
        })?;
    }
    Ok(())
}

/// Returns what a boot image of the store was recorded from, if there is one of this name.
///
/// # Errors
/// If the store cannot be read, or it was recorded from nothing that can be started by that name.
pub fn recorded_from(name: &str, store: &StoreSettings) -> anyhow::Result<Option<PathBuf>> {
    let Some(store) = store.open_existing()? else {
        return Ok(None);
    };
    let id = match store.resolve(name) {
        Ok(id) => id,
        Err(StoreError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let image = store.open_image(&id).context("opening the boot image")?;
    let source = &image.info().source;
    let path = source.label.split_once(':');
    let path = path.filter(|(kind, _)| ["dir", "disk"].contains(kind));
    let (_, path) = path.with_context(|| {
        format!(
            "{name} was recorded from {}: name what is to be started",
            source.label
        )
    })?;
    ensure!(
        source
            .command
            .first()
            .is_none_or(|word| *word != Machine::program()),
        "{name} was recorded from a virtual machine: bench vm:{path}, with the options that it was recorded with"
    );
    Ok(Some(path.into()))
}

/// Finds the boot image of a source.
fn recorded(
    choice: &BootChoice,
    store: &StoreSettings,
    source: &Source,
) -> anyhow::Result<Arc<Boot>> {
    let wanted = BootRequest {
        choice,
        store,
        unusable: Unusable::Fails,
        foreign: Foreign::Refused,
    };
    let boot = wanted.resolve(&source.root, &source.tree)?;
    boot.with_context(|| {
        format!(
            "no boot of {} was recorded: do that first (bootimg record)",
            source.root.path().display()
        )
    })
}

/// A source and its boot image.
struct Tree<'a> {
    request: TreeRequest,
    source: Source,
    boot: Arc<Boot>,
    settings: BenchSettings,
    run_dir: &'a RunDir,
}

impl Subject for Tree<'_> {
    fn places(&self) -> Vec<PathBuf> {
        vec![self.source.root.path().to_owned()]
    }

    fn start(
        &mut self,
        way: Way,
        disk: &DiskReads,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Started> {
        check_port(&self.request.until)?;
        let place = Scratch::new(self.run_dir)?;
        let began = Instant::now();
        let mount = match way.is_ours() {
            true => Some(self.mount(&place.mountpoint)?),
            false => None,
        };
        let prepared = began.elapsed();
        let root = &self.source.root;
        let seen = match &mount {
            Some(_) => place.mountpoint.as_path(),
            None => root.dir_path(),
        };
        let asked = || mount.as_ref().map_or_else(Asked::default, Mounted::asked);
        let before = (asked(), disk.now());
        let (mut workload, signs) = start(&self.request, root, seen, &place)?;
        let seen = |sign: &MachineSign| signs.as_ref().is_some_and(|signs| signs.seen(sign));
        let never_idle = || std::time::Duration::ZERO;
        let until = &self.request.until;
        let ready = workload.wait_ready(
            until,
            self.settings.timeout,
            interrupt,
            &never_idle,
            &seen,
            &|| false,
        );
        // What stopping it reads is no part of the start.
        let (asked, disk) = (asked().since(before.0), disk.since(before.1));
        workload.stop();
        if let Some(Mounted { mount, .. }) = &mount {
            mount
                .unmount(Busy::Lazy, UMOUNT_PATIENCE)
                .context("unmounting the source")?;
        }
        Ok(Started {
            ready: ready?,
            prepared,
            asked,
            disk,
        })
    }
}

impl Tree<'_> {
    /// Mounts the source as `yolofs mount` does, and has the boot image in the page cache.
    fn mount(&self, at: &Path) -> anyhow::Result<Mounted> {
        let (root, boot) = (&self.source.root, &self.boot);
        let (tree, options) = (Arc::clone(&self.source.tree), AssemblyOptions::default());
        let Assembly { fs, parts } =
            assembly::of_disk(root, tree, Some(Arc::clone(boot)), &options)?;
        let options = MountOptions::new(at, root.path().to_string_lossy());
        let mount = Mount::start(Arc::new(fs), &options)
            .with_context(|| format!("mounting the source{}", needs_root()))?;
        let prewarming = Prewarming::new(PrewarmState::Waiting);
        prewarming.prewarm(boot, &PrewarmRequest::default(), |plan, blocks, options| {
            mount.prewarm(plan, blocks, options)
        })?;
        Ok(Mounted { mount, parts })
    }
}

/// A mount of the source.
struct Mounted {
    mount: Mount,
    parts: Parts,
}

impl Mounted {
    fn asked(&self) -> Asked {
        Asked {
            reads: self.mount.counters().requests(Request::Read),
            missed_bytes: self.parts.source.counts().fallthrough_bytes,
        }
    }
}
