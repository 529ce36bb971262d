//! Decodes arbitrary bytes as an index, as they are and with the seal made right: no panic, no
//! memory beyond proportion, and every chunk of what is decoded lies in a file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use chunks::index::{CHUNK_BYTES, Index};

const SEAL: usize = 32;
/// Where the head says how long the index is.
const LENGTH: std::ops::Range<usize> = 32..40;

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    let mut forged = bytes.to_vec();
    if let Some(at) = forged.len().checked_sub(SEAL)
        && at >= LENGTH.end
    {
        forged[..8].copy_from_slice(b"\x89NFIDX\r\n");
        forged[8..16].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
        let len = forged.len() as u64;
        forged[LENGTH].copy_from_slice(&len.to_le_bytes());
        forged[40..48.min(at)].fill(0);
        let seal = *blake3::hash(&forged[..at]).as_bytes();
        forged[at..].copy_from_slice(&seal);
        read(&forged);
    }
});

fn read(bytes: &[u8]) {
    let Ok(index) = Index::decode(bytes) else {
        return;
    };
    assert!(**index.bytes() == *bytes);
    let count = u32::try_from(index.chunks().len()).expect("there is a limit");
    for number in 0..count {
        let place = index.place(number).expect("every chunk lies somewhere");
        assert!(place.len > 0 && u64::from(place.len) <= CHUNK_BYTES);
        let covering = index.covering(place.file, place.offset, u64::from(place.len));
        assert!(covering == (number..number + 1), "{covering:?}");
    }
    assert!(index.place(count).is_none() && index.chunk(count).is_none());
}
