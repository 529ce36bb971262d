//! What a snapshot is, to the clients and on disk.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::block_layer::BlockLayer;
use crate::error::{Result, SnapshotError};
pub use crate::kind::Kind;
use crate::own_device::DeviceForm;

/// Most bytes in a key, a name or a parent. containerd's are `namespace/number/name`, where a
/// name is a digest or a container's ID.
const MAX_KEY_BYTES: usize = 4096;
/// Most bytes in a label's key and value together: what containerd allows.
const MAX_LABEL_BYTES: usize = 4096;
/// Most labels of one snapshot.
const MAX_LABELS: usize = 1024;

/// The labels of a snapshot.
pub type Labels = HashMap<String, String>;

/// The number of a snapshot: the name of its directory. Never used twice in one root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SnapshotId(pub u64);

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The disk usage of a snapshot without its parents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Inodes; a file with several names counts once.
    pub inodes: u64,
    /// Bytes of the blocks in use: a hole counts nothing.
    pub bytes: u64,
}

/// A snapshot, as its record has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its key while active, its name once committed. The record's own key, not repeated in it.
    #[serde(skip)]
    pub name: String,
    /// Its number.
    pub id: SnapshotId,
    /// What may be done with it.
    pub kind: Kind,
    /// Its parent; `None` for an empty directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Sorted, so that equal records are equal bytes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// When it was prepared, or committed.
    pub created: SystemTime,
    /// When its labels were last changed.
    pub updated: SystemTime,
    /// For a committed snapshot: its usage, which does not change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The tier that holds its directories; `None` for the root itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<PathBuf>,
    /// The snapshot whose directory it shares: its own is a link to that, which exists as long as this one
    /// does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<SnapshotId>,
    /// The layer of a block image that it is, or is to become.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<BlockLayer>,
    /// How its files are shown, if they are on a device of its own. Its directory is empty then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceForm>,
}

impl Snapshot {
    /// Returns whether its files are elsewhere, and nothing is to be unpacked into its directory.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.shares.is_some() || self.block.as_ref().is_some_and(BlockLayer::is_elsewhere)
    }
}

/// A snapshot, and its ancestors.
#[derive(Clone, Debug)]
pub struct Stack {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// Its parents, nearest first: overlayfs's order.
    pub parents: Vec<Snapshot>,
}

/// Refuses a key that is empty or too long.
pub(crate) fn check_key(what: &'static str, key: &str) -> Result<()> {
    if key.is_empty() {
        return Err(SnapshotError::Empty { what });
    }
    at_most(what, key.len(), MAX_KEY_BYTES, "bytes")
}

/// Refuses too many or too long labels, and sorts them. A label without a value is no label: that
/// is how containerd's clients remove one.
pub(crate) fn check_labels(labels: Labels) -> Result<BTreeMap<String, String>> {
    at_most("the list of labels", labels.len(), MAX_LABELS, "labels")?;
    for (key, value) in &labels {
        at_most("a label", key.len() + value.len(), MAX_LABEL_BYTES, "bytes")?;
    }
    Ok(labels
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .collect())
}

pub(crate) fn at_most(
    what: &'static str,
    actual: usize,
    limit: usize,
    unit: &'static str,
) -> Result<()> {
    if actual <= limit {
        return Ok(());
    }
    Err(SnapshotError::TooLarge {
        what,
        actual,
        limit,
        unit,
    })
}
