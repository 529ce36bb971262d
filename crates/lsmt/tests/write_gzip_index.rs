//! Indexes of gzip files: the access points are those of the real tools, and data is read from each of them.

#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use lsmt::{GzipIndex, GzipTar, MemoryStorage, make_gzip_index};
use support::vector;

fn points(meta: Vec<u8>) -> Vec<(u64, u64, u8)> {
    let index = GzipIndex::open(MemoryStorage::new(meta)).unwrap();
    let points = index.points().iter();
    points
        .map(|point| (point.uncompressed, point.compressed, point.bits))
        .collect()
}

#[test]
fn the_points_are_those_of_overlaybd() {
    let made = make_gzip_index(&mut &vector("layer1.tar.gz")[..]).unwrap();
    let real = vector("C.gzip.meta");
    assert_eq!(made[..41], real[..41]);
    assert_eq!(made[49..313], real[49..313]);
    assert_eq!(points(made), points(real));
}

/// Bytes that can be compressed in part, so that there are blocks of all kinds.
fn bytes(len: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let word = next();
        match word % 5 {
            0 => bytes.extend((0..700).flat_map(|_| next().to_le_bytes())),
            1 => bytes.extend([7; 3000]),
            _ => bytes.extend(format!("line {} of {}\n", word % 1000, next() % 77).bytes()),
        }
    }
    bytes.truncate(len);
    bytes
}

#[test]
fn data_is_read_from_every_point() {
    let plain = bytes(9 << 20);
    for level in [0, 1, 6, 9] {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
        encoder.write_all(&plain).unwrap();
        let gzip = encoder.finish().unwrap();
        let index = make_gzip_index(&mut &gzip[..]).unwrap();
        let index = GzipIndex::open(MemoryStorage::new(index)).unwrap();
        assert_eq!(index.uncompressed_size(), plain.len() as u64);
        assert!((8..=9).contains(&index.points().len()), "level {level}");
        let starts: Vec<_> = index
            .points()
            .iter()
            .map(|point| point.uncompressed)
            .collect();
        let tar = GzipTar::open(MemoryStorage::new(gzip), index).unwrap();
        for start in starts.into_iter().rev() {
            let at = usize::try_from(start).unwrap();
            let mut read = vec![0; 70_000.min(plain.len() - at)];
            tar.read(&mut read, start).unwrap();
            assert!(
                read == plain[at..at + read.len()],
                "level {level}, byte {start}"
            );
        }
    }
}

#[test]
fn what_is_no_whole_gzip_file_has_no_index() {
    let gzip = vector("layer1.tar.gz");
    let mut plain = Vec::new();
    GzDecoder::new(&gzip[..]).read_to_end(&mut plain).unwrap();
    assert!(make_gzip_index(&mut &plain[..]).is_err());
    assert!(make_gzip_index(&mut &[&gzip[..], &gzip[..]].concat()[..]).is_err());
    for cut in [0, 5, 10, 11, 1000, gzip.len() - 9, gzip.len() - 1] {
        assert!(make_gzip_index(&mut &gzip[..cut]).is_err(), "cut at {cut}");
    }
    // Damage gives an error or other points, and nothing else.
    for at in (0..gzip.len()).step_by(997) {
        let mut damaged = gzip.clone();
        damaged[at] ^= 0x10;
        drop(make_gzip_index(&mut &damaged[..]));
    }
}
