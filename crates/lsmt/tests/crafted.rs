//! Attacks that are made of the format's document, number by number: each is refused by its name, and takes no more
//! memory and no more reads than what is there.

#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

mod support;

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use lsmt::{
    GzipIndex, GzipTar, IMAGE_SEGMENTS_MAX, LsmtError, MemoryStorage, ReadAt, SEALED_SEGMENTS_MAX,
    SegmentBudget, ZFile, open_blob, open_blob_within,
};
use support::vector;

/// Bytes of header and trailer of a layer.
const HEADER: usize = 4096;
/// The first sector that no device has.
const OFFSET_END: u64 = (1 << 50) - 1;

/// The codec behind the size of blocks.
const LZ4: u64 = 1 << 32;

fn memory(bytes: Vec<u8>) -> Arc<MemoryStorage> {
    Arc::new(MemoryStorage::new(bytes))
}

fn put(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

fn get(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// overlaybd's checksum.
fn sum(bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!0, bytes)
}

/// A layer, and where its trailer and its index are.
fn layer() -> (Vec<u8>, usize, usize) {
    let layer = vector("A2.lsmt");
    let trailer = layer.len() - HEADER;
    let index = usize::try_from(get(&layer, trailer + 32)).unwrap();
    (layer, trailer, index)
}

fn refused(layer: Vec<u8>, expected: &str) {
    let said = open_blob(memory(layer)).unwrap_err().to_string();
    assert!(said.contains(expected), "{said}: {expected}");
}

#[test]
fn a_trailer_that_points_elsewhere_is_refused() {
    let past = "past the end of the blob";
    for (field, value, expected) in [
        (32, u64::MAX - 15, past),
        (32, 1 << 40, past),
        (32, 0, "in the header"),
        (40, 1 << 32, "number of segments"),
        (40, u64::MAX / 16, "number of segments"),
        (40, 1_000_000, past),
        (48, 1 << 63, "size of the device"),
        (48, u64::MAX, "size of the device"),
        (48, 512, "past the end of the device"),
    ] {
        let (mut layer, trailer, _) = layer();
        put(&mut layer, trailer + field, value);
        refused(layer, expected);
    }
}

#[test]
fn an_index_that_lies_is_refused() {
    let (whole, trailer, index) = layer();
    let sector = (index / 512) as u64;
    let first = get(&whole, index);
    let segment = |offset: u64, sectors: u64| offset | sectors << 50;
    let past = "past the largest device";
    let data = "end of a segment's data";
    for (entry, place, expected) in [
        // The first one again, and one that begins within it: loops of the device.
        (first, 8, "overlap or are out of order"),
        (
            segment((first & OFFSET_END) + 1, 8),
            8,
            "overlap or are out of order",
        ),
        // Data that is the index itself, the trailer, or nowhere.
        (segment(1 << 49, 1), sector, data),
        (segment(1 << 49, 1), sector + 8, data),
        (segment(1 << 49, 1), (1 << 55) - 1, data),
        (segment(1 << 49, (1 << 14) - 1), sector - 1, data),
        (segment(1 << 49, 1), 0, "in the header"),
        (segment(OFFSET_END - 1, 2), 8, past),
    ] {
        let mut layer = whole.clone();
        // The last one: those before it are right.
        let count = usize::try_from(get(&layer, trailer + 40)).unwrap();
        let mut last = index + (count - 1) * 16;
        while get(&layer, last) & OFFSET_END == OFFSET_END {
            last -= 16;
        }
        put(&mut layer, trailer + 48, 0);
        put(&mut layer, last, entry);
        put(&mut layer, last + 8, place);
        refused(layer, expected);
    }
}

/// The fields of the header that is in charge are set, and its checksum is right.
fn zfile(fields: &[(usize, u64)]) -> Vec<u8> {
    let mut bytes = vector("odd.zfile-lz4");
    let end = bytes.len() - 512;
    // The trailer, as a header that is in charge: written again at the end, with checksums.
    bytes.copy_within(end.., 0);
    for at in [0, end] {
        let flags = get(&bytes, at + 32) | 1 | 8 | 16;
        put(&mut bytes, at + 32, flags);
        for (field, value) in fields {
            put(&mut bytes, at + field, *value);
        }
        bytes[at + 28..at + 32].fill(0);
        let digest = sum(&bytes[at..at + 512]);
        bytes[at + 28..at + 32].copy_from_slice(&digest.to_le_bytes());
    }
    bytes
}

#[test]
fn a_zfile_that_points_elsewhere_is_refused() {
    for (fields, expected) in [
        (&[(40, u64::MAX)][..], "not within the file"),
        (&[(40, 1 << 40)], "not within the file"),
        (&[(40, 0)], "not within the file"),
        (&[(48, 1 << 32)], "number of blocks"),
        (&[(48, 1_000_000_000)], "one entry for each block"),
        (&[(56, u64::MAX)], "one entry for each block"),
        (
            &[(56, 1_000_000_000 << 12), (48, 1_000_000_000)],
            "not within the file",
        ),
        (&[(72, 1 << 31 | LZ4)], "size of blocks"),
        (&[(72, LZ4)], "size of blocks"),
    ] {
        let said = ZFile::open(memory(zfile(fields))).unwrap_err().to_string();
        assert!(said.contains(expected), "{fields:?}: {said}");
    }
    // Lengths of blocks: none, one that wraps around, and all of them too long together.
    let whole = zfile(&[]);
    let index = usize::try_from(get(&whole, 40)).unwrap();
    for (len, expected) in [
        (0_u32, "impossible"),
        (u32::MAX, "impossible"),
        (8192, "past their end"),
    ] {
        let mut bytes = whole.clone();
        bytes[index..index + 4].copy_from_slice(&len.to_le_bytes());
        let count = usize::try_from(get(&bytes, 48)).unwrap();
        let index_sum = sum(&bytes[index..index + count * 4]);
        put(&mut bytes, 64, index_sum.into());
        bytes[28..32].fill(0);
        let digest = sum(&bytes[..512]);
        bytes[28..32].copy_from_slice(&digest.to_le_bytes());
        let said = ZFile::open(memory(bytes)).unwrap_err().to_string();
        assert!(said.contains(expected), "{len}: {said}");
    }
}

/// A file of a terabyte with a header, and a hole; counts what is read.
#[derive(Debug)]
struct Hole {
    header: Vec<u8>,
    read: AtomicU64,
}

impl ReadAt for Hole {
    fn size(&self) -> io::Result<u64> {
        Ok(1 << 40)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read.fetch_add(buffer.len() as u64, Relaxed);
        buffer.fill(0);
        if offset == 0 {
            let len = buffer.len().min(self.header.len());
            buffer[..len].copy_from_slice(&self.header[..len]);
        }
        Ok(())
    }
}

#[test]
fn an_index_of_a_billion_blocks_that_is_a_hole_takes_no_memory() {
    let blocks = 1_000_000_000;
    let header = zfile(&[(40, 1 << 39), (48, blocks), (56, blocks << 12)]);
    let hole = Arc::new(Hole {
        header: header[..512].to_vec(),
        read: AtomicU64::new(0),
    });
    let said = ZFile::open(Arc::clone(&hole)).unwrap_err().to_string();
    assert!(said.contains("impossible"), "{said}");
    assert!(hole.read.load(Relaxed) <= 2 << 20, "of 4 GB");
}

/// A layer that has as many segments as a layer may, of which nothing but header and trailer was written.
struct Crowded {
    header: Vec<u8>,
    trailer: Vec<u8>,
    read: AtomicU64,
}

impl Crowded {
    fn new() -> Self {
        let (layer, trailer, _) = layer();
        let header = layer[..HEADER].to_vec();
        let mut trailer = layer[trailer..].to_vec();
        put(&mut trailer, 32, HEADER as u64);
        put(&mut trailer, 40, SEALED_SEGMENTS_MAX);
        Self {
            header,
            trailer,
            read: AtomicU64::new(0),
        }
    }
}

impl ReadAt for Crowded {
    fn size(&self) -> io::Result<u64> {
        Ok(2 * HEADER as u64 + 16 * SEALED_SEGMENTS_MAX)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read.fetch_add(buffer.len() as u64, Relaxed);
        buffer.fill(0);
        let from = match offset {
            0 => &self.header,
            _ => &self.trailer,
        };
        let len = buffer.len().min(HEADER);
        if offset == 0 || offset + len as u64 == self.size()? {
            buffer[..len].copy_from_slice(&from[..len]);
        }
        Ok(())
    }
}

/// 255 such layers took 4 GB, and their merged index 2 more.
#[test]
fn layers_that_have_too_much_together_are_refused_before_their_index_is_read() {
    let budget = SegmentBudget::default();
    let before = IMAGE_SEGMENTS_MAX / SEALED_SEGMENTS_MAX;
    budget.take(before * SEALED_SEGMENTS_MAX).unwrap();
    let crowded = Arc::new(Crowded::new());
    let refused = open_blob_within(crowded.clone(), &budget).unwrap_err();
    assert!(
        matches!(refused, LsmtError::ImageIndex { limit, .. } if limit == IMAGE_SEGMENTS_MAX),
        "{refused}"
    );
    assert!(crowded.read.load(Relaxed) < 64 << 10, "of 16 MB");
    // The rest is for others, also after one that cannot be opened.
    let (mut damaged, _, index) = layer();
    put(&mut damaged, index + 8, 0);
    open_blob_within(memory(damaged), &budget).unwrap_err();
    budget
        .take(IMAGE_SEGMENTS_MAX % SEALED_SEGMENTS_MAX)
        .unwrap();
    budget.take(1).unwrap_err();
}

/// Where an access point is, in a gzip file and in what it has.
#[derive(Clone, Copy, Default)]
struct Point {
    uncompressed: u64,
    compressed: u64,
    window: u64,
    bits: u8,
    window_bytes: u32,
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// An index with these points, of a file with these sizes; `count` is how many there are, as its header says.
fn gzip_index(points: &[Point], count: u64, sizes: (u64, u64)) -> Vec<u8> {
    let mut entries = Vec::new();
    for point in points {
        for number in [point.uncompressed, point.compressed, point.window] {
            entries.extend(number.to_le_bytes());
        }
        entries.push(point.bits);
        entries.extend(point.window_bytes.to_le_bytes());
    }
    gzip_index_of(&[], &zlib(&entries), count, sizes)
}

/// The same with these bytes behind the header, and then these compressed entries.
fn gzip_index_of(first: &[u8], entries: &[u8], count: u64, sizes: (u64, u64)) -> Vec<u8> {
    let mut index = vector("C.gzip.meta")[..333].to_vec();
    let numbers = [
        (25, count),
        (33, sizes.0),
        (49, sizes.1),
        (313, 333 + first.len() as u64),
        (321, entries.len() as u64),
    ];
    for (at, number) in numbers {
        put(&mut index, at, number);
    }
    let checksum = sum(&index[..329]);
    index[329..333].copy_from_slice(&checksum.to_le_bytes());
    index.extend(first);
    index.extend(entries);
    index
}

#[test]
fn an_index_of_a_gzip_file_that_lies_is_refused() {
    let at = |uncompressed, compressed| Point {
        uncompressed,
        compressed,
        ..Point::default()
    };
    let (start, sizes) = (at(0, 10), (1000, 5000));
    let disorder = "out of order or out of bounds";
    for (points, sizes, expected) in [
        (&[start, at(2000, 20), at(1000, 30)][..], sizes, disorder),
        (&[start, at(6000, 20)], sizes, disorder),
        (&[start, at(1000, 1001)], sizes, disorder),
        (&[start, at(1 << 63, 20)], sizes, "negative"),
        (&[Point { bits: 8, ..start }], sizes, disorder),
        (
            &[Point {
                bits: 1,
                ..at(0, 0)
            }],
            sizes,
            disorder,
        ),
        (
            &[Point {
                window: 1 << 40,
                ..start
            }],
            sizes,
            disorder,
        ),
        (
            &[Point {
                window: i64::MAX as u64,
                window_bytes: u32::MAX,
                ..start
            }],
            sizes,
            disorder,
        ),
        (&[at(1, 10)], sizes, "does not begin"),
        (&[], sizes, "no access point"),
        // A read of the last byte would decompress a terabyte.
        (&[start], (1 << 30, 1 << 40), "between two access points"),
        (
            &[start, at(1 << 39, 20)],
            (1 << 30, (1 << 39) + 1),
            "between two access points",
        ),
    ] {
        let index = gzip_index(points, points.len() as u64, sizes);
        let said = GzipIndex::open(MemoryStorage::new(index))
            .unwrap_err()
            .to_string();
        assert!(said.contains(expected), "{said}: {expected}");
    }
    for (count, expected) in [
        (1 << 32, "number of access points"),
        (u64::MAX, "negative"),
        (1 << 20, "another number of entries"),
    ] {
        let index = gzip_index(&[start], count, sizes);
        let said = GzipIndex::open(MemoryStorage::new(index))
            .unwrap_err()
            .to_string();
        assert!(said.contains(expected), "{count}: {said}");
    }
    // Some KiB of zeros that would become a gigabyte of entries.
    let bomb = gzip_index_of(&[], &zlib(&vec![0; 64 << 20]), 1, sizes);
    let said = GzipIndex::open(MemoryStorage::new(bomb))
        .unwrap_err()
        .to_string();
    assert!(said.contains("compressed length of the entries"), "{said}");
}

#[test]
fn a_window_that_becomes_more_than_deflate_has_is_refused() {
    let window = zlib(&vec![0; 40_000]);
    let mut entry = vec![0; 29];
    // One point at the begin, whose window is behind the header.
    put(&mut entry, 8, 10);
    put(&mut entry, 16, 333);
    entry[25..29].copy_from_slice(&u32::try_from(window.len()).unwrap().to_le_bytes());
    let index = gzip_index_of(&window, &zlib(&entry), 1, (1000, 5000));
    let index = GzipIndex::open(MemoryStorage::new(index)).unwrap();
    let tar = GzipTar::open(memory(vec![0; 1000]), index).unwrap();
    let said = tar.read(&mut [0; 512], 0).unwrap_err().to_string();
    assert!(said.contains("window of a gzip index"), "{said}");
}

#[test]
fn a_tar_around_a_blob_that_lies_is_refused() {
    let whole = vector("A.lz4.4k.tar.obd");
    let checksum = |header: &mut [u8]| {
        header[148..156].fill(b' ');
        let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    };
    for (record, expected) in [
        ("29 size=18446744073709551615\n", "past its end"),
        ("29 size=99999999999999999999\n", "no number"),
        ("20 size=-1\n", "no number"),
    ] {
        let mut blob = whole.clone();
        blob[512..1024].fill(0);
        blob[512..512 + record.len()].copy_from_slice(record.as_bytes());
        refused(blob, expected);
    }
    let mut blob = whole.clone();
    blob[124..136].copy_from_slice(b"77777777777 ");
    checksum(&mut blob[..512]);
    refused(blob, "not one block");
    let mut blob = whole;
    blob[156] = b'0';
    blob[124..136].copy_from_slice(b"77777777777 ");
    checksum(&mut blob[..512]);
    refused(blob, "past its end");
}
