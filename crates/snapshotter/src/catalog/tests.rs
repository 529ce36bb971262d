//! The catalog against a naive model, and what it must do when a record or the disk is bad.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::snapshot::{Kind, Labels, Usage};

fn new(key: &str, id: u64, parent: Option<&str>) -> NewSnapshot {
    NewSnapshot {
        key: key.to_owned(),
        id: SnapshotId(id),
        kind: Kind::Active,
        parent: parent.map(str::to_owned),
        labels: Labels::new(),
        tier: None,
        shares: None,
        block: None,
        device: None,
    }
}

fn catalog() -> (tempfile::TempDir, Catalog) {
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(&dir.path().join("metadata.redb")).unwrap();
    (dir, catalog)
}

#[derive(Clone, Debug)]
enum Op {
    Create {
        key: u8,
        parent: Option<u8>,
    },
    Commit {
        name: u8,
        key: u8,
        parent: Option<u8>,
    },
    Remove {
        key: u8,
    },
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0..6_u8;
    prop_oneof![
        4 => (key(), proptest::option::of(key())).prop_map(|(key, parent)| Op::Create { key, parent }),
        4 => (key(), key(), proptest::option::weighted(0.3, key()))
            .prop_map(|(name, key, parent)| Op::Commit { name, key, parent }),
        2 => key().prop_map(|key| Op::Remove { key }),
        1 => Just(Op::Reopen),
    ]
}

/// Name to (committed?, parent).
type Model = BTreeMap<String, (bool, Option<String>)>;

/// Does `op` to the model; returns whether it should succeed.
fn apply(model: &mut Model, op: &Op) -> bool {
    let name = |n: &u8| n.to_string();
    match op {
        Op::Create { key, parent } => {
            let parent = parent.as_ref().map(name);
            let stands = parent
                .as_ref()
                .is_none_or(|p| model.get(p).is_some_and(|p| p.0));
            if !stands || model.contains_key(&name(key)) {
                return false;
            }
            model.insert(name(key), (false, parent));
        }
        Op::Commit {
            name: to,
            key,
            parent,
        } => {
            let active = model
                .get(&name(key))
                .is_some_and(|(committed, _)| !committed);
            if !active || model.contains_key(&name(to)) {
                return false;
            }
            let late = parent.as_ref().map(name);
            let has = model[&name(key)].1.clone();
            if let Some(late) = &late
                && (has.as_ref().is_some_and(|has| has != late)
                    || !model.get(late).is_some_and(|(committed, _)| *committed))
            {
                return false;
            }
            model.remove(&name(key));
            model.insert(name(to), (true, has.or(late)));
        }
        Op::Remove { key } => {
            let key = name(key);
            let stood_on = model
                .values()
                .any(|(_, parent)| parent.as_ref() == Some(&key));
            return !stood_on && model.remove(&key).is_some();
        }
        Op::Reopen => {}
    }
    true
}

fn seen(catalog: &Catalog) -> Model {
    let all = catalog
        .walk(&Filter::default(), |error| panic!("{error}"))
        .unwrap();
    let all = all.into_iter();
    all.map(|s| (s.name, (s.kind == Kind::Committed, s.parent)))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn does_what_a_naive_model_does(ops in proptest::collection::vec(op(), 1..40)) {
        let (dir, mut catalog) = catalog();
        let mut model = Model::new();
        for (number, op) in ops.iter().enumerate() {
            let did = match op {
                Op::Create { key, parent } => {
                    let parent = parent.map(|p| p.to_string());
                    let id = u64::try_from(number).unwrap() + 1;
                    catalog.create(new(&key.to_string(), id, parent.as_deref())).is_ok()
                }
                Op::Commit { name, key, parent } => {
                    let (name, key) = (name.to_string(), key.to_string());
                    let parent = parent.map(|p| p.to_string());
                    let names = (name.as_str(), key.as_str());
                    catalog.commit(names, parent.as_deref(), Labels::new(), Usage::default(), None).is_ok()
                }
                Op::Remove { key } => catalog.remove(&key.to_string()).is_ok(),
                Op::Reopen => {
                    drop(catalog);
                    catalog = Catalog::open(&dir.path().join("metadata.redb")).unwrap();
                    true
                }
            };
            prop_assert_eq!(did, apply(&mut model, op), "{:?}", op);
            prop_assert_eq!(seen(&catalog), model.clone());
        }
    }
}

