use super::*;
use crate::Class;
use blocks::testing::{Node, tree};

/// The smallest that a store can be.
const CONFIG: StoreConfig = StoreConfig {
    budget_bytes: 4 << 20,
    chunks_max: 10_000,
    segment_bytes: 256 << 10,
    policy: crate::PolicyKind::Lru,
};
const CHUNK: usize = 16 << 10;

/// Bytes that nothing compresses.
fn noise(seed: u64) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    let mut bytes = vec![0; CHUNK];
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

/// Puts the chunks of a source of so many files, and returns its index.
fn put(sources: &Sources, seed: u64, files: u64) -> Index {
    let names: Vec<String> = (0..files).map(|number| format!("f{number:04}")).collect();
    let entries: Vec<_> = names
        .iter()
        .zip(1..)
        .map(|(name, at)| (&**name, at))
        .collect();
    let mut nodes = vec![Node::dir(&entries)];
    let mut chunks = Vec::new();
    for number in 0..files {
        let bytes = noise(seed << 32 | number);
        nodes.push(Node::file(CHUNK as u64));
        let id = ChunkId::of(&bytes);
        sources.store().put(&id, &bytes, Class::Demand).unwrap();
        chunks.push(id);
    }
    Index::new(b"label", Arc::new(tree(&nodes).unwrap()), chunks).unwrap()
}

/// Puts more than there is room for.
fn flood(sources: &Sources, seed: u64) {
    put(sources, seed, 2 * CONFIG.budget_bytes / CHUNK as u64);
}

#[test]
fn what_is_pinned_stays_and_what_replaces_it_too() {
    let dir = tempfile::tempdir().unwrap();
    let sources = Sources::open(dir.path(), CONFIG).unwrap();
    let (old, other) = (put(&sources, 1, 20), put(&sources, 2, 20));
    sources.add(b"mine", &old, Stay::Pinned).unwrap();
    sources.add(b"other", &other, Stay::WhileUsed).unwrap();
    flood(&sources, 10);
    assert_eq!(sources.absent(&old), 0);
    assert!(sources.absent(&other) > 0);
    assert!(sources.whole(b"mine").unwrap().is_some());
    assert!(sources.whole(b"other").unwrap().is_none());
    // A new version under the name, by somebody who said nothing of pins.
    let new = put(&sources, 3, 20);
    sources.add(b"mine", &new, Stay::WhileUsed).unwrap();
    flood(&sources, 11);
    assert_eq!(sources.absent(&new), 0);
    assert!(sources.absent(&old) > 0);
    sources.unpin(b"mine").unwrap();
    flood(&sources, 12);
    assert!(sources.absent(&new) > 0);
    // Once more does no harm.
    sources.unpin(b"mine").unwrap();
}

#[test]
fn pins_are_known_after_a_restart_before_anything_goes() {
    let dir = tempfile::tempdir().unwrap();
    let sources = Sources::open(dir.path(), CONFIG).unwrap();
    let index = put(&sources, 1, 20);
    sources.add(b"mine", &index, Stay::WhileUsed).unwrap();
    sources.pin(b"mine").unwrap();
    sources.pin(b"mine").unwrap();
    flood(&sources, 10);
    drop(sources);
    // With less room than what lies there takes; the oldest lies first.
    let tight = StoreConfig {
        budget_bytes: 3 << 20,
        ..CONFIG
    };
    let sources = Sources::open(dir.path(), tight).unwrap();
    assert_eq!(sources.absent(&index), 0);
    flood(&sources, 11);
    assert_eq!(sources.absent(&index), 0);
    sources.unpin(b"mine").unwrap();
    drop(sources);
    let sources = Sources::open(dir.path(), tight).unwrap();
    assert!(sources.catalog().pins().is_empty());
    flood(&sources, 12);
    assert!(sources.absent(&index) > 0);
}

#[test]
fn what_is_pinned_does_not_go_for_a_smaller_size() {
    let dir = tempfile::tempdir().unwrap();
    let sources = Sources::open(dir.path(), CONFIG).unwrap();
    let index = put(&sources, 1, 40);
    sources.add(b"mine", &index, Stay::Pinned).unwrap();
    flood(&sources, 10);
    drop(sources);
    let tight = StoreConfig {
        budget_bytes: 5 << 18,
        ..CONFIG
    };
    let refused = Sources::open(dir.path(), tight);
    let refused = refused.err();
    assert!(
        matches!(refused, Some(OpenSourcesError::Pinned { .. })),
        "{refused:?}"
    );
    let sources = Sources::open(dir.path(), CONFIG).unwrap();
    assert_eq!(sources.absent(&index), 0);
    assert_eq!(sources.store().stats().pinned, 40);
}

#[test]
fn what_cannot_stay_is_not_pinned() {
    let dir = tempfile::tempdir().unwrap();
    let sources = Sources::open(dir.path(), CONFIG).unwrap();
    let unknown = sources.pin(b"nobody");
    assert!(matches!(unknown, Err(SourceError::Unknown { .. })));
    assert!(matches!(
        sources.unpin(b"nobody"),
        Err(SourceError::Unknown { .. })
    ));
    // More than half of the room, and all of it is here.
    let large = put(&sources, 1, 110);
    assert_eq!(sources.absent(&large), 0);
    let refused = sources.add(b"large", &large, Stay::Pinned);
    assert!(matches!(refused, Err(SourceError::TooMuch)));
    assert!(
        sources.catalog().id(b"large").is_none(),
        "it was not taken either"
    );
    sources.add(b"large", &large, Stay::WhileUsed).unwrap();
    assert!(matches!(sources.pin(b"large"), Err(SourceError::TooMuch)));
    assert!(!sources.catalog().is_pinned(b"large"));
    // Nothing of what was refused is held.
    flood(&sources, 10);
    assert!(sources.absent(&large) > 0);
    let lost = sources.pin(b"large");
    assert!(matches!(lost, Err(SourceError::Absent { .. })));
    assert_eq!(sources.store().stats().pinned, 0);
}
