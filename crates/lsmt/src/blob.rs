//! Opens layers whatever is around them.

use std::sync::Arc;

use crate::budget::SegmentBudget;
use crate::error::{Doing, Result};
use crate::layer::Layer;
use crate::storage::ReadAt;
use crate::tar::unwrap_tar;
use crate::zfile::ZFile;

/// Returns the uncompressed content of a blob: without the tar around it, and decompressed if it is a
/// [`ZFile`].
///
/// # Errors
///
/// Fails if it cannot be read, or if the tar or the `ZFile` is invalid.
pub fn open_content(blob: Arc<dyn ReadAt>) -> Result<Arc<dyn ReadAt>> {
    let inner = unwrap_tar(blob)?;
    let mut magic = [0; 8];
    if inner.size().doing("get the size of a blob")? >= 8 {
        inner
            .read_at(&mut magic, 0)
            .doing("read a blob's first bytes")?;
    }
    Ok(match &magic == b"ZFile\0\x01\0" {
        true => Arc::new(ZFile::open(inner)?),
        false => Arc::new(inner),
    })
}

/// Opens a sealed layer as registries have it: LSMT, perhaps within a [`ZFile`], perhaps within a tar.
///
/// # Errors
///
/// Fails if it cannot be read, is damaged, or breaks a rule of one of the formats.
pub fn open_blob(blob: Arc<dyn ReadAt>) -> Result<Layer> {
    open_blob_within(blob, &SegmentBudget::default())
}

/// Opens a layer of an image, all layers of which have one budget.
///
/// # Errors
///
/// As [`open_blob`], and if the budget does not suffice.
pub fn open_blob_within(blob: Arc<dyn ReadAt>, budget: &SegmentBudget) -> Result<Layer> {
    Layer::open_within(open_content(blob)?, budget)
}

/// Opens a turboOCI layer: its metadata as they are in `ext4.fs.meta` or `erofs.fs.meta`, and the
/// uncompressed tar of the container image's layer, of which [`GzipTar`](crate::GzipTar) is one.
///
/// # Errors
///
/// As [`open_blob`].
pub fn open_turbo_blob(meta: Arc<dyn ReadAt>, tar: Arc<dyn ReadAt>) -> Result<Layer> {
    open_turbo_blob_within(meta, tar, &SegmentBudget::default())
}

/// Opens a turboOCI layer of an image, all layers of which have one budget.
///
/// # Errors
///
/// As [`open_blob_within`].
pub fn open_turbo_blob_within(
    meta: Arc<dyn ReadAt>,
    tar: Arc<dyn ReadAt>,
    budget: &SegmentBudget,
) -> Result<Layer> {
    Layer::open_turbo_within(open_content(meta)?, tar, budget)
}