#[test]
fn gives_parents_nearest_first() {
    let (_dir, catalog) = catalog();
    let mut parent = None;
    for layer in 0..128_u64 {
        catalog
            .create(new("tmp", layer + 1, parent.as_deref()))
            .unwrap();
        let name = format!("layer-{layer}");
        catalog
            .commit((&name, "tmp"), None, Labels::new(), Usage::default(), None)
            .unwrap();
        parent = Some(name);
    }
    let stack = catalog.create(new("top", 200, parent.as_deref())).unwrap();
    let ids: Vec<u64> = stack.parents.iter().map(|parent| parent.id.0).collect();
    assert_eq!(ids, (1..=128).rev().collect::<Vec<_>>());
    assert_eq!(catalog.next_id().unwrap(), 201);
    assert!(matches!(
        catalog.remove("layer-127"),
        Err(SnapshotError::HasChildren { child, .. }) if child == "top"
    ));
}

#[test]
fn keeps_going_past_a_damaged_record() {
    let (_dir, catalog) = catalog();
    catalog.create(new("good", 1, None)).unwrap();
    catalog
        .store
        .write("damage", |tx| {
            let record = br#"{"id":7,"kind":"nonsense"}"#.as_slice();
            tx.open_table(SNAPSHOTS)?.insert("bad", record)?;
            Ok(())
        })
        .unwrap();
    let mut damaged = 0;
    let all = catalog.walk(&Filter::default(), |_| damaged += 1).unwrap();
    assert_eq!((all.len(), damaged), (1, 1));
    assert!(matches!(
        catalog.get("bad"),
        Err(SnapshotError::Damaged { .. })
    ));
    assert_eq!(
        catalog.places().unwrap().len(),
        2,
        "its directory is in use"
    );
}

#[test]
fn refuses_what_a_newer_version_wrote() {
    let (dir, catalog) = catalog();
    catalog
        .store
        .write("age", |tx| {
            tx.open_table(COUNTERS)?.insert(FORMAT, KNOWN_FORMAT + 1)?;
            Ok(())
        })
        .unwrap();
    drop(catalog);
    let again = Catalog::open(&dir.path().join("metadata.redb"));
    assert!(matches!(again, Err(SnapshotError::Format { found: 2, .. })));
}

#[test]
fn bounds_keys_and_labels() {
    let (_dir, catalog) = catalog();
    assert!(matches!(
        catalog.create(new("", 1, None)),
        Err(SnapshotError::Empty { .. })
    ));
    let long = "k".repeat(4097);
    assert!(matches!(
        catalog.create(new(&long, 1, None)),
        Err(SnapshotError::TooLarge { .. })
    ));
    let mut labelled = new("key", 1, None);
    labelled.labels.insert("l".to_owned(), "v".repeat(4096));
    assert!(matches!(
        catalog.create(labelled),
        Err(SnapshotError::TooLarge { .. })
    ));
}

#[test]
fn updates_labels_and_nothing_else() {
    let (_dir, catalog) = catalog();
    let label = |pairs: &[(&str, &str)]| -> Labels {
        let pairs = pairs.iter();
        pairs
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    };
    let before = catalog.create(new("key", 1, None)).unwrap().snapshot;
    let change = LabelChange::Replace(label(&[("a", "1"), ("b", "2")]));
    catalog.update("key", &change).unwrap();
    let change = LabelChange::Set(label(&[("a", "3"), ("b", "")]));
    let after = catalog.update("key", &change).unwrap();
    assert_eq!(
        after.labels.into_iter().collect::<Labels>(),
        label(&[("a", "3")])
    );
    assert_eq!(after.created, before.created);
    assert!(after.updated > before.updated);
    assert!(matches!(
        catalog.update("none", &change),
        Err(SnapshotError::NotFound { .. })
    ));
}
