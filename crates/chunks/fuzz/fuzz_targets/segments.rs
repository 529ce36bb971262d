//! Opens a store with an arbitrary segment, with the hashes of its records made right in half of the
//! cases: no panic, what it gives out is what its id says, and it goes on working.

#![no_main]

use std::fs;
use std::ops::ControlFlow;

use blocks::ContentId;
use libfuzzer_sys::fuzz_target;
use chunks::{ChunkStore as _, Class, DiskStore, StoreConfig};

#[derive(Debug, arbitrary::Arbitrary)]
struct Input<'a> {
    /// Records whose hashes are right, and whose fields are not.
    records: Vec<Record<'a>>,
    /// What is behind them: torn, or a table.
    rest: &'a [u8],
}

#[derive(Debug, arbitrary::Arbitrary)]
struct Record<'a> {
    codec: u8,
    raw_len: u32,
    /// Added to the right one.
    len_off: u8,
    is_named: bool,
    bytes: &'a [u8],
}

fuzz_target!(|input: Input<'_>| {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let segments = dir.path().join("segments");
    fs::create_dir_all(&segments).expect("a directory");
    let mut out = header();
    let mut ids = Vec::new();
    for record in &input.records {
        let id = match record.is_named {
            true => ContentId::of(record.bytes),
            false => ContentId([record.codec; 32]),
        };
        ids.push(id);
        push(&mut out, record, &id);
    }
    out.extend(input.rest);
    fs::write(segments.join("0000000000000000.seg"), &out).expect("a file");
    let config = StoreConfig {
        budget_bytes: 64 << 20,
        ..StoreConfig::default()
    };
    let Ok(store) = DiskStore::open(dir.path(), config) else {
        return;
    };
    for id in &ids {
        if let Some(stored) = store.get(id, Class::Demand)
            && let Ok(raw) = stored.open(id)
        {
            assert!(ContentId::of(&raw) == *id);
        }
    }
    store.verify(&mut |_| ControlFlow::Continue(()));
    let id = ContentId::of(input.rest);
    if !input.rest.is_empty() && store.put(&id, input.rest, Class::Demand).is_ok() {
        let stored = store.get(&id, Class::Demand).expect("what was put is there");
        assert!(stored.open(&id).expect("as it was") == input.rest);
    }
});

fn hash16(parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    parts.iter().for_each(|part| drop(hasher.update(part)));
    *hasher.finalize().as_bytes().first_chunk().expect("it is longer")
}

/// The header of segment 0.
fn header() -> Vec<u8> {
    let mut out = b"\x89YOLONC\n\x01\0\0\0".to_vec();
    out.resize(48, 0);
    out.extend(hash16(&[&out]));
    out
}

fn push(out: &mut Vec<u8>, record: &Record<'_>, id: &ContentId) {
    let offset = out.len() as u64;
    let len = (record.bytes.len() as u32).wrapping_add(u32::from(record.len_off % 4));
    let mut head = b"\x89NCR".to_vec();
    head.extend([record.codec % 3, 0, 0, 0]);
    // Mostly a length that could be.
    let raw_len = match record.raw_len % 4 {
        0 => record.raw_len,
        _ => record.bytes.len() as u32,
    };
    head.extend(raw_len.to_le_bytes());
    head.extend(len.to_le_bytes());
    head.extend(id.0);
    head.extend(hash16(&[record.bytes]));
    head.extend(hash16(&[&0_u64.to_le_bytes(), &offset.to_le_bytes(), &head]));
    out.extend(head);
    out.extend(record.bytes);
}
