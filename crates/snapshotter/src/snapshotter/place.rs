//! Which directories a snapshot has.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use super::State;
use crate::directories::Directories;
use crate::error::{Result, SnapshotError};
use crate::fast::link_of;
use crate::lowers::Lowers;
use crate::snapshot::{Kind, Labels, Snapshot, SnapshotId};
use crate::unpacks::unpacks;

/// A number whose directories do not count as garbage.
#[derive(Debug)]
pub(super) struct Reserved<'a, L: Lowers> {
    pub(super) id: SnapshotId,
    state: &'a State<L>,
}

impl<'a, L: Lowers> Reserved<'a, L> {
    /// Reserves a number that no snapshot has had.
    pub(super) fn next(state: &'a State<L>) -> Self {
        let id = SnapshotId(state.next_id.fetch_add(1, Relaxed));
        state.reserved.lock().insert(id);
        Self { id, state }
    }

    /// Reserves the number of a snapshot that moves; `None` if it is being moved already.
    pub(super) fn again(state: &'a State<L>, id: SnapshotId) -> Option<Self> {
        let is_free = state.reserved.lock().insert(id);
        // Not `then_some`: the one that it would drop would free what another has reserved.
        is_free.then(|| Self { id, state })
    }

    /// Reserves the number of a snapshot for who commits it.
    ///
    /// # Errors
    /// If somebody else does.
    pub(super) fn alone(state: &'a State<L>, active: &Snapshot) -> Result<Self> {
        Self::again(state, active.id).ok_or_else(|| SnapshotError::WrongKind {
            key: active.name.clone(),
            kind: active.kind,
            needed: "somebody else commits it at this moment",
        })
    }
}

impl<L: Lowers> Drop for Reserved<'_, L> {
    fn drop(&mut self) {
        self.state.reserved.lock().remove(&self.id);
    }
}

impl<L: Lowers> State<L> {
    /// Returns the directories for a new snapshot: the tier's, if it is a container's.
    pub(super) fn place_for(&self, kind: Kind, key: &str, labels: &Labels) -> Result<&Directories> {
        match &self.tier {
            Some(tier) if kind == Kind::Active && !unpacks(key, labels) => {
                Ok(tier.admit()?.unwrap_or(&self.root))
            }
            _ => Ok(&self.root),
        }
    }

    /// Returns the tier of `dirs` for the record.
    pub(super) fn tier_of(&self, dirs: &Directories) -> Option<PathBuf> {
        (dirs.base() != self.root.base()).then(|| dirs.base().to_owned())
    }

    pub(super) fn directories(&self, snapshot: &Snapshot) -> Directories {
        match &snapshot.tier {
            None => self.root.clone(),
            Some(base) => Directories::at(base),
        }
    }

    pub(super) fn fs(&self, snapshot: &Snapshot) -> PathBuf {
        self.directories(snapshot).fs(snapshot.id)
    }

    /// Returns whether the directory of a snapshot is on the fast place for layers.
    pub(super) fn is_fast(&self, id: SnapshotId) -> bool {
        link_of(&self.root.of(id)).is_some()
    }

    /// Fails if the directory of `snapshot` is lost, by a reboot that emptied a tmpfs or by hand:
    /// an empty one in its place would be a wrong one.
    pub(super) fn present(&self, snapshot: &Snapshot) -> Result<()> {
        let dir = self.fs(snapshot);
        if dir.is_dir() {
            return Ok(());
        }
        Err(SnapshotError::Lost {
            key: snapshot.name.clone(),
            dir,
        })
    }
}
