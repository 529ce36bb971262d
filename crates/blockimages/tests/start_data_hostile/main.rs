//! Data of starts by somebody who wishes the machine ill, written after the document of the format alone: the image is opened
//! and read all the same, and what is read is right.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod forged;
mod lab;

use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use blockimages::start_data::StartDataRef;
use blockimages::{BlobCache, CacheConfig, Origin, ReadAt as _, Start};
use blocks::{BlockDevice as _, prompt};
use ranges::testing::MemoryPlace;
use ranges::{Fault, FaultKind};

use forged::{BLOCK, Forged};
use lab::{FAILS, Lab, Registry, STALLS, squeezed};

#[test]
fn what_is_written_after_the_document_is_used() {
    let lab = Lab::new();
    let right = lab.right().bytes();
    assert_eq!(lab.verify(&right), Some(lab.len()));
    let machine = lab.started(right);
    machine.check(&lab);
    assert_eq!(machine.registry.asked_of(lab.digest), 0);
    // So is what has its pieces in another order, and small ones.
    let blocks = lab.len().div_ceil(BLOCK);
    let pieces = (0..blocks).rev().enumerate();
    let pieces = pieces.map(|(n, block)| (0, 1, n as u32 / 64, block));
    let machine = lab.started(lab.of_pieces(&pieces.collect::<Vec<_>>()).bytes());
    machine.check(&lab);
    assert_eq!(machine.registry.asked_of(lab.digest), 0);
}

#[test]
fn tables_that_break_a_rule_are_refused() {
    let lab = Lab::new();
    let right = lab.right();
    let changed = |change: fn(&mut Forged)| right.with(change);
    let mut hostile = vec![
        changed(|f| f.reserved = 1),
        changed(|f| f.pieces[0].1 = 0),
        changed(|f| f.pieces[0].1 = 3),
        changed(|f| f.pieces[0].1 = 32),
        changed(|f| f.pieces[0].0 = 1),
        changed(|f| f.pieces[1].3 = f.pieces[0].3),
        changed(|f| f.pieces[1].3 += 1),
        changed(|f| f.pieces[1].3 = 1 << 51),
        changed(|f| f.pieces[1].3 = u64::MAX - 15),
        changed(|f| f.pieces[0].2 = 1),
        changed(|f| f.pieces.iter_mut().for_each(|piece| piece.2 = 0)),
        changed(|f| f.pieces.iter_mut().for_each(|piece| piece.2 += 1)),
        changed(|f| f.pieces.last_mut().unwrap().2 += 1),
        changed(|f| f.pieces.swap(0, 5)),
        changed(|f| f.frames.push(Vec::new())),
        changed(|f| drop(f.frames.pop())),
        changed(|f| f.hashes.truncate(f.hashes.len() - 1)),
        changed(|f| f.hashes.push([0; 32])),
        changed(|f| f.layers.push(f.layers[0])),
        changed(|f| f.layers.push(([1; 32], [2; 32], 4096))),
        changed(|f| f.layers.resize(256, ([1; 32], [2; 32], 4096))),
        changed(|f| f.layers[0].2 = 0),
        changed(|f| f.layers[0].2 = 1 << 63),
        changed(|f| f.layers[0].2 = u64::MAX),
        changed(|f| f.pieces.clear()),
        // A frame that decompresses to what it should, and takes 100 MiB: of each thread that reads it.
        changed(|f| {
            let mut padding = vec![0x50, 0x2a, 0x4d, 0x18];
            padding.extend((100_u32 << 20).to_le_bytes());
            f.frames[0].extend(padding);
            let len = f.frames[0].len() + (100 << 20);
            f.frames[0].resize(len, 0);
        }),
    ];
    for table in 0..4 {
        for more in [1, 1 << 18, 1 << 20, u32::MAX / 2, u32::MAX] {
            hostile.push(right.with(|f| f.more[table] = more));
        }
    }
    for (number, hostile) in hostile.iter().enumerate() {
        let bytes = hostile.bytes();
        assert_eq!(lab.verify(&bytes), None, "{number}");
        let machine = lab.started(bytes);
        assert!(machine.wait(), "{number}");
        let planned = machine.registry.asked_of(lab.digest);
        assert!(planned > 0, "{number}: the plan is lost");
        if number % 8 == 0 {
            machine.check(&lab);
            assert_eq!(machine.registry.asked_of(lab.digest), planned, "{number}");
        }
    }
}

