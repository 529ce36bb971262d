//! Decodes arbitrary bytes as a plan of a start, as they are and with the checksum made right: no panic, and what is decoded
//! comes back when it was encoded.

#![no_main]

use blockimages::plan::StartPlan;
use crc32c::{crc32c, crc32c_append};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut forged = bytes.to_vec();
    check(&forged);
    if forged.len() >= 32 {
        forged[..8].copy_from_slice(b"YOLOBP\0\x01");
        let sum = crc32c_append(crc32c(&forged[..24]), &forged[28..]);
        forged[24..28].copy_from_slice(&sum.to_le_bytes());
        check(&forged);
    }
});

fn check(bytes: &[u8]) {
    if let Ok(plan) = StartPlan::decode(bytes) {
        let layers: Vec<_> = plan.layers().iter().copied().map(Some).collect();
        assert_eq!(StartPlan::decode(&plan.encode()).as_ref(), Ok(&plan));
        drop(plan.trace_of(&layers));
    }
}
