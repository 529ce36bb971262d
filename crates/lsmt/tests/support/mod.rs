//! The vectors, and devices that are compared with them.

#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test uses a part of it, and one may use all"
)]

pub(crate) mod device;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmt::{MemoryStorage, ReadAt, Stack};

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

/// Returns the content of a vector, packed or not.
pub(crate) fn vector(name: &str) -> Vec<u8> {
    let path = folder().join(name);
    match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(_) => {
            let packed = fs::File::open(folder().join(format!("{name}.zst"))).expect(name);
            zstd::decode_all(packed).expect(name)
        }
    }
}

pub(crate) fn stored(name: &str) -> Arc<dyn ReadAt> {
    Arc::new(MemoryStorage::new(vector(name)))
}

/// Returns one file of a tar that is a vector.
pub(crate) fn from_tar(tar: &[u8], name: &str) -> Vec<u8> {
    let mut archive = tar::Archive::new(tar);
    for entry in archive.entries().expect("a tar") {
        let mut entry = entry.expect("an entry");
        if entry.path().expect("a name").to_str() == Some(name) {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut bytes).expect("content");
            return bytes;
        }
    }
    panic!("{name} is not in the tar");
}

/// Compares a device with its expected first bytes, piece by piece, and what follows with zeros as far
/// as a layer has anything there.
pub(crate) fn assert_device(device: &Stack, name: &str) {
    let packed = fs::File::open(folder().join(format!("{name}.zst"))).expect(name);
    let mut expected = zstd::Decoder::new(packed).expect(name);
    let mut at = 0;
    let mut want = vec![0; 1 << 20];
    let mut got = vec![0; 1 << 20];
    loop {
        let len = read_full(&mut expected, &mut want);
        if len == 0 {
            break;
        }
        device.read_at(&mut got[..len], at).expect("a read");
        if want[..len] != got[..len] {
            let differs = (0..len).find(|&n| want[n] != got[n]).unwrap_or(0);
            panic!("{name} differs at byte {}", at + differs as u64);
        }
        at += len as u64;
    }
    assert!(at > 0, "{name} is not empty");
}

fn read_full(from: &mut impl std::io::Read, buffer: &mut [u8]) -> usize {
    let mut done = 0;
    while done < buffer.len() {
        match from.read(&mut buffer[done..]).expect("a vector") {
            0 => break,
            len => done += len,
        }
    }
    done
}
