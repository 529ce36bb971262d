//! Verifies arbitrary bytes as the data of a start, as they are and with the checksum of the tables made right: no panic, and no
//! more memory than a frame may have.

#![no_main]

use blockimages::ContentRoot;
use blockimages::start_data::verify;
use crc32c::{crc32c, crc32c_append};
use libfuzzer_sys::fuzz_target;

const HEADER: usize = 64;

fuzz_target!(|bytes: &[u8]| {
    let mut forged = bytes.to_vec();
    check(&forged);
    if forged.len() < HEADER {
        return;
    }
    forged[..8].copy_from_slice(b"YOLOBS\0\x01");
    forged[32..60].fill(0);
    let count = |at: usize| u32::from_le_bytes([forged[at], forged[at + 1], forged[at + 2], forged[at + 3]]);
    let rows = [(8, 72), (12, 16), (16, 4), (20, 32)];
    let tables = rows.iter().map(|(at, row)| count(*at) as usize * row).sum::<usize>() + HEADER;
    if tables <= forged.len() {
        let sum = crc32c_append(crc32c(&forged[..60]), &forged[HEADER..tables]);
        forged[60..HEADER].copy_from_slice(&sum.to_le_bytes());
        check(&forged);
    }
});

fn check(bytes: &[u8]) {
    // The first layer's content, as its tables say.
    let content = bytes.get(96..128).and_then(<[u8]>::first_chunk).copied().map(ContentRoot);
    drop(verify(bytes, &|_| content));
}
