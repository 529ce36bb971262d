//! Decodes arbitrary bytes as a trace, as they are and with the checksum made right: no panic, and what is
//! decoded comes back when it was encoded.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lsmt::{TRACE_READ_MAX, Trace};

fuzz_target!(|bytes: &[u8]| {
    let mut forged = bytes.to_vec();
    check(&forged);
    if forged.len() >= 24 {
        let len = forged.len() as u64 - 24;
        forged[..4].copy_from_slice(&0xc2ef_1820_u32.to_le_bytes());
        forged[8..16].copy_from_slice(&len.to_le_bytes());
        let sum = crc32c::crc32c(&forged[24..]);
        forged[16..20].copy_from_slice(&sum.to_le_bytes());
        check(&forged);
    }
});

fn check(bytes: &[u8]) {
    if let Ok(trace) = Trace::decode(bytes) {
        assert!(trace.reads.iter().all(|read| read.len <= TRACE_READ_MAX));
        let again = Trace::decode(&trace.encode()).expect("what was encoded is valid");
        assert_eq!(again.reads, trace.reads);
    }
}
