//! Bytes between a node and a worker. The first byte of an input says whether its header is right: then the
//! rest is the JSON, and libFuzzer need not find a length that fits. No panic, and what is read is the same
//! after it was sent on.
#![no_main]

use libfuzzer_sys::fuzz_target;
use node_service::hostile::read_messages;

fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    if kind % 8 == 0 {
        let _ = read_messages(rest);
        return;
    }
    let mut bytes = 1u32.to_le_bytes().to_vec();
    bytes.extend(u32::try_from(rest.len()).expect("inputs are short").to_le_bytes());
    bytes.extend(rest);
    let _ = read_messages(&bytes);
});