#[test]
fn lengths_and_contents_that_lie_are_not_used() {
    let lab = Lab::new();
    let right = lab.right();
    for len in [
        lab.len() - 1,
        lab.len() - 512,
        lab.len() + 1,
        lab.len() + BLOCK,
        2 * lab.len(),
        i64::MAX as u64,
    ] {
        let machine = lab.started(right.with(|f| f.layers[0].2 = len).bytes());
        machine.check(&lab);
        // The end of the content that it claims is in it, and is not the layer's.
        let last = (len - 1) / BLOCK;
        let lying = lab.of_blocks(&[(0, 16)]).with(|f| {
            f.layers[0].2 = len;
            f.pieces.push((0, 1, 1, last));
            f.frames
                .push(squeezed(&vec![9; (len - last * BLOCK) as usize]));
        });
        lab.started(lying.bytes()).check(&lab);
    }
    // Of another layer, or another layer's.
    for change in [
        |f: &mut Forged| f.layers[0].0 = [3; 32],
        |f: &mut Forged| f.layers[0].1 = [3; 32],
        |f: &mut Forged| f.hashes[3][0] ^= 1,
        |f: &mut Forged| f.hashes.reverse(),
    ] {
        let machine = lab.started(right.with(change).bytes());
        assert!(machine.wait());
        machine.check(&lab);
    }
}

#[test]
fn frames_that_are_something_else_cost_the_data_and_not_the_plan() {
    let lab = Lab::new();
    let right = lab.right();
    // What claims to have gigabytes: a header with a content size of 8 bytes.
    let mut claims = vec![0x28, 0xb5, 0x2f, 0xfd, 0xe0];
    claims.extend((1_u64 << 40).to_le_bytes());
    claims.extend([0x01, 0, 0]);
    let bomb = squeezed(&vec![0; 64 << 20]);
    let wrong = squeezed(&vec![0; 1 << 18]);
    let frames = [
        claims,
        bomb,
        wrong,
        squeezed(&vec![0; (1 << 18) - 1]),
        Vec::new(),
        vec![0; 100],
        b"(\xb5/\xfd".to_vec(),
    ];
    for (number, frame) in frames.into_iter().enumerate() {
        for all in [true, false] {
            let hostile = right.with(|f| {
                let from = if all { 0 } else { 1 };
                f.frames[from..].fill(frame.clone());
            });
            assert_eq!(lab.verify(&hostile.bytes()), None, "{number}");
            let machine = lab.started(hostile.bytes());
            machine.check(&lab);
            // What was wrong is not asked for again.
            let asked = machine.registry.asked.lock().unwrap().len();
            machine.check(&lab);
            assert_eq!(machine.registry.asked.lock().unwrap().len(), asked);
        }
    }
}

/// Its length may be anything: the layer is opened by its blob, and the plan comes from there.
#[test]
fn a_layer_whose_end_is_not_in_the_data_is_not_opened_by_it() {
    let lab = Lab::new();
    let asked = |data: Vec<u8>| {
        let machine = lab.started(data);
        assert!(machine.wait());
        machine.check(&lab);
        machine.registry.asked_of(lab.digest)
    };
    let without = asked(b"no data of a start".repeat(10));
    let blocks = 0..lab.len().div_ceil(BLOCK) - 1;
    let pieces = blocks.map(|block| (0, 1, block as u32 / 64, block));
    let cut = lab.of_pieces(&pieces.collect::<Vec<_>>()).bytes();
    assert!(lab.verify(&cut).is_some(), "what it has is right");
    let cut = asked(cut);
    assert!(cut * 10 >= without * 9, "{cut} and {without} bytes");
}

/// Waits until something is so.
fn until(what: &str, is: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is() {
        assert!(Instant::now() < deadline, "{what}");
        thread::yield_now();
    }
}

#[test]
fn the_plan_is_fetched_when_the_data_has_less_or_is_wrong() {
    let lab = Lab::new();
    let plain = lab.opened(
        Registry::default(),
        &Start {
            plan: Some(lab.plan.clone()),
            ..Start::default()
        },
    );
    assert!(plain.wait());
    let planned = plain.registry.asked_of(lab.digest);
    // What the image needs to be opened, and nothing else.
    let end = lab.len().div_ceil(BLOCK);
    let machine = lab.started(lab.of_blocks(&[(0, 1), (end - 8, end)]).bytes());
    assert!(machine.wait());
    let asked = machine.registry.asked_of(lab.digest);
    machine.check(&lab);
    assert_eq!(
        machine.registry.asked_of(lab.digest),
        asked,
        "a plan was lost"
    );
    // One frame in the middle is wrong: after the first read of it, all comes that was planned.
    let hostile = lab.right().with(|f| f.frames[1] = vec![0; 10]);
    let machine = lab.started(hostile.bytes());
    assert_eq!(machine.registry.asked_of(lab.digest), 0);
    let mut block = vec![0; BLOCK as usize];
    machine.device.read_at(70 * BLOCK, &mut block).unwrap();
    until("nothing more is fetched", || {
        machine.registry.asked_of(lab.digest) >= planned
    });
    machine.check(&lab);
}

