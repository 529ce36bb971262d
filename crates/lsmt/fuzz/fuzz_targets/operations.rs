//! Arbitrary writes, trims, flushes, restacks and collections to an image, beside a naive device.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use lsmt::{BlobOptions, Durability, LiveImage, MemoryFolder, NewUpper, Pace, UpperKind, Uuid};

const SECTORS: usize = 64;

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, ops)) = bytes.split_first() else {
        return;
    };
    let folder = Arc::new(MemoryFolder::default());
    let new = NewUpper {
        kind: [UpperKind::Append, UpperKind::Sparse, UpperKind::Hybrid][usize::from(choice % 3)],
        virtual_size: SECTORS as u64 * 512,
        ..NewUpper::default()
    };
    let mut live =
        LiveImage::create(folder.clone(), Vec::new(), &new).expect("memory does not fail");
    let mut device = vec![0; SECTORS * 512];
    for (number, op) in (1..=100_u8).zip(ops.chunks_exact(3)) {
        let from = usize::from(op[1]) % SECTORS;
        let to = (from + usize::from(op[2]) % 16).min(SECTORS);
        let bytes = from * 512..to * 512;
        let range = bytes.start as u64..bytes.end as u64;
        match op[0] % 16 {
            0..8 => {
                device[bytes.clone()].fill(number);
                live.image()
                    .write_at(&device[bytes], range.start, Durability::Flushed)
            }
            8..11 => {
                device[bytes].fill(0);
                live.image().trim(range)
            }
            11 => live.image().flush(),
            12 => live.restack(Uuid::NIL),
            13 => live.collect(&Pace::unlimited()).map(drop),
            14 => live
                .stack_and_commit(Uuid::NIL, b"", BlobOptions::default(), &Pace::unlimited())
                .map(drop),
            _ => {
                drop(live);
                live = LiveImage::open(folder.clone(), Vec::new()).expect("memory does not fail");
                Ok(())
            }
        }
        .expect("memory does not fail");
        let mut found = vec![1; SECTORS * 512];
        live.image()
            .read_at(&mut found, 0)
            .expect("memory does not fail");
        assert!(found == device);
    }
});
