//! Opens arbitrary bytes as the index of a gzip file, its checksum made right, and reads a file of arbitrary
//! bytes with it: no panic, no memory beyond proportion.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lsmt::{GzipIndex, GzipTar, MemoryStorage};

fuzz_target!(|bytes: &[u8]| {
    let mut index = bytes.to_vec();
    if index.len() < 333 {
        return;
    }
    let sum = !crc32c::crc32c_append(!0, &index[..329]);
    index[329..333].copy_from_slice(&sum.to_le_bytes());
    let Ok(index) = GzipIndex::open(MemoryStorage::new(index)) else {
        return;
    };
    let Ok(len) = usize::try_from(index.gzip_size()) else {
        return;
    };
    if len > 1 << 16 {
        return;
    }
    let mut gzip = bytes.to_vec();
    gzip.resize(len, 0);
    let end = index.uncompressed_size();
    if let Ok(tar) = GzipTar::open(MemoryStorage::new(gzip), index) {
        for at in [0, (end / 2).min(1 << 20)] {
            drop(tar.read(&mut [0; 512], at));
        }
    }
});
