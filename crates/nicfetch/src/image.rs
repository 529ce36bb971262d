//! Container images as sources of the block service: each layer by its diff ID, and all of them on
//! each other by the image's name.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::admin::ListedSource;
use anyhow::{Context as _, ensure};
use blocks::NodeKind;
use chunks::Stay;
use chunks::index::{Index, Tally};
use oci::LayerBlob;
use oci::unpack::{Limits, read_layer, stack};
use serde::Serialize;

use crate::import_target::ImportTarget;

/// A container image that was taken, as `--json` shows it.
#[derive(Debug, Serialize)]
pub struct TakenImage {
    /// All layers on each other.
    #[serde(flatten)]
    pub whole: ListedSource,
    /// Bytes of chunks that were missing before.
    pub new_bytes: u64,
    /// The layers, the lowest first.
    pub layers: Vec<ListedSource>,
}

/// Makes sources of the layers of an image, the lowest first, and one of all with the name
/// `name`, pinned or not, whose chunks are those of the layers. Existing layers are not
/// read again. The watch receives how many bytes of the layers' blobs are done.
///
/// # Errors
/// If a layer is damaged, there is no space, or the watch cancels.
pub(crate) fn take_image(
    name: &str,
    layers: &[LayerBlob],
    target: &dyn ImportTarget,
    stay: Stay,
    watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> anyhow::Result<TakenImage> {
    let mut tally = Tally::default();
    let (mut indexes, mut listed) = (Vec::new(), Vec::new());
    let mut done = 0;
    // What one layer may ask for, all of them together get.
    let mut left = Limits::default();
    for layer in layers {
        let mut watch = |bytes: u64| watch(done + bytes);
        let index = take_layer(layer, target, &left, &mut tally, &mut watch)?;
        left = left_after(left, &index);
        ensure!(
            left.entries > 0 && left.bytes > 0 && left.memory > 0,
            "its layers together have more files than one image may have"
        );
        // Also one that was there: what it needs may just have gone.
        listed.push(target.add(&layer.diff_id.to_string(), &index, Stay::WhileUsed)?);
        indexes.push(index);
        done += layer.size();
    }
    let whole =
        stacked(name, &indexes).with_context(|| format!("stacking the layers of {name}"))?;
    Ok(TakenImage {
        whole: target.add(name, &whole, stay)?,
        new_bytes: tally.new_bytes,
        layers: listed,
    })
}

fn take_layer(
    layer: &LayerBlob,
    target: &dyn ImportTarget,
    limits: &Limits,
    tally: &mut Tally,
    watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> anyhow::Result<Arc<Index>> {
    let name = layer.diff_id.to_string();
    if let Some(index) = target.whole(&name)? {
        return Ok(index);
    }
    let read = read_layer(
        layer,
        limits,
        &mut |content| tally.cut(content, target.chunks()),
        watch,
    )?;
    let index = Index::new(name.as_bytes(), Arc::new(read.tree), read.contents.concat());
    let index = index.with_context(|| format!("making an index of the layer {name}"))?;
    Ok(Arc::new(index))
}

/// Returns what is left for the layers above one that has this index, which is kept until they are
/// stacked: its tree, and the bytes that the tree was made from.
fn left_after(left: Limits, index: &Index) -> Limits {
    let tree = index.tree();
    let sizes = tree.files().map(|(_, inode)| match inode.attr.kind {
        NodeKind::File => inode.attr.size,
        _ => 0,
    });
    let bytes = sizes.fold(0, u64::saturating_add);
    left.without(tree.len() as u64, bytes, 2 * index.bytes().len() as u64)
}

/// Returns the index of all layers on each other. Their chunks are the layers' own.
fn stacked(name: &str, layers: &[Arc<Index>]) -> anyhow::Result<Index> {
    let trees: Vec<_> = layers.iter().map(|layer| &**layer.tree()).collect();
    let (tree, files) = stack(&trees)?;
    let chunks = files
        .iter()
        .flat_map(|origin| layers[origin.layer].chunks_of(origin.file));
    let chunks = chunks.copied().collect();
    Ok(Index::new(name.as_bytes(), Arc::new(tree), chunks)?)
}
