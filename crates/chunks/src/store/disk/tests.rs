//! The store under its steps: stopped at each of them, full at each of them; and beside a model.

use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::SegmentError;
use crate::store::steps::{End, Ending};

mod damage;
mod model;
mod pipes;
mod stopping;

/// Small segments, and few of them: 224 KiB may live.
const CONFIG: StoreConfig = StoreConfig {
    budget_bytes: 1 << 20,
    chunks_max: 1000,
    segment_bytes: 256 << 10,
    policy: PolicyKind::S3Fifo,
};

/// Returns bytes that do not compress, a different chunk for each number.
fn noise(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

/// Returns the chunk of a number: of all kinds of lengths, and some that compress.
fn chunk(number: u64) -> Vec<u8> {
    match number % 5 {
        0 => noise(number, 100),
        1 => noise(number, 60_000).repeat(2),
        2 => noise(number, 128 << 10),
        _ => noise(number, 30_000),
    }
}

fn id(number: u64) -> ChunkId {
    ChunkId::of(&chunk(number))
}

fn put(store: &DiskStore, number: u64) -> Result<PutOutcome, PutError> {
    store.put(&id(number), &chunk(number), Class::Demand)
}

fn put_all(store: &DiskStore, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        put(store, number).unwrap();
    }
}

/// Gets chunks, to see that what is there is right.
fn get_all(store: &DiskStore, end: u64) {
    for number in 0..end {
        has(store, number);
    }
}

/// Gets a chunk, which is the right one if it is there.
fn has(store: &DiskStore, number: u64) -> bool {
    let Some(stored) = store.get(&id(number), Class::Demand) else {
        return false;
    };
    assert_eq!(stored.open(&id(number)), Ok(chunk(number)));
    true
}

fn check_budget(store: &DiskStore) {
    let on_disk: u64 = fs::read_dir(&store.dir)
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!(on_disk <= store.config.budget_bytes, "{on_disk} bytes");
    let stats = store.stats();
    assert!(stats.disk_bytes <= stats.budget_bytes);
    let live: u64 = store
        .state
        .lock()
        .segments
        .values()
        .map(|held| held.live_bytes)
        .sum();
    assert_eq!(live, store.state.lock().residents.bytes());
    assert!(live <= store.config.limit().bytes);
}

fn fresh() -> (TempDir, DiskStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(&dir, CONFIG);
    (dir, store)
}

/// Opens a store that does not wait for the disk.
fn open_with(dir: &TempDir, config: StoreConfig) -> DiskStore {
    let steps = Steps {
        ending: Some(Ending::new(End::Killed, u64::MAX)),
    };
    DiskStore::open_with(dir.path(), config, steps).unwrap()
}

fn reopen(dir: &TempDir, store: DiskStore) -> DiskStore {
    drop(store);
    open_with(dir, CONFIG)
}

#[test]
fn a_hit_is_what_was_put_now_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = DiskStore::open(dir.path(), CONFIG).unwrap();
    for number in 0..3 {
        assert_eq!(put(&store, number).unwrap(), PutOutcome::Stored);
        assert_eq!(put(&store, number).unwrap(), PutOutcome::Present);
    }
    assert!(store.contains(&id(1)) && !store.contains(&id(3)));
    let before = store.stats();
    assert_eq!(
        (before.chunks, before.raw_bytes),
        (3, 100 + 120_000 + (128 << 10))
    );
    // The second chunk is compressed: it is the same bytes twice.
    assert!(before.stored_bytes < before.raw_bytes - 50_000);
    let store = reopen(&dir, store);
    assert!((0..3).all(|number| has(&store, number)) && !has(&store, 3));
    let after = store.stats();
    assert_eq!((after.hits, after.misses, after.damaged), (3, 1, 0));
    assert_eq!(
        (after.chunks, after.disk_bytes),
        (before.chunks, before.disk_bytes)
    );
    // It goes on in the same segment.
    put(&store, 3).unwrap();
    assert_eq!(fs::read_dir(store.segments_dir()).unwrap().count(), 1);
}

