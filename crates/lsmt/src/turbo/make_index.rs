//! Makes the index of a gzip file.

use std::io::{self, Read, Write as _};

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::deflate::{Boundary, Inflate};
use super::gzip_index::{
    CRC_AT, ENTRY_BYTES, HEADER_BYTES, MAGIC, POINTS_MAX, SPAN_MAX, WINDOW_BYTES,
};
use crate::crc;
use crate::num::{put, wide};

/// Uncompressed bytes between access points, at least: what overlaybd has.
const SPAN_BYTES: u64 = 1 << 20;
/// Bits of a gzip header's flags.
const HAS_CRC: u8 = 2;
const HAS_EXTRA: u8 = 4;
const HAS_NAME: u8 = 8;
const HAS_COMMENT: u8 = 16;
/// The longest header that is read.
const GZIP_HEADER_MAX: u64 = 1 << 20;

/// Reads a gzip file and returns its index, as `gzip.meta` has it: some hundredths of the file.
///
/// # Errors
///
/// Fails if the file cannot be read, is no gzip file, damaged, or consists of several.
pub fn make_gzip_index(gzip: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut counted = Counted { inner: gzip, at: 0 };
    skip_header(&mut counted)?;
    let at = counted.at;
    let mut inflate = Inflate::new(counted.inner, at);
    let mut meta = vec![0; HEADER_BYTES];
    let mut entries = Vec::new();
    let mut count = 0;
    let (mut next, mut last) = (0, 0);
    loop {
        let boundary = inflate.boundary();
        if boundary.uncompressed - last > SPAN_MAX {
            return Err(invalid(
                "a part of it cannot be read without all that is before it",
            ));
        }
        if boundary.uncompressed >= next {
            let window = compressed(&inflate.window())?;
            entries.extend(entry(&boundary, wide(meta.len()), window.len()));
            meta.extend(window);
            count += 1;
            // As zran counts: the next is further away than this.
            next = boundary.uncompressed + SPAN_BYTES + 1;
            last = boundary.uncompressed;
            if count > POINTS_MAX {
                return Err(invalid("it is too long for an index"));
            }
        }
        if inflate.block()? {
            break;
        }
    }
    let mut trailer = [0; 8];
    inflate.rest(&mut trailer)?;
    let end = inflate.boundary();
    if end.uncompressed - last > SPAN_MAX {
        return Err(invalid(
            "a part of it cannot be read without all that is before it",
        ));
    }
    let [.., a, b, c, d] = trailer;
    let len = u64::from(u32::from_le_bytes([a, b, c, d]));
    if end.uncompressed & u64::from(u32::MAX) != len {
        return Err(invalid("its length is not what its trailer says"));
    }
    if !inflate.is_at_end()? {
        return Err(invalid("something follows its end"));
    }
    let start = wide(meta.len());
    let entries = compressed(&entries)?;
    meta.extend(&entries);
    let numbers = [
        (25, count),
        (33, end.compressed),
        (41, wide(meta.len())),
        (49, end.uncompressed),
        (313, start),
        (321, wide(entries.len())),
    ];
    write_header(&mut meta, &numbers);
    Ok(meta)
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a gzip file: {why}"))
}

fn write_header(meta: &mut [u8], numbers: &[(usize, u64)]) {
    put(meta, 0, MAGIC);
    // Version 1.0, windows compressed by zlib, at its level 6.
    put(meta, 8, &[1, 0, 1, 6]);
    put(meta, 13, &1_048_576_u32.to_le_bytes());
    put(meta, 17, &32_768_u32.to_le_bytes());
    put(meta, 21, &29_u32.to_le_bytes());
    for (at, number) in numbers {
        put(meta, *at, &number.to_le_bytes());
    }
    let sum = crc::raw(0, &meta[..CRC_AT]);
    put(meta, CRC_AT, &sum.to_le_bytes());
}

fn compressed(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(6));
    encoder.write_all(bytes)?;
    encoder.finish()
}

fn entry(boundary: &Boundary, window: u64, window_bytes: usize) -> Vec<u8> {
    let numbers = [boundary.uncompressed, boundary.compressed, window];
    let mut entry: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    entry.push(boundary.bits);
    // A window has some more than 32 KiB at worst.
    let len = u32::try_from(window_bytes).unwrap_or(u32::MAX);
    entry.extend(len.to_le_bytes());
    debug_assert_eq!(entry.len() as u64, ENTRY_BYTES);
    entry
}

/// Counts what is read.
struct Counted<R> {
    inner: R,
    at: u64,
}

impl<R: Read> Counted<R> {
    fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.inner.read_exact(&mut byte)?;
        self.at += 1;
        match self.at > GZIP_HEADER_MAX {
            true => Err(invalid("its header is too long")),
            false => Ok(byte[0]),
        }
    }

    fn skip(&mut self, bytes: u32) -> io::Result<()> {
        (0..bytes).try_for_each(|_| self.byte().map(drop))
    }
}

fn skip_header<R: Read>(gzip: &mut Counted<R>) -> io::Result<()> {
    if [gzip.byte()?, gzip.byte()?, gzip.byte()?] != [0x1f, 0x8b, 8] {
        return Err(invalid("it does not begin as one"));
    }
    let flags = gzip.byte()?;
    gzip.skip(6)?;
    if flags & HAS_EXTRA != 0 {
        let len = u16::from_le_bytes([gzip.byte()?, gzip.byte()?]);
        gzip.skip(len.into())?;
    }
    for flag in [HAS_NAME, HAS_COMMENT] {
        while flags & flag != 0 && gzip.byte()? != 0 {}
    }
    match flags & HAS_CRC {
        0 => Ok(()),
        _ => gzip.skip(2),
    }
}

const _: () = assert!(WINDOW_BYTES == 32_768);
