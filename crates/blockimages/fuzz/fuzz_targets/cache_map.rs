//! Opens a blob of the cache with an arbitrary map beside it, as it is and with its checksums made right: no panic, and
//! all that is read is the blob, whatever the map says is there.

#![no_main]

use std::fs;
use std::ops::Range;
use std::sync::Arc;

use blockimages::{BlobCache, CacheConfig, Origin};
use crc32c::crc32c;
use libfuzzer_sys::fuzz_target;
use lsmt::ReadAt as _;
use ranges::testing::MemoryPlace;

const CHUNK: usize = 512;
const BLOB: [u8; 10 * CHUNK - 100] = [7; 10 * CHUNK - 100];

fn known() -> Origin {
    let answer = |range: Range<u64>| Ok(BLOB[range.start as usize..range.end as usize].to_vec());
    Origin {
        servers: vec!["known".to_owned()],
        places: vec![Arc::new(MemoryPlace { answer: Arc::new(answer), parallel: 16 })],
    }
}

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    check(&forged(bytes));
});

/// Makes a header of this blob, and records whose own checksums are right.
fn forged(bytes: &[u8]) -> Vec<u8> {
    let mut header = [0; 32];
    header[..8].copy_from_slice(b"YOLOBC\0\x01");
    header[8..12].copy_from_slice(&(CHUNK as u32).to_le_bytes());
    header[16..24].copy_from_slice(&(BLOB.len() as u64).to_le_bytes());
    let sum = crc32c(&header[..28]);
    header[28..].copy_from_slice(&sum.to_le_bytes());
    let mut map = header.to_vec();
    for record in bytes.chunks(9) {
        let mut whole = [0; 16];
        whole[..record.len()].copy_from_slice(record);
        // Most numbers are of no chunk.
        whole[0] %= 12;
        whole[1..4].fill(0);
        whole[8] %= 3;
        let sum = crc32c(&whole[..12]);
        whole[12..].copy_from_slice(&sum.to_le_bytes());
        map.extend(whole);
    }
    map
}

fn check(map: &[u8]) {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let opened = || {
        let config = CacheConfig {
            chunk_bytes: CHUNK as u32,
            ..CacheConfig::default()
        };
        let cache = BlobCache::open(dir.path(), config).expect("a cache");
        let digest = oci::digest_of(&BLOB);
        cache.blob(digest, BLOB.len() as u64, known()).expect("a blob")
    };
    // The cache says where it keeps the blob.
    drop(opened());
    let mut entries = fs::read_dir(dir.path()).expect("a directory").flatten();
    let blob_dir = entries.find(|entry| entry.path().is_dir()).expect("the blob").path();
    fs::write(blob_dir.join("map"), map).expect("a file");
    fs::write(blob_dir.join("data"), BLOB).expect("a file");
    let blob = opened();
    let mut read = [0; BLOB.len()];
    blob.read_at(&mut read, 0).expect("it can be read");
    assert!(read == BLOB, "wrong bytes were served");
}
