//! Binding the boot image of a container's layer to one directory that holds the layer.
//!
//! A layer's content is given by its digest, but a boot image is valid only for versions of files:
//! inodes and times, which differ wherever the layer is unpacked. So a recording from elsewhere
//! is only a hint. Its plan is matched by path and length, and the blocks are read here, once:
//! right after a pull they are still in memory. Blocks that the store has for the hint already are
//! compared with them, and shared. No byte that is not here and no attribute of a hint is ever
//! served, so it need not be trusted.

use std::sync::Arc;

use anyhow::Context as _;
use blocks::Digest;
use bootimg::{Image, Store};

use super::keep::{About, copy, write};
use super::recorded_here::{open, recorded_here};
use host::interrupt::Interrupt;
use mounting::source::Source;

/// Returns the boot image of a layer for the directory where `source` is, made from a hint if
/// needed; `None` if the store does not know the layer.
///
/// # Errors
/// If the store cannot be read or changed, or Ctrl-C was pressed.
pub fn bind(
    store: &Store,
    source: &Source,
    layer: &Digest,
    interrupt: &Interrupt,
) -> anyhow::Result<Option<Arc<Image>>> {
    if let Some(image) = recorded_here(store, &source.root, layer)? {
        return Ok(Some(image));
    }
    let Some(hint) = hint(store, source, layer)? else {
        return Ok(None);
    };
    let found = hint.hint_for(&source.tree);
    if let Some(first) = found.dropped.first() {
        log::warn!(
            "layer {}: {} files differ from those of the recording, {} among them",
            layer.short(),
            found.dropped.len(),
            String::from_utf8_lossy(&first.path)
        );
    }
    if found.plan.extents.is_empty() && found.plan.touches.is_empty() {
        return Ok(None);
    }
    let about = About {
        command: hint.info().source.command.clone(),
        ready_ms: hint.info().source.ready_ms.clone(),
    };
    let binding = || {
        format!(
            "binding the boot image of layer {} to {}",
            layer.short(),
            source.root.path().display()
        )
    };
    // An image of many layers is pulled at once: writing the blocks of each, syncing them, and looking for them in all of the
    // store, would take longer than all else.
    let copied = copy(store, &hint, source, layer, &found.plan, &about, interrupt);
    if let Some(image) = copied.with_context(binding)? {
        return Ok(Some(Arc::new(image)));
    }
    let reader = source.reader();
    let id = write(
        &store.for_derived(hint.info().id),
        source,
        layer,
        &found.plan,
        &*reader,
        &about,
        interrupt,
    )
    .with_context(binding)?;
    let image = store.open_image(&id).context("opening the boot image")?;
    Ok(Some(Arc::new(image)))
}

/// Returns what was recorded of the layer elsewhere, or in a directory that stood here before.
fn hint(store: &Store, source: &Source, layer: &Digest) -> anyhow::Result<Option<Arc<Image>>> {
    let elsewhere = store.layer(layer);
    let before = store.layer_at(layer, source.root.id());
    let ids = [elsewhere, before]
        .into_iter()
        .map(|id| id.context("looking for the boot image of a layer"));
    for id in ids {
        if let Some(image) = id?.and_then(|id| open(store, &id, layer)) {
            return Ok(Some(image));
        }
    }
    Ok(None)
}
