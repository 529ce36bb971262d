//! Requests for a layer that exists already.

use std::os::unix::fs::symlink;

use super::State;
use crate::error::{Result, SnapshotError};
use crate::known::chain_of;
use crate::lowers::Lowers;
use crate::snapshot::{Labels, Snapshot, SnapshotId};
use crate::unpacks::UNPACKED_AS;

/// containerd puts this label on a snapshot into which it unpacks a layer: the chain ID of its future
/// parent. Without a parent, it is unpacked before the parent exists.
pub(super) const STACKED_LATER: &str = "containerd.io/snapshot/parent-chain-id";

impl<L: Lowers> State<L> {
    /// Returns the layer whose directory a new snapshot shares, if it is made to unpack a layer that
    /// exists already.
    ///
    /// # Errors
    /// If such a layer has the same parent: it exists, and need not be made.
    pub(super) fn reused(
        &self,
        key: &str,
        parent: Option<&str>,
        labels: &Labels,
    ) -> Result<Option<Snapshot>> {
        let Some(chain) = labels.get(UNPACKED_AS) else {
            return Ok(None);
        };
        let mut same = self.usable(chain);
        if same.iter().any(|layer| layer.parent.as_deref() == parent) {
            let key = key.to_owned();
            return Err(SnapshotError::AlreadyExists { key });
        }
        let is_stacked_later = parent.is_none() && labels.contains_key(STACKED_LATER);
        // What is on the fast place goes from there, and nobody else is to lead there.
        same.retain(|layer| !self.is_fast(layer.shares.unwrap_or(layer.id)));
        if !is_stacked_later || same.is_empty() {
            return Ok(None);
        }
        let asked = self.unpacker.as_ref();
        let takes = asked.is_some_and(|unpacker| unpacker.takes_read_only_for_unpacked());
        Ok(same.pop().filter(|_| takes))
    }

    /// Returns the layers of this chain ID whose files are there.
    fn usable(&self, chain: &str) -> Vec<Snapshot> {
        let named = self.known.names(chain).into_iter();
        // It may be gone since, or its directory lost; then it is unpacked as if nobody knew it.
        let layers = named.filter_map(|name| self.catalog.get(&name).ok());
        layers
            .filter(|it| chain_of(it) == Some(chain) && self.present(it).is_ok())
            .collect()
    }

    /// Returns how many of the layers of an image exist, whoever has them, counted from the lowest.
    pub(super) fn count_known(&self, chains: &[String]) -> usize {
        let mut below = vec![None];
        for (count, chain) in chains.iter().enumerate() {
            let here = self.usable(chain).into_iter();
            let here = here.filter(|layer| below.contains(&layer.parent));
            below = here.map(|layer| Some(layer.name)).collect();
            if below.is_empty() {
                return count;
            }
        }
        chains.len()
    }

    /// Makes the directory of a snapshot that has another's.
    pub(super) fn share(&self, id: SnapshotId, with: SnapshotId) -> Result<()> {
        let link = self.root.of(id);
        symlink(with.to_string(), &link).map_err(SnapshotError::io("link", &link))
    }
}