/// Who fetches all for a start that comes later has it all, whatever is wrong with the data.
#[test]
fn what_is_fetched_for_later_is_whole_if_the_data_is_wrong_or_goes_away() {
    let lab = Lab::new();
    let right = lab.right();
    let started = lab.started(right.bytes());
    assert!(started.wait());
    assert_eq!(started.registry.asked_of(lab.digest), 0);
    let wrong = right.with(|f| f.frames[2] = squeezed(&[1, 2, 3]));
    for (does, data) in [(0, wrong.bytes()), (FAILS, right.bytes())] {
        // What the image needs to be opened is in the last frames.
        let registry = Registry::that(does, 64 << 10);
        let named = StartDataRef {
            digest: oci::digest_of(&data),
            size: data.len() as u64,
        };
        registry.put(named.digest, data);
        let machine = lab.opened(registry, &lab.start(named));
        assert!(machine.wait(), "it is said not to be whole");
        let asked = machine.registry.asked_of(lab.digest);
        assert!(asked > 0);
        machine.check(&lab);
        assert_eq!(machine.registry.asked_of(lab.digest), asked);
    }
}

/// The registry, or a mirror, sends something else at first; and a worker dies, and another one opens the image again.
#[test]
fn what_was_sent_wrong_once_is_fetched_again_by_who_opens_the_image_next() {
    let lab = Lab::new();
    let right = lab.right();
    let data = right.bytes();
    let named = StartDataRef {
        digest: oci::digest_of(&data),
        size: data.len() as u64,
    };
    let tables = data.len() - right.frames.concat().len();
    for wrong in [0, 70, tables - 1, tables + 10, data.len() - 1] {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::default();
        let mut bytes = data.clone();
        bytes[wrong] ^= 1;
        registry.put(named.digest, bytes);
        let machine = lab.opened_in(dir.path(), registry, &lab.start(named));
        machine.wait();
        machine.check(&lab);
        drop(machine);
        let registry = Registry::default();
        registry.put(named.digest, data.clone());
        let machine = lab.opened_in(dir.path(), registry, &lab.start(named));
        machine.check(&lab);
        assert!(machine.wait());
        let asked = machine.registry.asked.lock().unwrap();
        let mut again = asked.iter().filter(|(of, _)| *of == named.digest);
        let is_there = again.any(|(_, range)| range.contains(&(wrong as u64)));
        assert!(is_there, "byte {wrong} is not asked for again");
    }
}

/// Nothing of the layer can be fetched: what is read comes from the data, or not at all.
#[test]
fn a_registry_that_dies_leaves_what_the_data_has() {
    let lab = Lab::new();
    let blocks = lab.len().div_ceil(BLOCK);
    let data = lab.of_blocks(&[(0, 80), (100, blocks)]).bytes();
    let named = StartDataRef {
        digest: oci::digest_of(&data),
        size: data.len() as u64,
    };
    let start = Start {
        data: Some(named),
        ..Start::default()
    };
    let registry = Registry::default();
    registry.put(named.digest, data);
    let machine = lab.opened(registry, &start);
    assert!(machine.wait());
    machine.registry.blobs.lock().unwrap().clear();
    let mut bytes = vec![0; (60 * BLOCK) as usize];
    machine.device.read_at(10 * BLOCK, &mut bytes).unwrap();
    assert!(bytes == lab.right[(10 * BLOCK) as usize..(70 * BLOCK) as usize]);
    // Into the gap.
    machine.device.read_at(60 * BLOCK, &mut bytes).unwrap_err();
    machine.device.read_at(110 * BLOCK, &mut bytes).unwrap();
    assert!(bytes == lab.right[(110 * BLOCK) as usize..(170 * BLOCK) as usize]);
}

#[test]
fn data_that_finds_no_room_in_the_cache_is_read_all_the_same() {
    let lab = Lab::new();
    let data = lab.right().bytes();
    for limit in [0, 1, 1 << 16, 1 << 18, 1 << 20] {
        let registry = Registry {
            limit: Some(limit),
            ..Registry::default()
        };
        let named = StartDataRef {
            digest: oci::digest_of(&data),
            size: data.len() as u64,
        };
        registry.put(named.digest, data.clone());
        let machine = lab.opened(registry, &lab.start(named));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| machine.check(&lab));
            }
        });
    }
}

