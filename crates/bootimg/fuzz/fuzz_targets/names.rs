//! Decodes arbitrary bytes as the names that a mount is served with, as they are and with the hash
//! made right: no panic, no memory beyond proportion, and what is decoded is a tree that can be
//! encoded and walked.

#![no_main]

use std::ops::ControlFlow;

use blocks::{FileId, Namespace, NodeKind};
use bootimg::{decode_names, encode_names};
use libfuzzer_sys::fuzz_target;

/// Magic and hash come first.
const MAGIC: &[u8; 8] = b"yolonm01";
const HEADER: usize = 40;

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    let mut forged = bytes.to_vec();
    if forged.len() >= HEADER {
        forged[..8].copy_from_slice(MAGIC);
        let hash = blake3::hash(&forged[HEADER..]);
        forged[8..HEADER].copy_from_slice(hash.as_bytes());
        read(&forged);
    }
    // Behind the lengths lies a compressed section, which mutations hardly ever leave whole.
    let packed = zstd::bulk::compress(bytes, 1).expect("whatever is in memory compresses");
    let mut rest = 0_u32.to_le_bytes().to_vec();
    rest.extend((bytes.len() as u64).to_le_bytes());
    rest.extend(packed);
    let sum = *blake3::hash(&rest).as_bytes();
    read(&[&MAGIC[..], &sum, &rest].concat());
});

fn read(bytes: &[u8]) {
    let Ok((tree, label)) = decode_names(bytes) else {
        return;
    };
    let again = encode_names(&tree, &label).expect("what was decoded is not too large");
    let again = decode_names(&again).expect("what was encoded is decoded");
    assert!((&again.0, &again.1) == (&tree, &label), "it is not the same");
    let mut dirs = vec![FileId::ROOT];
    let mut seen = 0;
    while let Some(dir) = dirs.pop() {
        seen += 1;
        assert!(seen <= tree.len(), "a directory is found twice");
        let mut visit = |entry: blocks::EntryRef<'_>| {
            if entry.kind == NodeKind::Dir {
                dirs.push(entry.file);
            }
            ControlFlow::Continue(())
        };
        tree.list(dir, 0, &mut visit).expect("a directory is listed");
    }
}
