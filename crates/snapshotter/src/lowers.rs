//! The interface to the server of committed layers.

use std::path::PathBuf;

use blocks::Digest;

use crate::snapshot::{Snapshot, SnapshotId};

/// A committed layer, and the directory that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerDir {
    /// Its number.
    pub id: SnapshotId,
    /// Its name. containerd's is `namespace/number/chain ID`.
    pub name: String,
    /// Its content, which must not be changed.
    pub dir: PathBuf,
}

impl LayerDir {
    /// Returns the layer's chain ID: the digest of it and everything below it.
    ///
    /// `None` if it was not unpacked from an image: then its name is arbitrary.
    #[must_use]
    pub fn chain_id(&self) -> Option<Digest> {
        self.name.rsplit('/').next()?.parse().ok()
    }
}

/// Serves committed layers.
///
/// No method fails: a bad implementation makes containers slower, and the plain directory is
/// always there. A returned place is checked, and replaced by the plain directory if it is not
/// a directory.
pub trait Lowers: Send + Sync + 'static {
    /// Returns where an overlay for `snapshot` finds each of `layers`, nearest first; `None`, or
    /// an empty list, for the plain directory. Is called again whenever the snapshot is mounted, and not for
    /// one that a layer is unpacked into: that is on the plain directories.
    fn places(&self, snapshot: &Snapshot, layers: &[LayerDir]) -> Vec<Option<PathBuf>>;

    /// Returns whether what is served may be mounted with other user IDs. Otherwise containers with such
    /// IDs get the plain directories.
    fn may_be_mapped(&self) -> bool {
        true
    }

    /// Notifies of a layer that is now committed, or was when the snapshotter started. Must return at
    /// once.
    fn committed(&self, layer: &LayerDir);

    /// Hears that the directory of a layer leads to a copy of it now, and returns whether what is
    /// given out for the layer from now on has nothing to do with where it was: who has that open is
    /// to open it anew. Is asked again until that is so. To return at once.
    fn follow(&self, _layer: &LayerDir) -> bool {
        true
    }

    /// Notifies of a snapshot of any kind whose record was removed, before its directory is
    /// deleted.
    fn removed(&self, id: SnapshotId);
}

/// Serves nothing: every layer is its plain directory.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainLowers;

impl Lowers for PlainLowers {
    fn places(&self, _snapshot: &Snapshot, _layers: &[LayerDir]) -> Vec<Option<PathBuf>> {
        Vec::new()
    }

    fn committed(&self, _layer: &LayerDir) {}

    fn removed(&self, _id: SnapshotId) {}
}

/// For tests: gives out places that do not exist.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultyLowers;

impl Lowers for FaultyLowers {
    fn places(&self, _snapshot: &Snapshot, layers: &[LayerDir]) -> Vec<Option<PathBuf>> {
        let places = layers.iter().map(|layer| Some(layer.dir.join("nowhere")));
        // One too many, too.
        places.chain([Some(PathBuf::from("/nowhere"))]).collect()
    }

    fn committed(&self, _layer: &LayerDir) {}

    fn removed(&self, _id: SnapshotId) {}
}