#[test]
fn the_budget_holds_whatever_comes() {
    let (dir, store) = fresh();
    for number in 0..120 {
        assert_eq!(put(&store, number).unwrap(), PutOutcome::Stored);
        assert!(has(&store, number), "what was just put");
        check_budget(&store);
    }
    let stats = store.stats();
    assert!(stats.evicted > 90 && stats.refused == 0, "{stats:?}");
    let store = reopen(&dir, store);
    check_budget(&store);
    get_all(&store, 120);
    assert_eq!(store.stats().damaged, 0);
    let report = store.verify(&mut |_| ControlFlow::Continue(()));
    assert_eq!((report.chunks, report.damaged), (store.stats().chunks, 0));
}

#[test]
fn what_is_pinned_stays_and_too_much_of_it_is_said() {
    let (_dir, store) = fresh();
    // Pinned before it comes, and after.
    store.pin(&[id(3)]);
    put(&store, 3).unwrap();
    put(&store, 4).unwrap();
    store.pin(&[id(4), id(4)]);
    store.unpin(&[id(4), id(9)]);
    put_all(&store, 10..80);
    assert!(has(&store, 3) && has(&store, 4));
    assert_eq!(store.stats().pinned, 2);
    // All room is pinned.
    store.pin(&(100..140).map(id).collect::<Vec<_>>());
    let puts: Vec<_> = (100..140).map(|number| put(&store, number)).collect();
    let refused = puts
        .iter()
        .filter(|put| matches!(put, Err(PutError::Full)))
        .count();
    assert!(refused > 20 && puts[0].is_ok(), "{refused}");
    assert_eq!(store.stats().refused, refused as u64);
    check_budget(&store);
    store.unpin(&(100..140).map(id).collect::<Vec<_>>());
    put(&store, 200).unwrap();
    assert!(has(&store, 3) && has(&store, 200));
}

#[test]
fn other_bytes_than_the_id_names_are_refused() {
    let (_dir, store) = fresh();
    let refused = store.put(&id(1), b"poison", Class::Demand);
    assert!(
        matches!(refused, Err(PutError::WrongId { found, .. }) if found == ChunkId::of(b"poison"))
    );
    let empty = store.put(&ChunkId::of(b""), b"", Class::Demand);
    assert!(matches!(empty, Err(PutError::Length { bytes: 0 })));
    assert_eq!(
        (store.stats().chunks, store.get(&id(1), Class::Demand)),
        (0, None)
    );
}

/// Flips a bit of the only segment.
fn flip(dir: &TempDir, offset: u64) {
    let path = dir.path().join("segments/0000000000000000.seg");
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 4], offset).unwrap();
}

#[test]
fn a_rotten_record_is_a_miss_and_the_others_stay() {
    for offset in [64, 64 + 80, 64 + 80 + 99] {
        // While it is open: any byte.
        let (dir, store) = fresh();
        put_all(&store, [0, 1, 3]);
        flip(&dir, offset);
        assert!(!has(&store, 0) && has(&store, 1) && has(&store, 3));
        assert!(!store.contains(&id(0)));
        assert_eq!((store.stats().damaged, store.stats().chunks), (1, 2));
        put(&store, 0).unwrap();
        assert!(has(&store, 0));
    }
    // Before it is opened: the stored bytes, which the scan steps over.
    let (dir, store) = fresh();
    put_all(&store, [0, 1, 3]);
    drop(store);
    flip(&dir, 64 + 80);
    let store = DiskStore::open(dir.path(), CONFIG).unwrap();
    assert!(!has(&store, 0) && has(&store, 1) && has(&store, 3));
    assert_eq!(store.stats().damaged, 1);
    // A head is where the torn end begins.
    drop(store);
    flip(&dir, 64 + 180);
    let store = DiskStore::open(dir.path(), CONFIG).unwrap();
    assert!(!has(&store, 1) && !has(&store, 3));
    assert_eq!(store.stats().damaged, 2);
    put_all(&store, [0, 1, 3, 4]);
    assert!([0, 1, 3, 4].iter().all(|number| has(&store, *number)));
}

