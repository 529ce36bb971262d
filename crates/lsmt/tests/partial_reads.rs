//! Reads of parts of compressed blocks: how often a block is fetched and decompressed for them, and what they return.

#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lsmt::{Codec, MemoryStorage, ReadAt, ZFile, ZFileOptions, ZFileWriter};

/// Storage that counts what is read of it: a `ZFile` decompresses each block that it reads.
struct Counted {
    inner: MemoryStorage,
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl ReadAt for Counted {
    fn size(&self) -> io::Result<u64> {
        self.inner.size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.reads.fetch_add(1, Relaxed);
        self.bytes.fetch_add(buffer.len() as u64, Relaxed);
        self.inner.read_at(buffer, offset)
    }
}

/// Bytes that compress to about half.
fn content(len: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let words = (0..len / 16).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        [state, 0x2f62_696c_2f72_7375]
    });
    words.flat_map(u64::to_le_bytes).collect()
}

fn compressed(content: &[u8], block_size: u32, codec: Codec) -> Counted {
    let inner = MemoryStorage::default();
    let options = ZFileOptions {
        codec,
        block_size,
        ..ZFileOptions::default()
    };
    let mut writer = ZFileWriter::new(&inner, options).unwrap();
    writer.append(content).unwrap();
    writer.finish().unwrap();
    Counted {
        inner,
        reads: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
    }
}

/// Reads from `from` to the end in pieces; returns how often storage was read for that, and how many bytes of it.
fn read_in_pieces(storage: &Counted, content: &[u8], from: usize, piece: usize) -> (u64, u64) {
    let file = ZFile::open(storage).unwrap();
    storage.reads.store(0, Relaxed);
    storage.bytes.store(0, Relaxed);
    let mut buffer = vec![0; piece];
    for (number, expected) in content[from..].chunks(piece).enumerate() {
        let buffer = &mut buffer[..expected.len()];
        file.read(buffer, (from + number * piece) as u64).unwrap();
        assert!(buffer == expected, "the read at {}", from + number * piece);
    }
    (storage.reads.load(Relaxed), storage.bytes.load(Relaxed))
}

#[test]
fn a_block_that_is_read_in_parts_is_decompressed_once() {
    let content = content(1 << 20);
    for codec in [Codec::Lz4, Codec::Zstd] {
        let storage = compressed(&content, 1 << 15, codec);
        let (reads, bytes) = read_in_pieces(&storage, &content, 0, 4096);
        assert_eq!(reads, 32, "{codec:?}");
        assert!(bytes < storage.size().unwrap(), "{codec:?}: {bytes} bytes");
        // All but the last of these begin in one block and end in the next.
        let storage = compressed(&content, 4096, codec);
        let (reads, bytes) = read_in_pieces(&storage, &content, 512, 4096);
        assert_eq!(reads, 255, "{codec:?}");
        let once = storage.size().unwrap() * 101 / 100;
        assert!(bytes < once, "{codec:?}: {bytes} bytes");
    }
}

#[test]
fn whole_blocks_leave_the_kept_ones_alone() {
    let content = content(1 << 20);
    let storage = compressed(&content, 4096, Codec::Zstd);
    let file = ZFile::open(&storage).unwrap();
    let mut part = [0; 100];
    file.read(&mut part, 5000).unwrap();
    let mut rest = vec![0; 1 << 19];
    file.read(&mut rest, 1 << 19).unwrap();
    let before = storage.reads.load(Relaxed);
    file.read(&mut part, 6000).unwrap();
    assert_eq!(storage.reads.load(Relaxed), before);
    assert!(part[..] == content[6000..6100] && rest == content[1 << 19..]);
}

#[test]
fn reads_of_any_place_and_length_return_what_was_written() {
    // The last block is a part of one.
    let content = content(200_016);
    for block_size in [4096, 1 << 14] {
        let storage = compressed(&content, block_size, Codec::Zstd);
        let file = ZFile::open(&storage).unwrap();
        let mut state = 7_u64;
        for _ in 0..2000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let at = usize::try_from(state >> 33).unwrap() % content.len();
            let most = [600, 5000, 40_000][usize::try_from(state >> 20).unwrap() % 3];
            let len = (usize::try_from(state >> 40).unwrap() % most).min(content.len() - at);
            let mut buffer = vec![0; len];
            file.read(&mut buffer, at as u64).unwrap();
            assert!(buffer == content[at..at + len], "{len} bytes at {at}");
        }
    }
}
