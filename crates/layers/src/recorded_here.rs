//! Finding the boot image that was made for the directory of a layer.

use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use blocks::{Digest, FileId};
use bootimg::{Image, ImageId, Store};
use localfs::{Patience, SourceRoot};

/// Returns the boot image that was made for this very directory, unless the directory is another
/// one by now.
///
/// # Errors
/// If the store cannot be read.
pub(crate) fn recorded_here(
    store: &Store,
    root: &SourceRoot,
    layer: &Digest,
) -> anyhow::Result<Option<Arc<Image>>> {
    let id = store.layer_at(layer, root.id());
    let id = id.context("looking for the boot image of a layer")?;
    match id.and_then(|id| open(store, &id, layer)) {
        Some(image) if is_of(&image, root)? => Ok(Some(image)),
        _ => Ok(None),
    }
}

/// Returns whether the image's source is the directory that is at its path now: an engine that
/// unpacks the layer again makes new inodes.
pub(crate) fn is_of(image: &Image, root: &SourceRoot) -> anyhow::Result<bool> {
    let recorded = image.tree().inode(FileId::ROOT);
    let now = inode_of(root)?;
    Ok(recorded.is_some_and(|dir| dir.attr.source_inode == now))
}

/// Returns the inode of the directory of a layer.
///
/// # Errors
/// If it cannot be looked at.
pub(crate) fn inode_of(root: &SourceRoot) -> anyhow::Result<u64> {
    let now = root.inode_within(Patience::default().deadline);
    now.context("looking at the directory of a layer")
}

/// Opens an image. One that cannot be used costs speed only: it is logged.
pub(crate) fn open(store: &Store, id: &ImageId, layer: &Digest) -> Option<Arc<Image>> {
    match store.open_fastest(id) {
        Ok(image) => Some(Arc::new(image)),
        Err(error) => {
            log::warn!(
                "the boot image of layer {} cannot be used: {:#}",
                layer.short(),
                anyhow!(error)
            );
            None
        }
    }
}
