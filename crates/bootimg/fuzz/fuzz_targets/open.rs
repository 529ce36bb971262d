//! Opens arbitrary bytes as a boot image and reads all of it: no panic, no endless loop, no
//! memory beyond proportion.
//!
//! Nearly all inputs have wrong hashes, and would show nothing but that hashes work. So each is
//! also opened with its hashes made right, as a forger would, which leads on to the decoders.

#![no_main]

use std::sync::Arc;

use blocks::{BlockCache, BlockRange};
use bootimg::{Image, unwatched};
use libfuzzer_sys::fuzz_target;

const PAGE: usize = 4096;

fuzz_target!(|bytes: &[u8]| {
    read(bytes.to_vec());
    let mut forged = bytes.to_vec();
    if reseal(&mut forged).is_some() {
        read(forged);
    }
});

fn read(bytes: Vec<u8>) {
    let Ok(image) = Image::from_bytes(bytes) else {
        return;
    };
    let image = Arc::new(image);
    let tree = Arc::clone(image.tree());
    let damaged = image.verify(&mut unwatched).map(|report| report.damaged.len());
    let attached = Arc::clone(&image).attach(&tree);
    let mut out = vec![0; 64 << 10];
    let mut misses = 0;
    for extent in image.plan().extents.iter().take(1000) {
        let Some(key) = tree.key(extent.file) else {
            continue;
        };
        let (range, _): (BlockRange, _) = extent.range.split_first(16);
        if matches!(attached.get(&key, range, &mut out), blocks::Lookup::Miss { .. }) {
            misses += 1;
        }
    }
    // Attached to a source that has none of its files, it tells of each, in bounded memory.
    let empty = blocks::testing::tree(&[blocks::testing::Node::dir(&[])]).expect("a directory");
    let report = Arc::clone(&image).attach(&empty).report().clone();
    assert_eq!(report.files_kept, 0);
    assert_eq!(report.dropped.len(), image.info().files);
    let told: usize = report.dropped.iter().map(|file| file.path.len()).sum();
    assert!(report.dropped.iter().len() <= 1000 && told <= (1 << 20) + 1000 * 300);
    for (file, _) in tree.files() {
        let path = tree.path(file).unwrap_or_default();
        assert!(path.len() <= blocks::PATH_LIMIT);
        assert!(path.is_empty() || tree.resolve(&path) == Some(file));
    }
    // What verifies is served.
    assert!(misses == 0 || damaged != Ok(0) || !attached.report().dropped.is_empty());
}

/// Makes length, magic, version and all hashes right; `None` if it is too short for that.
fn reseal(bytes: &mut [u8]) -> Option<()> {
    let len = bytes.len();
    let footer = len.checked_sub(PAGE).filter(|footer| *footer >= PAGE)?;
    bytes[..8].copy_from_slice(b"\x89YOLOBI\n");
    bytes[8..12].copy_from_slice(&1u32.to_le_bytes());
    bytes[24..32].fill(0);
    bytes[32..40].copy_from_slice(&(len as u64).to_le_bytes());
    for index in 0..32 {
        let entry = 56 + 32 * index;
        let field = |at: usize| usize::try_from(u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?)).ok();
        let (start, stored) = (field(entry + 8)?, field(entry + 16)?);
        let hash = match start.checked_add(stored).and_then(|end| bytes.get(start..end)) {
            Some(section) if stored > 0 => *blake3::hash(section).as_bytes(),
            _ => *blake3::hash(b"").as_bytes(),
        };
        let used = u32::from_le_bytes(bytes[48..52].try_into().ok()?) as usize > index;
        let place = footer + 32 * index;
        bytes[place..place + 32].copy_from_slice(if used { &hash } else { &[0; 32] });
    }
    bytes[footer + 1024..len - 32].fill(0);
    let seal = *blake3::hash(&bytes[..PAGE - 32]).as_bytes();
    bytes[PAGE - 32..PAGE].copy_from_slice(&seal);
    let mut root = blake3::Hasher::new();
    root.update(&bytes[..PAGE]);
    root.update(&bytes[footer..footer + 1024]);
    bytes[len - 32..].copy_from_slice(root.finalize().as_bytes());
    Some(())
}
