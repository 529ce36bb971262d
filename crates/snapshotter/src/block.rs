//! Layers of block images, which are served as one device and need no unpacking.
//!
//! overlaybd's annotations become labels of the snapshots that layers are to be unpacked into. A layer whose blob can
//! be read where it is need not be downloaded: its snapshot is committed at once, and its directory stays empty. Of a
//! turboOCI layer the metadata are downloaded and unpacked, and the data is read where it is.
//! All layers of such an image are one file system, so an overlay has one lower directory for all of them.

use std::fmt;
use std::path::{Path, PathBuf};

use blocks::Digest;

use crate::block_layer::BlockLayer;
use crate::error::{Result, SnapshotError};
use crate::own_device::{DeviceForm, OwnDevice, WantedDevice};
use crate::snapshot::{Labels, Snapshot, SnapshotId, Usage};

const BLOB_DIGEST: &str = "containerd.io/snapshot/overlaybd/blob-digest";
const BLOB_SIZE: &str = "containerd.io/snapshot/overlaybd/blob-size";
/// The name that an image is pulled by: Docker says it, and Kubernetes' pulls may.
const IMAGE: &str = "containerd.io/snapshot/cri.image-ref";
/// The digest of the layer that a turboOCI layer refers to for its data.
const TARGET_DIGEST: &str = "containerd.io/snapshot/overlaybd/turbo-oci/target-digest";
/// Labels of what is not such a layer, though it has a blob's digest.
const OTHERS: [(&str, &str); 2] = [
    (
        "containerd.io/snapshot/overlaybd/fastoci/target-digest",
        "images of the format before turboOCI cannot be served: convert the image again",
    ),
    (
        "containerd.io/snapshot/overlaybd/acceleration-layer",
        "images with an acceleration layer cannot be served: remove that layer",
    ),
];

/// A layer of a block image, and where its blob is if it is on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDir {
    /// The number of its snapshot.
    pub id: SnapshotId,
    /// The name of its snapshot. containerd's is `namespace/number/chain ID`.
    pub name: String,
    /// The layer.
    pub layer: BlockLayer,
    /// Has the blob as `overlaybd.commit`, the metadata of a turboOCI layer, or nothing.
    pub dir: PathBuf,
}

impl BlockDir {
    /// Returns the chain ID of the layer; `None` if it was not unpacked from an image.
    #[must_use]
    pub fn chain_id(&self) -> Option<Digest> {
        self.name.rsplit('/').next()?.parse().ok()
    }
}

/// Any error of who makes file systems of block images.
pub type BlockError = Box<dyn std::error::Error + Send + Sync>;

/// Makes file systems of block images.
pub trait BlockImages: fmt::Debug + Send + Sync + 'static {
    /// Returns where the blobs are that the blob of a layer is among, which is about to be downloaded for the
    /// snapshot `key`; `None` if that is not known. `image` is the name that it is pulled by, if the engine says it.
    fn blobs_of(&self, key: &str, blob: &Digest, image: Option<&str>) -> Option<String>;

    /// Returns a directory with the files of a stack of layers, the nearest one first. It belongs to the nearest one,
    /// and is there until that is removed. Is called whenever a snapshot above is mounted: a `container`'s, or another.
    ///
    /// # Errors
    /// If they cannot be served.
    fn directory(
        &self,
        layers: &[BlockDir],
        container: Option<&Snapshot>,
    ) -> Result<PathBuf, BlockError>;

    /// Notifies that the snapshot of a layer was removed. Must return at once.
    fn removed(&self, id: SnapshotId);

    /// Returns how containers on these layers, the nearest one first, get a device of their own though no label says so;
    /// `None` if they get an overlay, as they do unless it is set up otherwise.
    fn form_by_default(&self, _layers: &[BlockDir]) -> Option<DeviceForm> {
        None
    }

    /// Returns the device that the snapshot `id` writes to, on a stack of layers, the nearest one first. It is made if it
    /// is not there, and stays until it has [ended](Self::device_ended). Is called whenever the snapshot is mounted.
    ///
    /// # Errors
    /// If it cannot be served, or there is no file system that could be written to.
    fn device(
        &self,
        id: SnapshotId,
        wanted: WantedDevice<'_>,
        layers: &[BlockDir],
    ) -> Result<OwnDevice, BlockError>;

    /// Writes all that was written to the device of a snapshot to a blob, which is there as a whole and durable
    /// afterwards; returns its digest and length. Nobody reads or writes the device until it is asked for again. It has
    /// its content still, and can be sealed again.
    ///
    /// # Errors
    /// If somebody has its file system mounted, or the blob cannot be written.
    fn seal(&self, id: SnapshotId, blob: &Path) -> Result<(Digest, u64), BlockError>;

    /// Returns the space that the device of a snapshot takes on the disk.
    ///
    /// # Errors
    /// If it cannot be looked at.
    fn device_usage(&self, id: SnapshotId) -> Result<Usage, BlockError>;

    /// Notifies that the device of a snapshot is not needed any more: that was removed or committed. Must return at once.
    fn device_ended(&self, id: SnapshotId);
}

