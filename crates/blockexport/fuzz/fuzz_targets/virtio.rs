//! Answers the requests that lie in arbitrary memory of a guest, behind a ring that says there are some: no panic, and
//! no more of them than the ring has room for.

#![no_main]

use std::sync::Arc;

use blockexport::vhost_user::testing::answer_all;
use blocks::testing::MemDevice;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // Descriptors, then the ring, then what descriptors may be about.
    let mut memory = vec![0; 0x1000];
    let table = bytes.len().min(256);
    memory[..table].copy_from_slice(&bytes[..table]);
    memory.extend(&bytes[table..]);
    let device = || Arc::new(MemDevice::new(1 << 16, 512));
    assert!(answer_all(device(), &memory) <= 16);
    // As it is, too, with one request in the ring.
    memory.resize(memory.len().max(0x1026), 0);
    memory[0x1000..0x1006].copy_from_slice(&[0, 0, 1, 0, 0, 0]);
    assert!(answer_all(device(), &memory) <= 1);
});
