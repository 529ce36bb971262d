//! The layers of an image that is recorded: opened once, mounted anew for each run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use blocks::Digest;
use engine::LocalLayer;
use localfs::SourceRoot;
use serde::Serialize;
use tracer::{Allowance, Limits, MergeOptions, RawTrace, Trace};
use yolofs::{Busy, Mount};

use crate::recorder_mount::{UMOUNT_PATIENCE, mount_recorded};
use crate::undo::{Guard, Undo};
use bootstore::store::StoreSettings;
use host::interrupt::Interrupt;
use host::mount_table::MOUNT_KIND;
use host::mount_table::{clear_if_dead, top_at};
use layers::bind::bind;
use layers::keep::{About, Earlier, KeptLayer, keep_layer};
use mounting::recorded::Recorded;
use mounting::source::LateSource;

/// How the labels of recorders begin.
const LABEL: &str = "record:";

/// A layer and what its runs did.
#[derive(Debug)]
struct Layer {
    diff_id: Digest,
    dir: PathBuf,
    source: LateSource,
    traces: Vec<Trace>,
}

/// All layers of an image, the bottom one first.
#[derive(Debug)]
pub(crate) struct Layers(Vec<Layer>);

/// The stored boot image of a layer.
#[derive(Debug, Serialize)]
pub struct LayerReport {
    /// Its diff ID.
    pub layer: Digest,
    /// The directory where it is unpacked.
    pub dir: PathBuf,
    /// Its boot image, if anything of the layer was needed.
    pub kept: Option<KeptLayer>,
}

impl Layers {
    /// Opens the directories of the layers.
    ///
    /// # Errors
    /// If one cannot be read, or is being recorded by another process.
    pub(crate) fn open(layers: &[LocalLayer]) -> anyhow::Result<Self> {
        let mut opened = Vec::new();
        for layer in layers {
            let diff_id = layer.diff_id;
            let context = || {
                format!(
                    "opening layer {} in {}",
                    diff_id.short(),
                    layer.dir.display()
                )
            };
            // Mounts go by the path without symbolic links.
            let parent = layer.dir.parent().context("a layer is no root")?;
            let name = layer.dir.file_name().context("a layer has a name")?;
            let dir = parent.canonicalize().with_context(context)?.join(name);
            make_room(&dir).with_context(context)?;
            let root = SourceRoot::open_plain(&dir).with_context(context)?;
            let source = LateSource::new(Arc::new(root));
            opened.push(Layer {
                diff_id,
                dir,
                source,
                traces: Vec::new(),
            });
        }
        Ok(Self(opened))
    }

    /// Mounts a new recorder over each layer's directory, and over its present mount: users of that
    /// are not disturbed.
    ///
    /// # Errors
    /// If one cannot be mounted; the others are unmounted again.
    pub(crate) fn mount(&self, guard: &mut Guard) -> anyhow::Result<Recorders> {
        let mut mounted = Vec::new();
        let allowance = Arc::new(Allowance::new(Limits::default()));
        for layer in &self.0 {
            make_room(&layer.dir)?; // somebody may have come since
            let recorded = Recorded::sharing(layer.source.root(), &allowance)?;
            guard.promise(unmount(layer))?;
            let mount = mount_recorded(&recorded, &layer.dir, &label(&layer.dir))?;
            mounted.push((recorded, mount));
        }
        Ok(Recorders(mounted))
    }

    /// Unmounts the recorders of a run. Its container has been removed.
    ///
    /// # Errors
    /// If one cannot be unmounted.
    pub(crate) fn unmount(
        &self,
        recorders: Recorders,
        guard: &mut Guard,
    ) -> anyhow::Result<Vec<Recorded>> {
        let mut unmounted = Vec::new();
        for (layer, (recorded, mount)) in self.0.iter().zip(recorders.0) {
            mount
                .unmount(Busy::Lazy, UMOUNT_PATIENCE)
                .with_context(|| format!("unmounting the recorder of {}", layer.dir.display()))?;
            guard.fulfilled(&unmount(layer))?;
            // Its daemon may have died below us.
            clear_if_dead(&layer.dir)?;
            unmounted.push(recorded);
        }
        Ok(unmounted)
    }

