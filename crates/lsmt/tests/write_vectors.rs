//! Writes what overlaybd wrote: the same bytes, where that is possible.

#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

mod support;

use std::sync::Arc;

use lsmt::{
    BlobOptions, Codec, Compression, LayerInfo, MemoryStorage, ReadAt, Stack, Storage, Upper,
    UpperFiles, UpperKind, Uuid, Wrapper, ZFile, ZFileOptions, ZFileStyle, ZFileWriter, open_blob,
    unwrap_tar,
};
use support::{assert_device, from_tar, stored, vector};

fn memory(bytes: Vec<u8>) -> Arc<MemoryStorage> {
    Arc::new(MemoryStorage::new(bytes))
}

fn open_upper(data: Vec<u8>, index: Vec<u8>) -> Upper {
    let files = UpperFiles {
        data: memory(data),
        index: memory(index),
        journal: None,
    };
    Upper::open(files).unwrap()
}

/// Returns how a layer of overlaybd is called, to write one that is called so.
fn info(name: &str) -> LayerInfo {
    open_blob(stored(name)).unwrap().info().clone()
}

fn commit(upper: &Upper, options: BlobOptions, info: &LayerInfo) -> Vec<u8> {
    let blob = MemoryStorage::default();
    let len = upper.commit(&blob, options, info).unwrap();
    assert_eq!(len, blob.size().unwrap());
    blob.bytes()
}

fn zfile(codec: Codec, block_size: u32, style: ZFileStyle) -> Compression {
    Compression::ZFile(ZFileOptions {
        codec,
        block_size,
        style,
        ..ZFileOptions::default()
    })
}

fn assert_same(found: &[u8], name: &str) {
    let wanted = vector(name);
    if found != wanted {
        let at = found
            .iter()
            .zip(&wanted)
            .position(|(found, wanted)| found != wanted);
        panic!(
            "{name}: {} bytes, {} wanted, differs at {at:?}",
            found.len(),
            wanted.len()
        );
    }
}

#[test]
fn a_commit_has_the_bytes_of_overlaybd() {
    let upper = open_upper(vector("A.data"), vector("A.index"));
    assert_eq!(upper.kind(), UpperKind::Append);
    assert_same(
        &commit(&upper, BlobOptions::default(), &info("A.lsmt")),
        "A.lsmt",
    );
    let upper = open_upper(vector("A2.data"), vector("A2.index"));
    assert_same(
        &commit(&upper, BlobOptions::default(), &info("A2.lsmt")),
        "A2.lsmt",
    );
}

#[test]
fn compressed_commits_have_the_bytes_of_overlaybd() {
    let upper = open_upper(vector("A.data"), vector("A.index"));
    for (name, codec, block_size, wrapper) in [
        ("A.lz4.4k.obd", Codec::Lz4, 4096, Wrapper::None),
        ("A.lz4.4k.tar.obd", Codec::Lz4, 4096, Wrapper::Tar),
        ("A.lz4.64k.obd", Codec::Lz4, 65536, Wrapper::None),
    ] {
        let compression = zfile(codec, block_size, ZFileStyle::Header);
        let options = BlobOptions {
            compression,
            wrapper,
        };
        assert_same(&commit(&upper, options, &info(name)), name);
    }
}

/// Zstandard's output is another one with each of its releases: the vectors are of 1.5.4.
#[test]
fn commits_with_zstandard_have_the_content_of_overlaybd() {
    let upper = open_upper(vector("A.data"), vector("A.index"));
    for (name, block_size) in [("A.zstd.4k.obd", 4096), ("A.zstd.16k.mt.obd", 16384)] {
        let compression = zfile(Codec::Zstd, block_size, ZFileStyle::Header);
        let options = BlobOptions {
            compression,
            wrapper: Wrapper::None,
        };
        let ours = ZFile::open(MemoryStorage::new(commit(&upper, options, &info(name)))).unwrap();
        let theirs = ZFile::open(stored(name)).unwrap();
        assert_eq!(content(&ours), content(&theirs));
        assert_eq!(
            (ours.codec(), ours.block_size()),
            (theirs.codec(), theirs.block_size())
        );
    }
}

fn content(from: &impl ReadAt) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(from.size().unwrap()).unwrap()];
    from.read_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn zfiles_with_a_trailer_have_the_bytes_of_overlaybd() {
    for (content, name, codec) in [
        ("A.lsmt", "A.lsmt.zfile-lz4", Codec::Lz4),
        ("odd.bin", "odd.zfile-lz4", Codec::Lz4),
    ] {
        let storage = MemoryStorage::default();
        let options = ZFileOptions {
            codec,
            style: ZFileStyle::Trailer,
            ..ZFileOptions::default()
        };
        let mut writer = ZFileWriter::new(&storage, options).unwrap();
        // In odd pieces: blocks do not depend on them.
        for piece in vector(content).chunks(5000) {
            writer.append(piece).unwrap();
        }
        writer.finish().unwrap();
        assert_same(&storage.bytes(), name);
    }
}

