//! The tables, and reading from them.

use redb::{ReadableTable, TableDefinition};

use crate::error::{Result, SnapshotError};
use crate::snapshot::{Kind, Snapshot};

/// Name to record, as JSON: a person can read it, and a field can be added.
pub(super) const SNAPSHOTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("snapshots");
/// Parent and child, both by name.
pub(super) const CHILDREN: TableDefinition<'_, (&str, &str), ()> = TableDefinition::new("children");
pub(super) const COUNTERS: TableDefinition<'_, &str, u64> = TableDefinition::new("counters");
pub(super) const FORMAT: &str = "format";
/// The key of the lowest number that no snapshot has had.
pub(super) const NEXT_ID: &str = "next_id";

/// The format of the tables above.
pub(super) const KNOWN_FORMAT: u64 = 1;
/// Most parents in a chain. overlayfs takes 500 lower layers; more is a loop, or damage.
const MAX_PARENTS: usize = 512;

pub(super) fn counter(
    table: &impl ReadableTable<&'static str, u64>,
    name: &str,
) -> Result<Option<u64>> {
    Ok(table.get(name)?.map(|value| value.value()))
}

pub(super) fn decode(name: &str, bytes: &[u8]) -> Result<Snapshot> {
    let mut snapshot: Snapshot =
        serde_json::from_slice(bytes).map_err(|error| damage(name, &error))?;
    name.clone_into(&mut snapshot.name);
    Ok(snapshot)
}

pub(super) fn damage(name: &str, error: &serde_json::Error) -> SnapshotError {
    SnapshotError::Damaged {
        key: name.to_owned(),
        why: error.to_string(),
    }
}

/// Writes `snapshot` under its name.
pub(super) fn put(table: &mut redb::Table<'_, &str, &[u8]>, snapshot: &Snapshot) -> Result<()> {
    let bytes = serde_json::to_vec(snapshot).map_err(|error| damage(&snapshot.name, &error))?;
    table.insert(snapshot.name.as_str(), bytes.as_slice())?;
    Ok(())
}

pub(super) fn record(
    table: &impl ReadableTable<&'static str, &'static [u8]>,
    key: &str,
) -> Result<Option<Snapshot>> {
    let bytes = table.get(key)?;
    bytes.map(|bytes| decode(key, bytes.value())).transpose()
}

pub(super) fn existing(
    table: &impl ReadableTable<&'static str, &'static [u8]>,
    key: &str,
) -> Result<Snapshot> {
    record(table, key)?.ok_or_else(|| SnapshotError::NotFound {
        key: key.to_owned(),
    })
}

/// Returns the committed snapshot `name`, as a parent of another.
pub(super) fn committed(
    table: &impl ReadableTable<&'static str, &'static [u8]>,
    name: &str,
) -> Result<Snapshot> {
    let snapshot = existing(table, name)?;
    match snapshot.kind {
        Kind::Committed => Ok(snapshot),
        kind => Err(SnapshotError::ParentNotCommitted {
            parent: name.to_owned(),
            kind,
        }),
    }
}

/// Returns the active snapshot `key`, which is to become `name`, with the parent that it will have: one
/// that was made without may get it now.
pub(super) fn committable(
    table: &impl ReadableTable<&'static str, &'static [u8]>,
    name: &str,
    key: &str,
    parent: Option<&str>,
) -> Result<Snapshot> {
    if record(table, name)?.is_some() {
        return Err(SnapshotError::AlreadyExists {
            key: name.to_owned(),
        });
    }
    let mut snapshot = existing(table, key)?;
    if snapshot.kind != Kind::Active {
        return Err(SnapshotError::WrongKind {
            key: key.to_owned(),
            kind: snapshot.kind,
            needed: "only an active one can be committed",
        });
    }
    if let Some(parent) = parent {
        let has = snapshot.parent.get_or_insert_with(|| parent.to_owned());
        if has != parent {
            return Err(SnapshotError::OtherParent {
                key: key.to_owned(),
                has: has.clone(),
                asked: parent.to_owned(),
            });
        }
        committed(table, parent)?;
    }
    Ok(snapshot)
}

/// Returns the ancestors of `snapshot`, nearest first.
pub(super) fn parents(
    table: &impl ReadableTable<&'static str, &'static [u8]>,
    snapshot: &Snapshot,
) -> Result<Vec<Snapshot>> {
    let mut parents: Vec<Snapshot> = Vec::new();
    while let Some(name) = &parents.last().unwrap_or(snapshot).parent {
        if parents.len() == MAX_PARENTS {
            return Err(SnapshotError::Damaged {
                key: snapshot.name.clone(),
                why: format!("it has more than {MAX_PARENTS} parents"),
            });
        }
        parents.push(existing(table, name)?);
    }
    Ok(parents)
}

/// Returns a child of `parent`.
pub(super) fn first_child(
    table: &impl ReadableTable<(&'static str, &'static str), ()>,
    parent: &str,
) -> Result<Option<String>> {
    let mut from_parent = table.range((parent, "")..)?;
    let Some(entry) = from_parent.next() else {
        return Ok(None);
    };
    let (pair, ()) = (entry?.0, ());
    let (of, child) = pair.value();
    Ok((of == parent).then(|| child.to_owned()))
}
