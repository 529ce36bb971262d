//! Opens objects with arbitrary bytes for their journal: no panic, no object whose bytes are
//! wrong, and the second time all is as the first time left it.
//!
//! Nearly all inputs have wrong hashes, and would show nothing but that hashes work. So each is
//! also taken with its hashes made right, and with records of objects that are there.

#![no_main]

use std::sync::Arc;

use blocks::ContentId;
use libfuzzer_sys::fuzz_target;
use tiering::medium::Medium;
use tiering::objects::{Found, Objects, TierConfig};
use tiering::testing::MemMedium;

const HEADER: usize = 192;
const RECORD: usize = 64;
/// What lies on the tier.
const CONTENTS: [&[u8]; 3] = [b"", b"one", b"another"];

fuzz_target!(|bytes: &[u8]| {
    open(bytes);
    let mut forged = bytes.to_vec();
    if reseal(&mut forged).is_some() {
        open(&forged);
    }
});

fn open(journal: &[u8]) {
    let (state, tier) = (
        Arc::new(MemMedium::default()),
        Arc::new(MemMedium::default()),
    );
    let write = |medium: &MemMedium, name: &str, bytes: &[u8]| {
        medium.write_at(name, 0, bytes).expect("memory takes all");
    };
    write(&state, "journal", journal);
    write(&tier, "tier", &tier_file(journal));
    for content in CONTENTS {
        write(&tier, &ContentId::of(content).to_string(), content);
    }
    let open = || {
        let config = TierConfig {
            medium: Arc::clone(&tier) as _,
            capacity_bytes: 1 << 20,
        };
        Objects::open(Arc::clone(&state) as _, vec![config])
    };
    let Ok((objects, _)) = open() else {
        return; // of a later version, or of too many tiers
    };
    let list = objects.list();
    for object in list.iter().filter(|object| !object.tiers.is_empty()) {
        let mut read = [0; 16];
        let len = objects.read_at(object.id, 0, &mut read).expect("it counts");
        assert_eq!(ContentId::of(&read[..len]), object.id);
    }
    drop(objects);
    let (again, report) = open().expect("it could be opened");
    assert_eq!(
        (report.journal, report.lost, report.swept),
        (Found::Sound, 0, 0)
    );
    assert_eq!(again.list(), list);
}

/// The mark of the tier that the journal names first.
fn tier_file(journal: &[u8]) -> Vec<u8> {
    let mut file = b"\x89YOLOTI\n\x01\0\0\0\0\0\0\0".to_vec();
    file.extend_from_slice(journal.get(48..64).unwrap_or(&[7; 16]));
    file.resize(48, 0);
    let hash = hash16(&[&file]);
    file.extend_from_slice(&hash);
    file
}

fn hash16(parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    let mut short = [0; 16];
    short.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    short
}

/// Makes magics, versions and hashes right, and has some records name what is on the tier; `None`
/// if it is too short for that.
fn reseal(bytes: &mut [u8]) -> Option<()> {
    let (header, records) = bytes.split_at_mut_checked(HEADER)?;
    header[..12].copy_from_slice(b"\x89YOLOTJ\n\x01\0\0\0");
    header[24..48].fill(0);
    let hash = hash16(&[&header[..176]]);
    header[176..].copy_from_slice(&hash);
    let (records, _) = records.as_chunks_mut::<RECORD>();
    for (record, number) in records.iter_mut().zip(0_u64..) {
        record[..4].copy_from_slice(b"\x89TJR");
        if let Some(content) = CONTENTS.get(usize::from(record[16])) {
            record[8..16].copy_from_slice(&(content.len() as u64).to_le_bytes());
            record[16..48].copy_from_slice(&ContentId::of(content).0);
        }
        let hash = hash16(&[&header[16..24], &number.to_le_bytes(), &record[..48]]);
        record[48..].copy_from_slice(&hash);
    }
    Some(())
}
