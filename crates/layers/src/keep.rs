//! Storing the recording of a container's layer.

use std::sync::Arc;

use anyhow::Context as _;
use blocks::{BlockSource, CachedSource, Digest, ReplayPlan};
use bootimg::{
    Image, ImageId, SourceInfo, Store, Variant, WriteRequest, layer_name, place_name, unite,
};
use serde::Serialize;
use tracer::Merged;

use bootstore::store::{add_written, watch};
use host::interrupt::Interrupt;
use host::progress;
use mounting::source::Source;

/// What to do about recordings of the layer that are there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Earlier {
    /// Merge with them: other images share the layer.
    United,
    /// Replace them.
    Forgotten,
}

/// The description of a recording.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// The command that was recorded.
    pub command: Vec<String>,
    /// Milliseconds from the start to readiness, run by run.
    pub ready_ms: Vec<u64>,
}

/// A layer whose boot image was stored.
#[derive(Clone, Debug, Serialize)]
pub struct KeptLayer {
    /// Its diff ID.
    pub layer: Digest,
    /// The boot image.
    pub id: String,
    /// Files with content in it.
    pub files: u64,
    /// Blocks of 4 KiB, those of earlier recordings included.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
    /// Blocks that this recording needed.
    pub recorded_blocks: u64,
    /// Bytes of all files of the layer.
    pub layer_bytes: u64,
}

/// Stores the recording of a layer as a boot image bound to the directory it was recorded in; `None`
/// if nothing was read. `source` is that directory, opened before it was mounted over.
///
/// # Errors
/// If the boot image cannot be written or added, or Ctrl-C was pressed.
pub fn keep_layer(
    store: &Store,
    source: &Source,
    layer: &Digest,
    recording: &Merged,
    about: &About,
    earlier: Earlier,
    interrupt: &Interrupt,
) -> anyhow::Result<Option<KeptLayer>> {
    let recorded = &recording.plan;
    if recorded.extents.is_empty() && recorded.touches.is_empty() {
        return Ok(None);
    }
    let before = match earlier {
        Earlier::United => super::recorded_here::recorded_here(store, &source.root, layer)?,
        Earlier::Forgotten => None,
    };
    let reader = source.reader();
    let united;
    let cached;
    let (plan, blocks): (&ReplayPlan, &dyn BlockSource) = match before {
        None => (recorded, &*reader),
        Some(image) => {
            let attached = Arc::new(image.attach(&source.tree));
            united = unite([recorded, attached.plan()]);
            // What is in memory or in the store need not come from a busy disk again.
            cached = CachedSource::new(attached, Arc::clone(&reader));
            (&united, &cached)
        }
    };
    let id = write(store, source, layer, plan, blocks, about, interrupt)
        .with_context(|| format!("keeping the boot image of layer {}", layer.short()))?;
    store
        .name(&id, &layer_name(layer))
        .context("naming the boot image")?;
    Ok(Some(KeptLayer {
        layer: *layer,
        id: id.to_string(),
        files: files_of(plan),
        blocks: plan.block_count(),
        bytes: plan.block_count().saturating_mul(4096),
        recorded_blocks: recorded.block_count(),
        layer_bytes: source.bytes(),
    }))
}

/// Writes the boot image of a layer for the place where `source` is, and names it after both.
///
/// # Errors
/// If it cannot be written or added, or Ctrl-C was pressed.
pub fn write(
    store: &Store,
    source: &Source,
    layer: &Digest,
    plan: &ReplayPlan,
    blocks: &dyn BlockSource,
    about: &About,
    interrupt: &Interrupt,
) -> anyhow::Result<ImageId> {
    let info = info(source, about);
    let request = request(source, &info, plan, blocks);
    let name = place_name(layer, source.root.id());
    let bar = progress::bytes(
        "writing the boot image",
        plan.block_count().saturating_mul(4096),
    );
    let added = add_written(store, Some(&name), &request, &mut watch(&bar, interrupt));
    bar.finish_and_clear();
    interrupt.check()?;
    let (added, report) = added?;
    for file in &report.dropped {
        let path = String::from_utf8_lossy(&file.path);
        log::warn!("{path}: {}: left out of the boot image", file.reason);
    }
    Ok(added.id)
}

/// Makes the boot image of a layer for the place where `source` is of one that has the same blocks, `origin`, and names it after
/// both. `None` if the blocks differ: then it has to be [written](write).
///
/// # Errors
/// If it cannot be added, or Ctrl-C was pressed.
pub(crate) fn copy(
    store: &Store,
    origin: &Image,
    source: &Source,
    layer: &Digest,
    plan: &ReplayPlan,
    about: &About,
    interrupt: &Interrupt,
) -> anyhow::Result<Option<Image>> {
    let reader = source.reader();
    let info = info(source, about);
    let request = request(source, &info, plan, &*reader);
    let name = place_name(layer, source.root.id());
    let bar = progress::bytes(
        "comparing the boot image",
        plan.block_count().saturating_mul(4096),
    );
    let copied = store.add_copy(origin, &name, &request, &mut watch(&bar, interrupt));
    bar.finish_and_clear();
    interrupt.check()?;
    Ok(copied?)
}

fn info(source: &Source, about: &About) -> SourceInfo {
    SourceInfo {
        command: about.command.clone(),
        ready_ms: about.ready_ms.clone(),
        ..source.info()
    }
}

fn request<'a>(
    source: &'a Source,
    info: &'a SourceInfo,
    plan: &'a ReplayPlan,
    blocks: &'a dyn BlockSource,
) -> WriteRequest<'a> {
    WriteRequest {
        tree: &source.tree,
        info,
        plan,
        blocks,
        variant: Variant::Mapped,
    }
}

fn files_of(plan: &ReplayPlan) -> u64 {
    let mut files: Vec<_> = plan.extents.iter().map(|extent| extent.file).collect();
    files.sort_unstable();
    files.dedup();
    files.len() as u64
}
