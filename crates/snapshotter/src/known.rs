//! Layers that exist already: the unpacker is notified, and need not download them again.
//!
//! containerd names the layer that it is about to unpack by its chain ID. If a layer of that name has the
//! same parent, the response is that it exists, and containerd adds it to the namespace of the request.
//! Where layers are unpacked in parallel, the parent comes with Commit: then the new snapshot gets the directory
//! of the existing one, and is mounted read-only, which tells containerd 2.4 that nothing is to be
//! unpacked. Earlier releases would unpack into it and fail, so the [`Unpacker`] is checked first.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use parking_lot::Mutex;

use crate::snapshot::{Kind, Snapshot};
use crate::unpacks::UNPACKED_AS;

/// Unpacks layers into the snapshots.
pub trait Unpacker: fmt::Debug + Send + Sync + 'static {
    /// Returns whether it accepts a read-only mount for an existing layer, as containerd does from 2.4 on.
    /// Must return soon.
    fn takes_read_only_for_unpacked(&self) -> bool;
}

/// The committed layers by the chain IDs that their unpacker has called them by.
#[derive(Debug, Default)]
pub(crate) struct KnownLayers(Mutex<HashMap<String, BTreeSet<String>>>);

impl KnownLayers {
    /// Adds a snapshot, if it is a layer that was unpacked from an image.
    pub(crate) fn add(&self, snapshot: &Snapshot) {
        if let Some(chain) = chain_of(snapshot) {
            let mut known = self.0.lock();
            let names = known.entry(chain.to_owned()).or_default();
            names.insert(snapshot.name.clone());
        }
    }

    /// Removes one.
    pub(crate) fn remove(&self, snapshot: &Snapshot) {
        let Some(chain) = chain_of(snapshot) else {
            return;
        };
        let mut known = self.0.lock();
        if let Some(names) = known.get_mut(chain) {
            names.remove(&snapshot.name);
            if names.is_empty() {
                known.remove(chain);
            }
        }
    }

    /// Returns the names of the layers with this chain ID.
    pub(crate) fn names(&self, chain: &str) -> Vec<String> {
        let known = self.0.lock();
        let names = known.get(chain).into_iter().flatten();
        names.cloned().collect()
    }
}

/// Returns the chain ID of a committed layer: its name must agree with the label, which any client
/// may change.
pub(crate) fn chain_of(snapshot: &Snapshot) -> Option<&str> {
    let chain = snapshot.labels.get(UNPACKED_AS)?;
    let last = snapshot.name.rsplit('/').next();
    (snapshot.kind == Kind::Committed && last == Some(chain)).then_some(chain)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::snapshot::SnapshotId;

    fn layer(name: &str, chain: &str) -> Snapshot {
        Snapshot {
            name: name.to_owned(),
            id: SnapshotId(1),
            kind: Kind::Committed,
            parent: None,
            labels: [(UNPACKED_AS.to_owned(), chain.to_owned())].into(),
            created: SystemTime::UNIX_EPOCH,
            updated: SystemTime::UNIX_EPOCH,
            usage: None,
            tier: None,
            shares: None,
            block: None,
            device: None,
        }
    }

    #[test]
    fn a_layer_is_known_by_the_name_that_it_has() {
        let known = KnownLayers::default();
        let (one, other) = (
            layer("a/1/sha256:x", "sha256:x"),
            layer("b/2/sha256:x", "sha256:x"),
        );
        known.add(&one);
        known.add(&other);
        known.add(&layer("a/3/sha256:y", "sha256:x"));
        known.add(&Snapshot {
            kind: Kind::Active,
            ..layer("a/4/sha256:x", "sha256:x")
        });
        assert_eq!(known.names("sha256:x"), [&*one.name, &*other.name]);
        assert!(known.names("sha256:y").is_empty());
        known.remove(&one);
        known.remove(&other);
        known.remove(&other);
        assert!(known.names("sha256:x").is_empty());
    }
}
