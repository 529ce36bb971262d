//! Decodes arbitrary bytes as the plan that a block service sends, as they are and with the hash made
//! right: no panic, no memory beyond proportion, and what is decoded is encoded and decoded to the same.

#![no_main]

use blocks::ContentId;
use blocks::testing::{Node, tree};
use bootimg::{decode_plan, encode_plan};
use libfuzzer_sys::fuzz_target;

/// The head: magic, version and features, counts, and the id of the index.
const HEAD: usize = 56;
const MAGIC: &[u8; 8] = b"\x89NFPLN\r\n";
const VERSION: u32 = 1;

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    if bytes.len() >= HEAD {
        let mut forged = bytes.to_vec();
        forged[..8].copy_from_slice(MAGIC);
        forged[8..12].copy_from_slice(&VERSION.to_le_bytes());
        forged[12..16].fill(0);
        forged[24..HEAD].copy_from_slice(&index().0);
        let seal = blake3::hash(&forged);
        forged.extend_from_slice(seal.as_bytes());
        read(&forged);
    }
});

fn index() -> ContentId {
    ContentId::of(b"the index")
}

fn read(bytes: &[u8]) {
    let nodes = [
        Node::dir(&[("small", 1), ("large", 2), ("empty", 3)]),
        Node::file(5000),
        Node::file(10 << 20),
        Node::file(0),
    ];
    let tree = tree(&nodes).expect("a tree");
    let Ok(plan) = decode_plan(bytes, &index(), &tree) else {
        return;
    };
    let again = encode_plan(&index(), &plan);
    let again = decode_plan(&again, &index(), &tree).expect("what was encoded is decoded");
    assert_eq!(again.extents, plan.extents);
    assert_eq!(again.touches, plan.touches);
}