    /// Returns the recording of a boot that is over, as traces of the layers, which are scanned for
    /// that.
    ///
    /// # Errors
    /// If a layer cannot be scanned, or the recording is too large for a trace.
    pub(crate) fn take_traces(
        &mut self,
        boot: Vec<(Recorded, RawTrace)>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Vec<&Trace>> {
        for (layer, (recorded, heard)) in self.0.iter_mut().zip(boot) {
            interrupt.check()?; // a scan takes as long as the disk does
            let (trace, left_out) = recorded.trace(heard, layer.source.scanned()?);
            for file in left_out {
                log::warn!("{file}: left out of the boot image");
            }
            ensure!(
                trace.lost == 0,
                "the run made more events than a trace can hold ({} lost): stop earlier (`until`)",
                trace.lost
            );
            layer.traces.push(trace);
        }
        Ok(self
            .0
            .iter()
            .filter_map(|layer| layer.traces.last())
            .collect())
    }

    /// Keeps a boot image of each layer that was needed.
    ///
    /// # Errors
    /// If one cannot be kept.
    pub(crate) fn keep(
        &mut self,
        store: &StoreSettings,
        about: &About,
        earlier: Earlier,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Vec<LayerReport>> {
        let store = store.open()?;
        let mut reports = Vec::new();
        for layer in &mut self.0 {
            let (source, id) = (layer.source.scanned()?, &layer.diff_id);
            let merged = tracer::merge(&layer.traces, &source.tree, &MergeOptions::default())
                .with_context(|| format!("merging the runs of layer {}", id.short()))?;
            if earlier == Earlier::United {
                // What was recorded of the layer elsewhere belongs to it here as well.
                bind(&store, source, id, interrupt)?;
            }
            let kept = keep_layer(&store, source, id, &merged, about, earlier, interrupt)?;
            reports.push(LayerReport {
                layer: *id,
                dir: layer.dir.clone(),
                kept,
            });
        }
        Ok(reports)
    }
}

/// The recorders of one run, one for each layer.
#[derive(Debug)]
pub(crate) struct Recorders(Vec<(Recorded, Mount)>);

impl Recorders {
    /// Returns the time since the last request to any layer.
    pub(crate) fn idle(&self) -> Duration {
        let layers = self.0.iter();
        let last = layers
            .filter_map(|(recorded, _)| recorded.last_event())
            .max();
        last.map_or(Duration::ZERO, |last| last.elapsed())
    }

    /// Returns the recording until now: the boot ends here, and reads while the container is stopped are
    /// not part of it.
    pub(crate) fn stop(&self) -> Vec<RawTrace> {
        let layers = self.0.iter();
        layers.map(|(recorded, _)| recorded.stop()).collect()
    }
}

fn unmount(layer: &Layer) -> Undo {
    Undo::Unmount {
        at: layer.dir.clone(),
        label: label(&layer.dir),
    }
}

/// What the mount table shows of a recorder: never what it shows of a daemon that serves.
fn label(dir: &Path) -> String {
    format!("{LABEL}{}", dir.display())
}

/// Sees to it that a recorder may be mounted over a layer's directory. A daemon of ours that serves
/// it may be covered; what a dead one left is cleared, because it answers nobody.
fn make_room(dir: &Path) -> anyhow::Result<()> {
    while clear_if_dead(dir)? {}
    match top_at(dir)? {
        None => Ok(()),
        Some(top) if top.kind != MOUNT_KIND => {
            bail!("a {} is mounted over {}", top.kind, dir.display())
        }
        Some(top) if top.label.starts_with(LABEL) => bail!(
            "{} is being recorded already: wait until that is done",
            dir.display()
        ),
        Some(_) => Ok(()),
    }
}