#[test]
fn a_merge_has_the_bytes_of_overlaybd() {
    let layers = ["A.lsmt", "A2.lsmt"].map(|name| open_blob(stored(name)).unwrap());
    let stack = Stack::new(layers.into()).unwrap();
    let blob = MemoryStorage::default();
    stack
        .merge(&blob, BlobOptions::default(), &info("A+A2.merged.lsmt"))
        .unwrap();
    assert_same(&blob.bytes(), "A+A2.merged.lsmt");
    let compression = zfile(Codec::Lz4, 4096, ZFileStyle::Trailer);
    let options = BlobOptions {
        compression,
        wrapper: Wrapper::None,
    };
    let blob = MemoryStorage::default();
    stack
        .merge(&blob, options, &info("A+A2.merged.zfile"))
        .unwrap();
    assert_same(&blob.bytes(), "A+A2.merged.zfile");
}

/// overlaybd keeps no index of a sparse layer, so that what was trimmed is found by its holes only.
#[test]
fn a_sparse_layer_of_overlaybd_reads_and_commits() {
    let tar = vector("B2.sparse-rw.tar");
    let data = memory(from_tar(&tar, "B2.data"));
    let files = UpperFiles {
        data,
        index: memory(Vec::new()),
        journal: None,
    };
    let upper = Upper::open(files).unwrap();
    assert_eq!(upper.kind(), UpperKind::Sparse);
    let blob = memory(Vec::new());
    upper
        .commit(&*blob, BlobOptions::default(), &upper.info())
        .unwrap();
    let layers = vec![
        open_blob(stored("B1.obd")).unwrap(),
        open_blob(blob).unwrap(),
    ];
    assert_device(&Stack::new(layers).unwrap(), "B1+B2.expected.raw");
}

#[test]
fn open_layers_of_overlaybd_read() {
    let upper = open_upper(vector("B1.data"), vector("B1.index"));
    let blob = memory(Vec::new());
    upper
        .commit(&*blob, BlobOptions::default(), &upper.info())
        .unwrap();
    assert_device(
        &Stack::new(vec![open_blob(blob).unwrap()]).unwrap(),
        "B1.expected.raw",
    );
}

#[test]
fn a_long_run_is_cut_where_overlaybd_cuts_it() {
    let files = UpperFiles {
        data: memory(Vec::new()),
        index: memory(Vec::new()),
        journal: None,
    };
    let new = lsmt::NewUpper {
        virtual_size: 64 << 20,
        ..lsmt::NewUpper::default()
    };
    let upper = Upper::create(files, &new).unwrap();
    upper.write_at(&vec![1; 20_000 * 512], 4096).unwrap();
    let blob = memory(Vec::new());
    upper
        .commit(&*blob, BlobOptions::default(), &upper.info())
        .unwrap();
    let layer = open_blob(blob).unwrap();
    let lens: Vec<_> = layer.segments().map(lsmt::Segment::sectors).collect();
    assert_eq!(lens, [16320, 3680]);
}

#[test]
fn what_overlaybd_could_not_read_is_not_written() {
    let noise: Vec<u8> = (0..70_000_u64)
        .map(|n| {
            n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(23)
                .wrapping_mul(n | 1)
                .to_le_bytes()[7]
        })
        .collect();
    let storage = MemoryStorage::default();
    let options = ZFileOptions {
        block_size: 65536,
        ..ZFileOptions::default()
    };
    let mut writer = ZFileWriter::new(&storage, options).unwrap();
    let written = writer.append(&noise).and_then(|()| writer.finish());
    let error = written.unwrap_err().to_string();
    assert!(error.contains("use blocks of 32 KiB or less"), "{error}");
    let options = ZFileOptions {
        block_size: 32768,
        ..options
    };
    storage.set_size(0).unwrap();
    let mut writer = ZFileWriter::new(&storage, options).unwrap();
    writer.append(&noise).unwrap();
    writer.finish().unwrap();
    let mut back = vec![0; noise.len()];
    ZFile::open(&storage as &dyn ReadAt)
        .unwrap()
        .read(&mut back, 0)
        .unwrap();
    assert_eq!(back, noise);
    drop(unwrap_tar(stored("odd.zfile-lz4")).unwrap());
    assert_ne!(Uuid::NIL, Uuid::from_chain_id(&[1; 32]));
}
