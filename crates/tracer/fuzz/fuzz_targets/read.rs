//! Any bytes, with the length and the checksum put right so that they reach the decoder: an error,
//! or a trace that is valid and writes as the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tracer::Trace;

const LENGTH_AT: std::ops::Range<usize> = 24..32;
const COMPATIBLE_AT: std::ops::Range<usize> = 16..20;

fuzz_target!(|input: &[u8]| {
    let _ = Trace::read(input);
    let mut bytes = input.to_vec();
    let len = (bytes.len() as u64 + 32).to_le_bytes();
    if let Some(field) = bytes.get_mut(LENGTH_AT) {
        field.copy_from_slice(&len);
    }
    // Readers ignore these bits and writers clear them.
    if let Some(field) = bytes.get_mut(COMPATIBLE_AT) {
        field.fill(0);
    }
    let checksum = blake3::hash(&bytes);
    bytes.extend_from_slice(checksum.as_bytes());
    if let Ok(trace) = Trace::read(&bytes) {
        assert_eq!(trace.check(), Ok(()));
        assert_eq!(trace.write().as_ref(), Ok(&bytes));
    }
});
