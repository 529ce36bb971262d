//! The interface that decides where layers are unpacked.

use std::fmt;

use blocks::Digest;

use crate::snapshot::{Labels, Snapshot, SnapshotId};

/// containerd puts this label on a snapshot into which it unpacks a layer: the chain ID under
/// which it is to be committed.
pub(crate) const UNPACKED_AS: &str = "containerd.io/snapshot.ref";
/// What the key of such a snapshot begins with: `extract-NUMBER-RANDOM CHAIN`.
const UNPACK_PREFIX: &str = "extract-";

/// A layer that is to be unpacked into an active snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpack {
    /// The number of the snapshot.
    pub id: SnapshotId,
    /// The chain ID under which it is to be committed.
    pub chain: Digest,
    /// Its parent: `None` for the lowest layer, and for all layers that are unpacked in parallel.
    pub parent: Option<String>,
}

impl Unpack {
    /// Returns which layer is to be unpacked into an active snapshot; `None` for a container's snapshot.
    pub(crate) fn of(snapshot: &Snapshot) -> Option<Self> {
        let label = snapshot.labels.get(UNPACKED_AS).map(String::as_str);
        let chain = label.or_else(|| last_word(&snapshot.name)?.split(' ').nth(1))?;
        Some(Self {
            id: snapshot.id,
            chain: chain.parse().ok()?,
            parent: snapshot.parent.clone(),
        })
    }
}

/// Returns whether a layer is to be unpacked into a new snapshot.
pub(crate) fn unpacks(key: &str, labels: &Labels) -> bool {
    labels.contains_key(UNPACKED_AS) || last_word(key).is_some()
}

/// Returns whether a snapshot was made to unpack a layer into it.
pub(crate) fn is_unpacked_into(snapshot: &Snapshot) -> bool {
    snapshot.labels.contains_key(UNPACKED_AS) || last_word(&snapshot.name).is_some()
}

fn last_word(key: &str) -> Option<&str> {
    let last = key.rsplit('/').next();
    last.filter(|last| last.starts_with(UNPACK_PREFIX))
}

/// Where a layer is that was unpacked before its snapshot was prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopted {
    /// On the fast place.
    Fast,
    /// On the disk.
    Disk,
}

/// Is notified of layers that are about to be unpacked, and may have them unpacked on the
/// [fast place](crate::FastLayers) before that has begun.
pub trait Unpacks: fmt::Debug + Send + Sync + 'static {
    /// Notifies that a layer is to be unpacked into a snapshot, whose directory is empty, and on the
    /// disk yet. containerd may not have the layer for a while. Must return soon.
    fn begins(&self, unpack: Unpack);

    /// Notifies that a snapshot has a layer that another process has unpacked. Must return soon.
    fn adopted(&self, place: Adopted);

    /// Notifies that a snapshot, perhaps another one, is committed or removed.
    fn ended(&self, id: SnapshotId);
}
