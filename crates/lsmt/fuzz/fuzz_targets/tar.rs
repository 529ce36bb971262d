//! Looks for a blob in arbitrary bytes that may be a tar: no panic, and what is found lies within them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lsmt::{MemoryStorage, blob_range};

fuzz_target!(|bytes: &[u8]| {
    let mut forged = bytes.to_vec();
    check(&forged);
    // The checksums of both headers, which mutations hardly ever leave right.
    for at in [0, 1024] {
        if let Some(header) = forged.get_mut(at..at + 512) {
            header[148..156].fill(b' ');
            let sum: u64 = header.iter().map(|&byte| u64::from(byte)).sum();
            header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
    check(&forged);
});

fn check(bytes: &[u8]) {
    if let Ok(range) = blob_range(&MemoryStorage::new(bytes.to_vec())) {
        assert!(range.start <= range.end && range.end <= bytes.len() as u64);
    }
}
