//! Layers that are not on this machine, and who opens them.

use std::sync::Arc;

use lsmt::{Layer, ReadAt, SegmentBudget};

use crate::{ContentRoot, ImageError, LayerStart, Start};

/// A layer that is not on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteLayer {
    /// Its place in the image, counted from the bottom.
    pub number: u32,
    /// The digest of its blob.
    pub digest: String,
    /// The blob's bytes.
    pub size: u64,
    /// The hash of its uncompressed content, if the image's manifest names it.
    pub content: Option<ContentRoot>,
}

/// Opens blobs that are not on this machine.
pub trait BlobSource: Send + Sync {
    /// Opens layers of one image, whose blobs are below the address `blob_url`, and begins to fetch what its
    /// start is known to read. Returns them in the same order. All layers of the image have one `budget`.
    ///
    /// # Errors
    /// If there is no such blob, or it is no layer.
    fn open(
        &self,
        blob_url: &str,
        layers: &[RemoteLayer],
        start: &Start,
        budget: &SegmentBudget,
    ) -> Result<Vec<Layer>, ImageError>;

    /// Opens a blob that is no block image, a layer of a container image, and begins to fetch what the start is known to
    /// read of it.
    ///
    /// # Errors
    /// If there is no such blob.
    fn blob(
        &self,
        blob_url: &str,
        layer: &RemoteLayer,
        start: LayerStart<'_>,
    ) -> Result<Arc<dyn ReadAt>, ImageError>;
}