/// It has the digest of the layer, and another size: the layer is opened as the image says.
#[test]
fn data_with_the_name_of_a_layer_does_not_keep_the_layer_from_being_read() {
    let lab = Lab::new();
    let size = lab.layer.len() as u64;
    for size in [1, 64, size - 1, size, size + 1, 100 << 20] {
        let named = StartDataRef {
            digest: lab.digest,
            size,
        };
        let machine = lab.opened(Registry::default(), &lab.start(named));
        machine.check(&lab);
    }
    // It is refused by its beginning, while the rest is still on its way.
    let named = StartDataRef {
        digest: lab.digest,
        size: 100 << 20,
    };
    let machine = lab.opened(Registry::that(STALLS, size), &lab.start(named));
    machine.check(&lab);
}

/// So is an image whose configuration has another size for a layer that another one has.
#[test]
fn an_image_that_lies_about_a_size_keeps_no_other_from_being_read() {
    let lab = Lab::new();
    let dir = tempfile::tempdir().unwrap();
    let cache = BlobCache::open(&dir.path().join("cache"), CacheConfig::default()).unwrap();
    let origin = || {
        let bytes = lab.layer.clone();
        let answer = move |range: Range<u64>| {
            let part = bytes.get(range.start as usize..range.end as usize);
            part.map(<[u8]>::to_vec)
                .ok_or_else(|| Fault::new(FaultKind::Absent, "it is not there"))
        };
        Origin {
            servers: vec!["memory".to_owned()],
            places: vec![Arc::new(MemoryPlace {
                answer: Arc::new(answer),
                parallel: 4,
            })],
        }
    };
    let lying = cache.blob(lab.digest, 100, origin()).unwrap();
    let size = lab.layer.len() as u64;
    let right = cache.blob(lab.digest, size, origin()).unwrap();
    assert_eq!((lying.size().unwrap(), right.size().unwrap()), (100, size));
    let mut bytes = vec![0; lab.layer.len()];
    right.read_at(&mut bytes, 0).unwrap();
    assert!(bytes == lab.layer);
    assert!(Arc::ptr_eq(
        &right,
        &cache.blob(lab.digest, size, origin()).unwrap()
    ));
}

/// Who waits for data that never comes reads the layer before his time is over, and the others do not wait.
#[test]
fn data_that_stalls_or_goes_away_is_done_without() {
    let lab = Lab::new();
    let data = lab.right().bytes();
    let named = StartDataRef {
        digest: oci::digest_of(&data),
        size: data.len() as u64,
    };
    let tables = data.len() as u64 - lab.right().frames.concat().len() as u64;
    // From the beginning on; from the frames on: the cache fetches in chunks.
    for does in [STALLS, FAILS] {
        for from in [0, tables.next_multiple_of(256 << 10)] {
            let registry = Registry::that(does, from);
            registry.put(named.digest, data.clone());
            let machine = lab.opened(registry, &lab.start(named));
            thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| machine.check(&lab));
                }
            });
        }
    }
}

#[test]
fn who_may_not_wait_does_not_wait_for_data() {
    let lab = Lab::new();
    let data = lab.right().bytes();
    let named = StartDataRef {
        digest: oci::digest_of(&data),
        size: data.len() as u64,
    };
    let registry = Registry::that(STALLS, 64 << 10);
    registry.put(named.digest, data);
    let machine = lab.opened(registry, &lab.start(named));
    let mut bytes = vec![0; lab.right.len()];
    // It fails or has all of it.
    if prompt::now(|| machine.device.read_at(0, &mut bytes)).is_ok() {
        assert!(bytes == lab.right);
    }
    machine.check(&lab);
    // What the layer has at hand need not be waited for any more.
    prompt::now(|| machine.device.read_at(0, &mut bytes)).unwrap();
    assert!(bytes == lab.right);
}

#[test]
fn many_threads_read_one_frame_that_is_right_or_wrong() {
    let lab = Lab::new();
    for wrong in [false, true] {
        let data = lab.right().with(|f| {
            if wrong {
                f.frames[1] = squeezed(&vec![0; 1 << 18]);
            }
        });
        let machine = lab.started(data.bytes());
        thread::scope(|scope| {
            for number in 0..300_u64 {
                let (machine, lab) = (&machine, &lab);
                scope.spawn(move || {
                    // Across blocks, pieces and frames.
                    let (at, len) = (60 * BLOCK + number * 512, 512 * (1 + number as usize % 40));
                    let mut bytes = vec![0; len];
                    machine.device.read_at(at, &mut bytes).unwrap();
                    assert!(bytes == lab.right[at as usize..at as usize + len]);
                });
            }
        });
        machine.check(&lab);
    }
}
