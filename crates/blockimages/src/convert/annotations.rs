//! What the annotations of layers are called.

/// What overlaybd's snapshotter looks for at a layer.
pub(super) const BLOB_DIGEST: &str = "containerd.io/snapshot/overlaybd/blob-digest";
pub(super) const BLOB_SIZE: &str = "containerd.io/snapshot/overlaybd/blob-size";
pub(super) const BLOB_FS_TYPE: &str = "containerd.io/snapshot/overlaybd/blob-fs-type";
pub(super) const VERSION: &str = "containerd.io/snapshot/overlaybd/version";
pub(super) const TARGET_DIGEST: &str = "containerd.io/snapshot/overlaybd/turbo-oci/target-digest";
pub(super) const TARGET_MEDIA_TYPE: &str =
    "containerd.io/snapshot/overlaybd/turbo-oci/target-media-type";
/// The root of its uncompressed content.
pub const CONTENT_ROOT: &str = "org.yolofs.block.content";
