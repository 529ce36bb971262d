//! Reads arbitrary bytes as an index of parts: no panic, no memory beyond proportion, and what is
//! read is what is written.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tiering::parts::{Index, Users};

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    // Few inputs begin as an index does: this leads on to the rules.
    let mut forged = bytes.to_vec();
    if let Some(head) = forged.get_mut(..64) {
        head[..12].copy_from_slice(b"\x89YOLOTP\n\x01\0\0\0");
        head[13..16].fill(0);
        head[20..].fill(0);
        let pools = usize::from(head[12]);
        let parts = (bytes.len() - 64).saturating_sub(pools * 32) / 48;
        head[16..20].copy_from_slice(&u32::try_from(parts).unwrap_or(0).to_le_bytes());
        forged.truncate(64 + pools * 32 + parts * 48);
        read(&forged);
    }
});

fn read(bytes: &[u8]) {
    let Ok(index) = Index::decode(bytes) else {
        return;
    };
    assert_eq!(index.encode(), bytes);
    let mut users = Users::default();
    assert_eq!(users.new_bytes(&index), index.part_bytes());
    users.insert(index.id(), index.clone());
    assert_eq!(users.part_bytes(), index.part_bytes());
    assert_eq!(users.new_bytes(&index), 0);
    assert_eq!(users.shared_bytes(index.id()), 0);
}
