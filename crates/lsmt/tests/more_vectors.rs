//! Vectors that overlaybd's tools did not give us: what newer versions and `AgentENV` write.
//!
//! Each test makes a vector anew and compares it with the file in `vectors/ours`, which is kept for ever;
//! `LSMT_WRITE_VECTORS=1 cargo test -p lsmt --test more_vectors` writes the files.

#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

mod support;

use std::fs;
use std::sync::Arc;

use lsmt::{
    BlobOptions, Content, Layer, LiveImage, MemoryFolder, MemoryStorage, NewUpper, ReadAt, Stack,
    Storage, Trace, TraceDialect, TraceRead, Upper, UpperFiles, UpperKind, Uuid, open_blob,
    open_turbo_blob,
};
use support::{assert_device, folder, stored, vector};

const DEVICE: u64 = 64 << 10;
const UUID: Uuid = Uuid::from_bytes(*b"lsmt test vector");

fn memory(bytes: Vec<u8>) -> Arc<MemoryStorage> {
    Arc::new(MemoryStorage::new(bytes))
}

/// Compares with the kept file, or writes it.
fn keep(name: &str, bytes: &[u8]) {
    let path = folder().join("ours").join(name);
    if std::env::var_os("LSMT_WRITE_VECTORS").is_some() {
        fs::write(path, bytes).unwrap();
    } else {
        assert!(
            vector(&format!("ours/{name}")) == bytes,
            "{name} differs from what is kept"
        );
    }
}

/// What each vector's device holds: 16 sectors of ones, of which the third is zeros and the fifth twos.
fn expected() -> Vec<u8> {
    let mut device = vec![0; usize::try_from(DEVICE).unwrap()];
    device[4096..4096 + 16 * 512].fill(1);
    device[5120..5632].fill(0);
    device[6144..6656].fill(2);
    device
}

fn write_expected(upper: &Upper) {
    upper.write_at(&[1; 16 * 512], 4096).unwrap();
    upper.flush().unwrap();
    upper.trim(5120..5632).unwrap();
    upper.write_at(&[2; 512], 6144).unwrap();
    upper.flush().unwrap();
}

fn assert_expected(layer: Layer) {
    let stack = Stack::new(vec![layer]).unwrap();
    let mut found = vec![9; usize::try_from(DEVICE).unwrap()];
    stack.read_at(&mut found, 0).unwrap();
    assert!(found == expected());
}

fn flags(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at + 28..at + 32].try_into().unwrap())
}

/// A writable layer of a kind, sealed in place; returns its files before and after.
fn sealed(kind: UpperKind) -> (MemoryFolder, MemoryFolder) {
    let folder = Arc::new(MemoryFolder::default());
    let new = NewUpper {
        kind,
        virtual_size: DEVICE,
        uuid: UUID,
        parent: Uuid::NIL,
    };
    let live = LiveImage::create(folder.clone(), Vec::new(), &new).unwrap();
    write_expected(&live.image().upper().unwrap());
    let copy = |folder: &MemoryFolder| {
        let copy = MemoryFolder::default();
        folder
            .files()
            .into_iter()
            .for_each(|(name, bytes)| copy.put(&name, bytes));
        copy
    };
    let before = copy(&folder);
    live.restack(Uuid::NIL).unwrap();
    (before, copy(&folder))
}

fn file(folder: &MemoryFolder, name: &str) -> Vec<u8> {
    let mut files = folder.files().into_iter();
    files.find(|(found, _)| found == name).unwrap().1
}

#[test]
fn a_hybrid_layer_and_its_sealed_form() {
    let (before, after) = sealed(UpperKind::Hybrid);
    let (data, index) = (
        file(&before, "upper.0.data"),
        file(&before, "upper.0.index"),
    );
    assert_eq!((flags(&data, 0), flags(&index, 0)), (0x23, 0x21));
    keep("hybrid.data", &data);
    keep("hybrid.index", &index);
    let files = UpperFiles {
        data: memory(data),
        index: memory(index),
        journal: None,
    };
    assert_eq!(Upper::open(files).unwrap().kind(), UpperKind::Hybrid);
    let sealed = file(&after, "upper.0.data");
    assert_eq!(flags(&sealed, sealed.len() - 4096), 0x26);
    keep("hybrid.sealed", &sealed);
    assert_expected(open_blob(stored("ours/hybrid.sealed")).unwrap());
}

#[test]
fn a_sealed_layer_with_a_filled_up_index_and_an_aligned_trailer() {
    let (_, after) = sealed(UpperKind::Append);
    let sealed = file(&after, "upper.0.data");
    assert_eq!(
        (sealed.len() % 4096, sealed[sealed.len() - 4097]),
        (0, 0xff)
    );
    assert_eq!(flags(&sealed, sealed.len() - 4096), 6);
    keep("append.sealed", &sealed);
    assert_expected(open_blob(stored("ours/append.sealed")).unwrap());
}

