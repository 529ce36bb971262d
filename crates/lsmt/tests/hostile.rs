//! Damages what the parsers read, at random: they may refuse it, and nothing else.

#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

mod support;

use std::sync::Arc;

use lsmt::crash::Numbers;
use lsmt::{
    GzipIndex, GzipTar, LiveImage, MemoryFolder, MemoryStorage, NewUpper, ReadAt, Stack, Trace,
    Upper, UpperFiles, UpperKind, Uuid, ZFile, open_blob, open_turbo_blob,
};
use support::vector;

/// Damaged copies of each vector.
const COPIES: u64 = 400;

fn memory(bytes: Vec<u8>) -> Arc<MemoryStorage> {
    Arc::new(MemoryStorage::new(bytes))
}

/// Changes a few places to random or extreme values, or cuts the end off.
fn damage(bytes: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let mut damaged = bytes.to_vec();
    let len = bytes.len() as u64;
    for _ in 0..=numbers.below(3) {
        // Headers and trailers are where the numbers are.
        let at = match numbers.below(3) {
            0 => numbers.below(len.min(512)),
            1 => len - 1 - numbers.below(len.min(8192)),
            _ => numbers.below(len),
        };
        let at = usize::try_from(at).unwrap();
        let width = [1, 4, 8][usize::try_from(numbers.below(3)).unwrap()];
        let value = match numbers.below(4) {
            0 => u64::MAX,
            1 => 1 << numbers.below(64),
            2 => 0,
            _ => numbers.below(1 << 40),
        };
        let end = (at + width).min(damaged.len());
        damaged[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
    }
    if numbers.below(8) == 0 {
        damaged.truncate(usize::try_from(numbers.below(len)).unwrap());
    }
    damaged
}

fn damaged(name: &str, mut read: impl FnMut(Vec<u8>)) {
    let bytes = vector(name);
    for seed in 0..COPIES {
        read(damage(&bytes, &mut Numbers::new(seed)));
    }
}

/// Reads the begin of each segment, and the end of the device.
fn read_stack(stack: &Stack) {
    let mut buffer = [0; 1024];
    for segment in stack.index().segments().iter().take(100) {
        drop(stack.read_at(&mut buffer, segment.offset() * 512));
    }
    drop(stack.read_at(&mut buffer, stack.virtual_size().saturating_sub(1024)));
    stack.extents(0..stack.virtual_size());
}

fn read_layer(bytes: Vec<u8>) {
    if let Ok(layer) = open_blob(memory(bytes)) {
        read_stack(&Stack::new(vec![layer]).unwrap());
    }
}

#[test]
fn damaged_layers() {
    for name in [
        "A2.lsmt",
        "ours/hybrid.sealed",
        "ours/zeros-nowhere.sealed",
        "B2.obd",
    ] {
        damaged(name, read_layer);
    }
}

#[test]
fn damaged_zfiles_are_never_read_as_something_else() {
    let whole = vector("odd.bin");
    damaged("odd.zfile-lz4", |bytes| {
        let Ok(zfile) = ZFile::open(memory(bytes)) else {
            return;
        };
        if zfile.size().unwrap() != 10_001 {
            return;
        }
        for at in (0..10_001).step_by(997) {
            let mut buffer = vec![0; 1];
            if zfile.read(&mut buffer, at).is_ok() {
                assert_eq!(buffer[0], whole[usize::try_from(at).unwrap()]);
            }
        }
    });
}

#[test]
fn damaged_turbo_oci_layers() {
    let tar = || memory(vector("ours/erofs.tar"));
    damaged("ours/erofs.fs.meta", |bytes| {
        if let Ok(layer) = open_turbo_blob(memory(bytes), tar()) {
            read_stack(&Stack::new(vec![layer]).unwrap());
        }
    });
}

#[test]
fn damaged_gzip_files_and_indexes() {
    let gzip = vector("layer1.tar.gz");
    let index = vector("C.gzip.meta");
    for seed in 0..60 {
        let mut numbers = Numbers::new(seed);
        let (mut gzip, mut index) = (gzip.clone(), index.clone());
        if seed % 2 == 0 {
            gzip = damage(&gzip, &mut numbers);
        } else {
            index = damage(&index, &mut numbers);
            if index.len() > 333 {
                // Most damage is found by the checksum; what is behind it is to be tried, too.
                let sum = !crc32c::crc32c_append(!0, &index[..329]);
                index[329..333].copy_from_slice(&sum.to_le_bytes());
            }
        }
        let Ok(index) = GzipIndex::open(MemoryStorage::new(index)) else {
            continue;
        };
        if let Ok(tar) = GzipTar::open(memory(gzip), index) {
            let end = tar.size().unwrap();
            for at in [0, end / 2, end.saturating_sub(512)] {
                drop(tar.read(&mut [0; 512], at));
            }
        }
    }
}

#[test]
fn damaged_traces() {
    damaged("trace", |mut bytes| {
        drop(Trace::decode(&bytes));
        if bytes.len() > 24 {
            let sum = !crc32c::crc32c_append(!0, &bytes[24..]);
            bytes[16..20].copy_from_slice(&sum.to_le_bytes());
            drop(Trace::decode(&bytes));
        }
    });
}

#[test]
fn damaged_writable_layers() {
    for kind in [UpperKind::Append, UpperKind::Sparse, UpperKind::Hybrid] {
        let folder = Arc::new(MemoryFolder::default());
        let new = NewUpper {
            kind,
            virtual_size: 1 << 16,
            uuid: Uuid::from_bytes([1; 16]),
            parent: Uuid::NIL,
        };
        let live = LiveImage::create(folder.clone(), Vec::new(), &new).unwrap();
        let upper = live.image().upper().unwrap();
        for at in 0..20 {
            upper.write_at(&[7; 1024], at * 1536).unwrap();
            if at == 10 {
                upper.flush().unwrap();
            }
        }
        let files = folder.files();
        for seed in 0..COPIES {
            let mut numbers = Numbers::new(seed);
            let left = Arc::new(MemoryFolder::default());
            let chosen = usize::try_from(numbers.below(files.len() as u64)).unwrap();
            for (at, (name, bytes)) in files.iter().enumerate() {
                let bytes = match at == chosen {
                    true => damage(bytes, &mut numbers),
                    false => bytes.clone(),
                };
                left.put(name, bytes);
            }
            let Ok(live) = LiveImage::open(left, Vec::new()) else {
                continue;
            };
            let image = live.image();
            drop(image.read_at(&mut [0; 4096], 0));
            drop(image.write_at(&[1; 512], 512, lsmt::Durability::Now));
            drop(live.restack(Uuid::NIL));
        }
    }
}

#[test]
fn files_without_an_end_are_not_believed() {
    // An index of 2^60 entries in a layer of 12 KiB.
    let mut layer = vector("A2.lsmt");
    let trailer = layer.len() - 4096;
    for count in [u64::MAX, 1 << 60, 1_000_001, 1_000_000] {
        layer[trailer + 40..trailer + 48].copy_from_slice(&count.to_le_bytes());
        assert!(open_blob(memory(layer.clone())).is_err(), "{count}");
    }
    let files = UpperFiles {
        data: memory(vector("A2.lsmt")),
        index: memory(vector("A2.index")),
        journal: None,
    };
    let error = Upper::open(files).unwrap_err().to_string();
    assert!(error.contains("not those of open data"), "{error}");
}