#[test]
fn verify_finds_rot_before_a_get_does() {
    let (dir, store) = fresh();
    put_all(&store, [0, 1, 3]);
    flip(&dir, 64 + 80 + 50);
    let report = store.verify(&mut |_| ControlFlow::Continue(()));
    assert_eq!((report.damaged, report.named), (1, vec![id(0)]));
    assert!(!store.contains(&id(0)));
    let stopped = store.verify(&mut |_| ControlFlow::Break(()));
    assert!(stopped.stopped && stopped.chunks == 0);
}

#[test]
fn verify_says_which_segment_the_disk_did_not_give_and_drops_nothing_of_it() {
    let (dir, store) = fresh();
    put_all(&store, 0..30);
    let chunks = store.stats().chunks;
    let number = store.state.lock().residents.get(&id(29)).unwrap().number;
    let path = dir.path().join(format!("segments/{number:016x}.seg"));
    // A file that may not be read gives an error at each read.
    let unreadable = Arc::new(fs::File::options().write(true).open(path).unwrap());
    let swap = |file| {
        let mut state = store.state.lock();
        let held = state.segments.get_mut(&number).unwrap();
        std::mem::replace(&mut held.segment.file, file)
    };
    let readable = swap(unreadable);
    let report = store.verify(&mut |_| ControlFlow::Continue(()));
    assert_eq!(
        (report.damaged, &report.unread_segments),
        (0, &vec![number])
    );
    assert!(!report.is_sound() && report.chunks < chunks);
    swap(readable);
    let report = store.verify(&mut |_| ControlFlow::Continue(()));
    assert!(report.is_sound());
    assert_eq!(report.chunks, chunks, "something was dropped");
}

#[test]
fn a_segment_of_a_later_version_stays_as_it_is() {
    let (dir, store) = fresh();
    put(&store, 0).unwrap();
    drop(store);
    let path = dir.path().join("segments/0000000000000000.seg");
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 2;
    let hash = blake3::hash(&bytes[..48]);
    bytes[48..64].copy_from_slice(&hash.as_bytes()[..16]);
    fs::write(&path, &bytes).unwrap();
    let opened = DiskStore::open(dir.path(), CONFIG).unwrap_err();
    let later = SegmentError::Version { found: 2 };
    assert!(matches!(opened, OpenStoreError::Segment { source, .. } if source == later));
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
fn one_process_has_it() {
    let (dir, _store) = fresh();
    let second = DiskStore::open(dir.path(), CONFIG);
    assert!(matches!(second, Err(OpenStoreError::Locked { .. })));
}

#[test]
fn gc_takes_what_is_dead() {
    let (_dir, store) = fresh();
    put_all(&store, 0..12);
    {
        let mut state = store.state.lock();
        for number in 0..10 {
            if let Some(place) = state.residents.get(&id(number)).copied() {
                state.forget(&id(number), &place);
            }
        }
    }
    let report = store.gc().unwrap();
    assert!(
        report.compacted > 0 && report.bytes_after < report.bytes_before,
        "{report:?}"
    );
    let stats = store.stats();
    assert!(
        stats.disk_bytes < 2 * stats.stored_bytes + 10_000 + (128 << 10),
        "{stats:?}"
    );
    assert!(has(&store, 10) && has(&store, 11));
    check_budget(&store);
}

#[test]
fn many_threads_get_while_one_puts() {
    let (_dir, store) = fresh();
    let store = Arc::new(store);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let store = Arc::clone(&store);
            scope.spawn(move || {
                for number in 0..60 {
                    let number = if thread == 0 {
                        number
                    } else {
                        number * thread % 60
                    };
                    if thread < 2 {
                        put(&store, number).unwrap();
                    }
                    has(&store, number);
                }
            });
        }
    });
    check_budget(&store);
    assert_eq!(store.stats().damaged, 0);
}
