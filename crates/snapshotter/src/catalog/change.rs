//! The changes: each one transaction.

use std::path::PathBuf;
use std::time::SystemTime;

use super::Catalog;
use super::tables::{
    CHILDREN, COUNTERS, NEXT_ID, SNAPSHOTS, committable, committed, counter, existing, first_child,
    parents, put, record,
};
use crate::block_layer::BlockLayer;
use crate::error::{Result, SnapshotError};
use crate::own_device::DeviceForm;
use crate::snapshot::{Kind, Labels, Snapshot, SnapshotId, Stack, Usage, check_key, check_labels};

/// A snapshot that is to be made.
#[derive(Debug)]
pub(crate) struct NewSnapshot {
    pub(crate) key: String,
    pub(crate) id: SnapshotId,
    pub(crate) kind: Kind,
    pub(crate) parent: Option<String>,
    pub(crate) labels: Labels,
    pub(crate) tier: Option<PathBuf>,
    /// The name of the layer whose directory it shares, and that directory's number.
    pub(crate) shares: Option<(String, SnapshotId)>,
    pub(crate) block: Option<BlockLayer>,
    pub(crate) device: Option<DeviceForm>,
}

/// Which labels an update changes.
#[derive(Debug)]
pub(crate) enum LabelChange {
    /// All labels.
    Replace(Labels),
    /// These; an empty value removes one.
    Set(Labels),
}

impl Catalog {
    /// Records a new snapshot, whose directories are complete.
    pub(crate) fn create(&self, new: NewSnapshot) -> Result<Stack> {
        check_key("key", &new.key)?;
        let now = SystemTime::now();
        let snapshot = Snapshot {
            name: new.key,
            id: new.id,
            kind: new.kind,
            parent: new.parent,
            labels: check_labels(new.labels)?,
            created: now,
            updated: now,
            usage: None,
            tier: new.tier,
            shares: new.shares.as_ref().map(|(_, id)| *id),
            block: new.block,
            device: new.device,
        };
        self.store.write("record a snapshot", |tx| {
            let mut table = tx.open_table(SNAPSHOTS)?;
            if let Some(parent) = &snapshot.parent {
                committed(&table, parent)?;
                let pair = (parent.as_str(), snapshot.name.as_str());
                tx.open_table(CHILDREN)?.insert(pair, ())?;
            }
            if let Some((layer, _)) = &new.shares {
                // From now on its directory stays, whoever removes the layer.
                committed(&table, layer)?;
            }
            if record(&table, &snapshot.name)?.is_some() {
                let key = snapshot.name.clone();
                return Err(SnapshotError::AlreadyExists { key });
            }
            put(&mut table, &snapshot)?;
            let mut counters = tx.open_table(COUNTERS)?;
            let next = counter(&counters, NEXT_ID)?.unwrap_or(1);
            counters.insert(NEXT_ID, next.max(snapshot.id.0 + 1))?;
            Ok(Stack {
                parents: parents(&table, &snapshot)?,
                snapshot: snapshot.clone(),
            })
        })
    }

    /// Turns the active snapshot `key` into the committed one `name`, whose directories are under
    /// the root. One without a parent may get one. `found` is the layer of a block image that it turned out to be.
    pub(crate) fn commit(
        &self,
        (name, key): (&str, &str),
        parent: Option<&str>,
        labels: Labels,
        usage: Usage,
        found: Option<&BlockLayer>,
    ) -> Result<Snapshot> {
        check_key("name", name)?;
        let labels = check_labels(labels)?;
        self.store.write("commit a snapshot", |tx| {
            let mut table = tx.open_table(SNAPSHOTS)?;
            let now = SystemTime::now();
            let active = committable(&table, name, key, parent)?;
            let committed = Snapshot {
                name: name.to_owned(),
                kind: Kind::Committed,
                labels: labels.clone(),
                created: now,
                updated: now,
                usage: Some(usage),
                tier: None,
                block: active.block.clone().or_else(|| found.cloned()),
                device: None,
                ..active
            };
            table.remove(key)?;
            put(&mut table, &committed)?;
            if let Some(parent) = committed.parent.as_deref() {
                let mut children = tx.open_table(CHILDREN)?;
                children.remove((parent, key))?;
                children.insert((parent, name), ())?;
            }
            Ok(committed)
        })
    }

    /// Removes the record of the snapshot `key`.
    pub(crate) fn remove(&self, key: &str) -> Result<Snapshot> {
        self.store.write("remove a snapshot", |tx| {
            let mut table = tx.open_table(SNAPSHOTS)?;
            let snapshot = existing(&table, key)?;
            let mut children = tx.open_table(CHILDREN)?;
            if let Some(child) = first_child(&children, key)? {
                let key = key.to_owned();
                return Err(SnapshotError::HasChildren { key, child });
            }
            table.remove(key)?;
            if let Some(parent) = snapshot.parent.as_deref() {
                children.remove((parent, key))?;
            }
            Ok(snapshot)
        })
    }

    /// Changes the labels of the snapshot `key`, and nothing else.
    pub(crate) fn update(&self, key: &str, change: &LabelChange) -> Result<Snapshot> {
        self.store.write("update a snapshot", |tx| {
            let mut table = tx.open_table(SNAPSHOTS)?;
            let mut snapshot = existing(&table, key)?;
            let labels = match change {
                LabelChange::Replace(labels) => labels.clone(),
                LabelChange::Set(labels) => {
                    let mut all: Labels = snapshot.labels.into_iter().collect();
                    all.extend(labels.clone());
                    all
                }
            };
            snapshot.labels = check_labels(labels)?;
            snapshot.updated = SystemTime::now();
            put(&mut table, &snapshot)?;
            Ok(snapshot)
        })
    }
}
