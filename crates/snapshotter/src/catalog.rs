//! The metadata of all snapshots, in a database whose transactions survive a crash.
//!
//! Three tables of one redb file: the snapshots by name, the pairs of parent and child, and the
//! counters. Every change is one transaction, which is on the disk before the response:
//! containerd writes its own record after ours, and must never know more than this database. That is
//! one flush of the disk for each change; containerd's own snapshotters need two.

mod change;
mod store;
mod tables;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use redb::ReadableTable as _;
use serde::Deserialize;

use crate::error::{Result, SnapshotError};
use crate::filter::Filter;
use crate::snapshot::{Snapshot, SnapshotId, Stack, check_key};
pub(crate) use change::{LabelChange, NewSnapshot};
use store::Store;
use tables::{
    CHILDREN, COUNTERS, FORMAT, KNOWN_FORMAT, NEXT_ID, SNAPSHOTS, committable, committed, counter,
    damage, decode, existing, parents, record,
};

/// The metadata of one root.
#[derive(Debug)]
pub(crate) struct Catalog {
    store: Store,
}

impl Catalog {
    /// Opens the metadata at `path`, or makes it.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let store = Store::open(path)?;
        store.write("open the tables", |tx| {
            tx.open_table(SNAPSHOTS)?;
            tx.open_table(CHILDREN)?;
            let mut counters = tx.open_table(COUNTERS)?;
            match counter(&counters, FORMAT)? {
                None => {
                    counters.insert(FORMAT, KNOWN_FORMAT)?;
                }
                Some(KNOWN_FORMAT) => {}
                Some(found) => {
                    return Err(SnapshotError::Format {
                        found,
                        known: KNOWN_FORMAT,
                    });
                }
            }
            Ok(())
        })?;
        Ok(Self { store })
    }

    /// Returns the lowest number that no snapshot has had.
    pub(crate) fn next_id(&self) -> Result<u64> {
        self.store.read("read a counter", |tx| {
            let counters = tx.open_table(COUNTERS)?;
            Ok(counter(&counters, NEXT_ID)?.unwrap_or(1))
        })
    }

    /// Returns the snapshot `key`.
    pub(crate) fn get(&self, key: &str) -> Result<Snapshot> {
        self.store.read("read a snapshot", |tx| {
            existing(&tx.open_table(SNAPSHOTS)?, key)
        })
    }

    /// Returns the snapshot `key` and its parents.
    pub(crate) fn stack(&self, key: &str) -> Result<Stack> {
        self.store.read("read a snapshot", |tx| {
            let table = tx.open_table(SNAPSHOTS)?;
            let snapshot = existing(&table, key)?;
            let parents = parents(&table, &snapshot)?;
            Ok(Stack { snapshot, parents })
        })
    }

    /// Returns the snapshots that `filter` matches. Damaged records are passed to `damaged` and
    /// skipped: one of them must not hide the others.
    pub(crate) fn walk(
        &self,
        filter: &Filter,
        mut damaged: impl FnMut(SnapshotError),
    ) -> Result<Vec<Snapshot>> {
        self.store.read("list the snapshots", |tx| {
            let table = tx.open_table(SNAPSHOTS)?;
            let mut found = Vec::new();
            for entry in table.iter()? {
                let (name, bytes) = entry?;
                match decode(name.value(), bytes.value()) {
                    Ok(snapshot) if filter.matches(&snapshot) => found.push(snapshot),
                    Ok(_) => {}
                    Err(error) => damaged(error),
                }
            }
            Ok(found)
        })
    }

    /// Returns the number of every record and the tier that holds its directory, including records that are
    /// damaged in other fields. The number of a shared directory is included as long as the directory
    /// exists.
    ///
    /// # Errors
    /// If the number of a record cannot be read: then it is unknown which directories are in use,
    /// and none may be deleted.
    pub(crate) fn places(&self) -> Result<HashMap<SnapshotId, Option<PathBuf>>> {
        #[derive(Deserialize)]
        struct Place {
            id: SnapshotId,
            tier: Option<PathBuf>,
            shares: Option<SnapshotId>,
        }
        self.store.read("list the snapshots", |tx| {
            let table = tx.open_table(SNAPSHOTS)?;
            let mut places = HashMap::new();
            for entry in table.iter()? {
                let (name, bytes) = entry?;
                let place: Place = serde_json::from_slice(bytes.value())
                    .map_err(|error| damage(name.value(), &error))?;
                places.insert(place.id, place.tier);
                if let Some(shared) = place.shares {
                    places.entry(shared).or_insert(None);
                }
            }
            Ok(places)
        })
    }

    /// Fails if [`create`](Self::create) would, before directories are made for nothing. Returns
    /// the parent.
    pub(crate) fn check_create(&self, key: &str, parent: Option<&str>) -> Result<Option<Snapshot>> {
        check_key("key", key)?;
        self.store.read("read a snapshot", |tx| {
            let table = tx.open_table(SNAPSHOTS)?;
            let parent = parent.map(|parent| committed(&table, parent)).transpose()?;
            match record(&table, key)? {
                None => Ok(parent),
                Some(_) => Err(SnapshotError::AlreadyExists {
                    key: key.to_owned(),
                }),
            }
        })
    }

    /// Fails if [`commit`](Self::commit) would; else returns the active snapshot.
    pub(crate) fn check_commit(
        &self,
        name: &str,
        key: &str,
        parent: Option<&str>,
    ) -> Result<Snapshot> {
        check_key("name", name)?;
        self.store.read("read a snapshot", |tx| {
            committable(&tx.open_table(SNAPSHOTS)?, name, key, parent)
        })
    }
}

#[cfg(test)]
mod tests;
