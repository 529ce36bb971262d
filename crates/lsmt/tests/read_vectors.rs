//! Reads what overlaybd wrote: every vector, byte by byte.

#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

mod support;

use std::fs;
use std::sync::Arc;

use lsmt::{
    Codec, GzipIndex, GzipTar, MemoryStorage, ReadAt, Stack, Trace, TraceDialect, TraceRead, ZFile,
    blob_range, open_blob, open_turbo_blob,
};
use sha2::{Digest, Sha256};
use support::{assert_device, folder, from_tar, stored, vector};

fn stack(names: &[&str]) -> Stack {
    let layers = names
        .iter()
        .map(|name| open_blob(stored(name)).expect(name));
    Stack::new(layers.collect()).expect("a stack")
}

#[test]
fn the_vectors_are_those_that_were_written() {
    let sums = fs::read_to_string(folder().join("SHA256SUMS")).unwrap();
    for line in sums.lines() {
        let (sum, name) = line.split_once("  ").unwrap();
        // Whole devices are compared as they are read, which takes less memory.
        if !name.ends_with(".raw") && !name.starts_with("C.data") && !name.starts_with("B2.sparse")
        {
            let found = Sha256::digest(vector(name));
            let found: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(found, sum, "{name}");
        }
    }
}

#[test]
fn every_form_of_a_layer_reads_the_same() {
    for name in [
        "A.lsmt",
        "A.from-sealed.lsmt",
        "A.sealed",
        "A.lsmt.zfile-lz4",
        "A.lsmt.zfile-zstd",
        "A.lz4.4k.obd",
        "A.lz4.4k.tar.obd",
        "A.lz4.64k.obd",
        "A.zstd.4k.obd",
        "A.zstd.16k.mt.obd",
    ] {
        let stack = stack(&[name]);
        assert_eq!(stack.virtual_size(), 1 << 30, "{name}");
        assert_device(&stack, "A.expected.raw");
    }
}

#[test]
fn layers_over_each_other_read_as_merged() {
    assert_device(&stack(&["A.lsmt", "A2.lsmt"]), "A+A2.expected.raw");
    assert_device(&stack(&["A.zstd.4k.obd", "A2.lsmt"]), "A+A2.expected.raw");
    assert_device(&stack(&["A+A2.merged.lsmt"]), "A+A2.expected.raw");
    assert_device(&stack(&["A+A2.merged.zfile"]), "A+A2.expected.raw");
    let both = stack(&["A.lsmt", "A2.lsmt"]);
    let messages: Vec<_> = both.layers().map(|info| info.message.clone()).collect();
    assert_eq!(messages[0], b"sample A");
}

#[test]
fn layers_of_a_container_image_read_as_the_device_did() {
    assert_device(&stack(&["B1.obd"]), "B1.expected.raw");
    assert_device(&stack(&["B1.obd", "B2.obd"]), "B1+B2.expected.raw");
    assert_device(&stack(&["B1.obd", "B2.lsmt"]), "B1+B2.expected.raw");
    assert_device(&stack(&["B1+B2.merged.lsmt"]), "B1+B2.expected.raw");
}

#[test]
fn turbo_oci_reads_from_the_compressed_tar() {
    for meta in ["C.ext4.fs.meta", "C.ext4.fs.meta.lsmt"] {
        let index = GzipIndex::open(MemoryStorage::new(vector("C.gzip.meta"))).unwrap();
        let tar = GzipTar::open(stored("layer1.tar.gz"), index).unwrap();
        let layer = open_turbo_blob(stored(meta), Arc::new(tar)).unwrap();
        assert_device(&Stack::new(vec![layer]).unwrap(), "C.expected.raw");
    }
}

#[test]
fn a_zfile_of_an_odd_length_reads_at_any_place() {
    let zfile = ZFile::open(stored("odd.zfile-lz4")).unwrap();
    let want = vector("odd.bin");
    assert_eq!(zfile.size().unwrap(), 10_001);
    assert_eq!(zfile.codec(), Codec::Lz4);
    for (from, to) in [
        (0, 10_001),
        (4095, 4097),
        (8192, 10_001),
        (10_000, 10_001),
        (5, 5),
    ] {
        let mut got = vec![0; to - from];
        zfile.read(&mut got, from as u64).unwrap();
        assert_eq!(got, want[from..to]);
    }
    assert!(zfile.read(&mut [0; 2], 10_000).is_err());
}

#[test]
fn the_base_layer_of_2021_reads_in_spite_of_its_garbage() {
    let tar = vector("upstream-baselayer-ext4_64.tar.gz");
    let mut whole = Vec::new();
    let mut decoder = flate2::read::GzDecoder::new(&*tar);
    std::io::Read::read_to_end(&mut decoder, &mut whole).unwrap();
    let layer = open_blob(Arc::new(MemoryStorage::new(from_tar(&whole, "ext4_64")))).unwrap();
    let stack = Stack::new(vec![layer]).unwrap();
    assert_eq!(stack.virtual_size(), 64 << 30);
    // The magic number of ext4's superblock.
    let mut magic = [0; 2];
    stack.read_at(&mut magic, 1024 + 56).unwrap();
    assert_eq!(magic, [0x53, 0xef]);
    // Every block decompresses.
    let segments: Vec<_> = stack.index().segments().to_vec();
    assert!(!segments.is_empty());
    for segment in segments {
        let mut data = vec![0; usize::try_from(segment.sectors() * 512).unwrap()];
        stack.read_at(&mut data, segment.offset() * 512).unwrap();
    }
}

#[test]
fn the_blob_in_a_tar_is_where_the_pax_header_says() {
    assert_eq!(
        blob_range(&stored("A.lz4.4k.tar.obd")).unwrap(),
        1536..1536 + 272_334
    );
    assert_eq!(blob_range(&stored("A.lz4.4k.obd")).unwrap(), 0..272_334);
}

#[test]
fn the_trace_reads_and_is_written_again() {
    let bytes = vector("trace");
    let trace = Trace::decode(&bytes).unwrap();
    assert_eq!(trace.dialect, TraceDialect::Overlaybd);
    assert_eq!(trace.reads.len(), 90);
    assert_eq!(
        trace.reads[0],
        TraceRead {
            layer: 0,
            offset: 0,
            len: 4096
        }
    );
    let again = Trace::decode(&trace.encode()).unwrap();
    assert_eq!(again, trace);
}