/// Returns the name of the image that a snapshot with these labels is pulled for, if it is known.
pub(crate) fn image_of(labels: &Labels) -> Option<&str> {
    labels.get(IMAGE).map(String::as_str)
}

/// Returns which layer of a block image a snapshot with these labels is for, if it is for one.
///
/// # Errors
/// If the labels are invalid, or of a layer that cannot be served.
pub(crate) fn layer_of(labels: &Labels) -> Result<Option<BlockLayer>> {
    let Some(digest) = labels.get(BLOB_DIGEST) else {
        return Ok(None);
    };
    let refused = |why: &str| SnapshotError::BadBlockLayer {
        digest: digest.clone(),
        why: why.to_owned(),
    };
    if let Some((_, why)) = OTHERS.iter().find(|(label, _)| labels.contains_key(*label)) {
        return Err(refused(why));
    }
    let size = labels.get(BLOB_SIZE).and_then(|size| size.parse().ok());
    let parsed = |digest: &String| digest.parse().map_err(|_| refused("this is no digest"));
    Ok(Some(BlockLayer {
        digest: Some(parsed(digest)?),
        target: labels.get(TARGET_DIGEST).map(parsed).transpose()?,
        size: size.ok_or_else(|| refused("the label overlaybd/blob-size has no number"))?,
        blobs: None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(more: &[(&str, &str)]) -> Labels {
        let digest = Digest([7; 32]).to_string();
        let all = [(BLOB_DIGEST, &*digest), (BLOB_SIZE, "4096")];
        let all = all.iter().chain(more);
        all.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn labels_say_which_layer_it_is() {
        assert_eq!(layer_of(&Labels::new()).unwrap(), None);
        let layer = layer_of(&labels(&[])).unwrap().unwrap();
        assert_eq!((layer.digest, layer.size), (Some(Digest([7; 32])), 4096));
        assert!(!layer.is_elsewhere());
        let target = Digest([8; 32]);
        let turbo = layer_of(&labels(&[(TARGET_DIGEST, &target.to_string())]));
        assert_eq!(turbo.unwrap().unwrap().target, Some(target));
    }

    #[test]
    fn what_cannot_be_served_is_refused() {
        for label in [
            (BLOB_DIGEST, "sha256:short"),
            (BLOB_SIZE, "-1"),
            (TARGET_DIGEST, "sha256:0"),
            (OTHERS[0].0, "sha256:0"),
            (OTHERS[1].0, "yes"),
        ] {
            let refused = layer_of(&labels(&[label])).unwrap_err();
            assert!(
                matches!(refused, SnapshotError::BadBlockLayer { .. }),
                "{label:?}"
            );
        }
    }
}