#[test]
fn a_sparse_layer_without_an_index() {
    let (before, after) = sealed(UpperKind::Sparse);
    let data = file(&before, "upper.0.data");
    assert_eq!(flags(&data, 0), 0x13);
    keep("sparse.data", &data);
    let files = UpperFiles {
        data: memory(vector("ours/sparse.data")),
        index: memory(Vec::new()),
        journal: None,
    };
    let upper = Upper::open(files).unwrap();
    let blob = memory(Vec::new());
    upper
        .commit(&*blob, BlobOptions::default(), &upper.info())
        .unwrap();
    assert_expected(open_blob(blob).unwrap());
    let sealed = file(&after, "upper.0.data");
    assert_eq!(flags(&sealed, sealed.len() - 4096), 0x16);
    keep("sparse.sealed", &sealed);
    assert_expected(open_blob(stored("ours/sparse.sealed")).unwrap());
}

/// A committed layer whose entry of zeros is at another place.
fn zeros_at(moffset: u64) -> Vec<u8> {
    let mut sealed = vector("ours/append.sealed");
    let trailer = sealed.len() - 4096;
    let number = |at: usize| u64::from_le_bytes(sealed[at..at + 8].try_into().unwrap());
    let (index, count) = (number(trailer + 32), number(trailer + 40));
    let entries = (0..count).map(|entry| usize::try_from(index + entry * 16).unwrap() + 8);
    let zeros = entries
        .into_iter()
        .find(|&at| number(at) >> 55 & 1 == 1)
        .unwrap();
    let value = moffset | 1 << 55;
    sealed[zeros..zeros + 8].copy_from_slice(&value.to_le_bytes());
    sealed
}

#[test]
fn zeros_may_be_nowhere_or_over_data() {
    for (name, moffset) in [
        ("zeros-nowhere.sealed", (1 << 55) - 1),
        ("zeros-backed.sealed", 10),
    ] {
        keep(name, &zeros_at(moffset));
        let layer = open_blob(stored(&format!("ours/{name}"))).unwrap();
        let zeros = layer
            .segments()
            .find(|segment| segment.content() == Content::Zeros);
        assert_eq!(zeros.unwrap().moffset(), moffset);
        assert_expected(layer);
    }
}

#[test]
fn identifiers_in_lower_case_and_none() {
    let mut lower = vector("ours/append.sealed");
    let trailer = lower.len() - 4096;
    for at in [56, trailer + 56] {
        lower[at..at + 36].make_ascii_lowercase();
    }
    keep("uuid-lower-case.sealed", &lower);
    let mut none = lower;
    for at in [56, trailer + 56] {
        none[at..at + 74].fill(0);
    }
    keep("uuid-none.sealed", &none);
    for (name, uuid) in [("uuid-lower-case", UUID), ("uuid-none", Uuid::NIL)] {
        let layer = open_blob(stored(&format!("ours/{name}.sealed"))).unwrap();
        assert_eq!(layer.info().uuid, uuid);
        assert_expected(layer);
    }
}

#[test]
fn traces_of_both_dialects_and_a_read_that_is_too_long() {
    let read = |offset, len| TraceRead {
        layer: 1,
        offset,
        len,
    };
    let reads = vec![read(0, 4096), read(8192, 1 << 20)];
    let trace = Trace {
        dialect: TraceDialect::AgentEnv,
        reads,
    };
    keep("trace.standard-crc", &trace.encode());
    assert_eq!(
        Trace::decode(&vector("ours/trace.standard-crc")).unwrap(),
        trace
    );
    // One record, one byte longer than overlaybd's buffer.
    let mut long = Trace {
        dialect: TraceDialect::Overlaybd,
        reads: vec![read(0, 1)],
    }
    .encode();
    long[32..40].copy_from_slice(&((1_u64 << 20) + 1).to_le_bytes());
    let sum = !crc32c::crc32c_append(!0, &long[24..]);
    long[16..20].copy_from_slice(&sum.to_le_bytes());
    keep("trace.long-read", &long);
    let found = Trace::decode(&vector("ours/trace.long-read")).unwrap();
    assert_eq!(found.reads, [read(0, 1 << 20), read(1 << 20, 1)]);
}

/// The metadata of an EROFS and the tar that has its data; `README.md` says how they were made.
#[test]
fn a_turbo_oci_layer_of_erofs() {
    let layer = open_turbo_blob(stored("ours/erofs.fs.meta"), stored("ours/erofs.tar")).unwrap();
    assert_device(&Stack::new(vec![layer]).unwrap(), "ours/erofs.expected.raw");
}

/// What a cache may have of a blob that it did not fetch whole: nothing of it is served.
#[test]
fn zeros_and_short_files_in_a_cache_are_no_data() {
    let whole = vector("A.lz4.4k.obd");
    for (from, to) in [(4096, 8192), (100_000, 104_096)] {
        let mut holed = whole.clone();
        holed[from..to].fill(0);
        let layer = open_blob(memory(holed)).unwrap();
        let stack = Stack::new(vec![layer]).unwrap();
        let mut device = vec![0; 4 << 20];
        let error = stack.read_at(&mut device, 0).unwrap_err();
        assert!(format!("{error:?}").contains("Checksum"), "{error:?}");
    }
    let short = memory(whole);
    short.set_size(200_000).unwrap();
    assert!(open_blob(short.clone()).is_err());
    assert_eq!(short.size().unwrap(), 200_000);
}
