//! `gzip.meta`: places in a gzip file from which it can be decompressed.

use std::io::Read;

use flate2::read::ZlibDecoder;

use crate::crc;
use crate::error::{Doing, LsmtError, Result, at_most, rule};
use crate::num::{array_at, size, u32_at};
use crate::storage::{ReadAt, read_vec};

pub(super) const MAGIC: &[u8; 8] = b"ddgzidx\0";
pub(super) const HEADER_BYTES: usize = 333;
/// The header's last four bytes are the checksum of the others.
pub(super) const CRC_AT: usize = 329;
/// Bytes of the window of deflate.
pub(super) const WINDOW_BYTES: usize = 32768;
pub(super) const ENTRY_BYTES: u64 = 29;
/// Access points of the largest index: 1 TiB, at the span of 1 MiB that overlaybd has.
pub(super) const POINTS_MAX: u64 = 1 << 20;
/// Uncompressed bytes between access points, at most: a read decompresses all from the point before it. Blocks of deflate,
/// where points can be, are mostly shorter than 1 MiB.
pub(super) const SPAN_MAX: u64 = 256 << 20;
/// Compressed bytes of a window: what zlib makes of 32 KiB at worst, with room to spare.
const WINDOW_STORED_MAX: u64 = 1 << 16;

/// A place in a gzip file from which it can be decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessPoint {
    /// The uncompressed byte that comes first.
    pub uncompressed: u64,
    /// The first compressed byte that is whole.
    pub compressed: u64,
    /// How many bits of the byte before it belong to the data, too.
    pub bits: u8,
    /// Where the compressed window is in the index.
    window: u64,
    window_bytes: u32,
}

/// The index of a gzip file; it reads windows from where it was opened.
pub struct GzipIndex {
    meta: Box<dyn ReadAt>,
    points: Vec<AccessPoint>,
    gzip_size: u64,
    uncompressed_size: u64,
    zlib: bool,
}

impl std::fmt::Debug for GzipIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GzipIndex")
            .field("points", &self.points.len())
            .field("uncompressed_size", &self.uncompressed_size)
            .finish_non_exhaustive()
    }
}

fn number(bytes: &[u8], at: usize) -> Result<u64> {
    match u64::try_from(i64::from_le_bytes(array_at(bytes, at))) {
        Ok(number) => Ok(number),
        Err(_) => rule("gzip index", "a number is negative"),
    }
}

impl GzipIndex {
    /// Opens one.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be read, is damaged, or breaks a rule of the format.
    pub fn open(meta: impl ReadAt + 'static) -> Result<Self> {
        let bytes = meta.size().doing("get the size of a gzip index")?;
        if bytes < HEADER_BYTES as u64 {
            return rule("gzip index", "it is shorter than its header");
        }
        let header = read_vec(&meta, 0, HEADER_BYTES as u64, "read a gzip index")?;
        if !header.starts_with(MAGIC) {
            return Err(LsmtError::Magic { kind: "gzip index" });
        }
        if crc::raw(0, &header[..CRC_AT]) != u32_at(&header, CRC_AT) {
            let part = "gzip index";
            return Err(LsmtError::Checksum { part, at: 0 });
        }
        if header[8] != 1 || u32_at(&header, 17) != 32768 || u32_at(&header, 21) != 29 {
            let what = "this version of a gzip index";
            return Err(LsmtError::Unsupported { what });
        }
        let count = number(&header, 25)?;
        at_most("number of access points", count, POINTS_MAX)?;
        let (start, stored) = (number(&header, 313)?, number(&header, 321)?);
        if start.checked_add(stored).is_none_or(|end| end > bytes) {
            return rule("gzip index", "its entries go past its end");
        }
        let index = Self {
            points: points(&meta, start, stored, count)?,
            meta: Box::new(meta),
            gzip_size: number(&header, 33)?,
            uncompressed_size: number(&header, 49)?,
            zlib: header[10] == 1,
        };
        index.check(bytes)?;
        Ok(index)
    }

    fn check(&self, bytes: u64) -> Result<()> {
        const SPAN: &str = "bytes between two access points";
        let mut before = 0;
        for point in &self.points {
            let window_end = point.window.checked_add(u64::from(point.window_bytes));
            if point.uncompressed < before
                || point.uncompressed > self.uncompressed_size
                || point.compressed > self.gzip_size
                || point.bits > 7
                || point.bits > 0 && point.compressed == 0
                || window_end.is_none_or(|end| end > bytes)
            {
                return rule(
                    "gzip index",
                    "an access point is out of order or out of bounds",
                );
            }
            at_most(
                "length of a window",
                point.window_bytes.into(),
                WINDOW_STORED_MAX,
            )?;
            at_most(SPAN, point.uncompressed - before, SPAN_MAX)?;
            before = point.uncompressed;
        }
        at_most(SPAN, self.uncompressed_size - before, SPAN_MAX)?;
        match self.points.first() {
            Some(first) if first.uncompressed > 0 => {
                rule("gzip index", "it does not begin at the file's begin")
            }
            None if self.uncompressed_size > 0 => rule("gzip index", "it has no access point"),
            _ => Ok(()),
        }
    }

    /// Returns the access points, in order.
    pub fn points(&self) -> &[AccessPoint] {
        &self.points
    }

    /// Returns how many bytes the gzip file has.
    pub fn gzip_size(&self) -> u64 {
        self.gzip_size
    }

    /// Returns how many bytes it has uncompressed.
    pub fn uncompressed_size(&self) -> u64 {
        self.uncompressed_size
    }

    /// Returns the last access point at or before an uncompressed byte, and where the next one is in
    /// the compressed file.
    pub(super) fn point_for(&self, offset: u64) -> Option<(AccessPoint, u64)> {
        let behind = self
            .points
            .partition_point(|point| point.uncompressed <= offset);
        let end = self
            .points
            .get(behind)
            .map_or(self.gzip_size, |next| next.compressed);
        Some((*self.points.get(behind.checked_sub(1)?)?, end))
    }

    /// Returns the bytes before an access point, as many as its data may refer to.
    pub(super) fn window(&self, point: &AccessPoint) -> Result<Vec<u8>> {
        let len = u64::from(point.window_bytes);
        let stored = read_vec(&*self.meta, point.window, len, "read a gzip index's window")?;
        if !self.zlib || stored.is_empty() {
            return Ok(stored);
        }
        let mut window = Vec::new();
        let decoder = ZlibDecoder::new(&*stored);
        let read = decoder
            .take(WINDOW_BYTES as u64 + 1)
            .read_to_end(&mut window);
        match read {
            Ok(_) if window.len() <= WINDOW_BYTES => Ok(window),
            _ => Err(LsmtError::Compression {
                part: "window of a gzip index",
                at: point.window,
            }),
        }
    }
}

/// Reads the compressed array of entries.
fn points(meta: &impl ReadAt, start: u64, stored: u64, count: u64) -> Result<Vec<AccessPoint>> {
    let whole = count * ENTRY_BYTES;
    at_most(
        "compressed length of the entries",
        stored,
        whole + (whole >> 3) + 1024,
    )?;
    let stored = read_vec(meta, start, stored, "read a gzip index")?;
    let mut entries = Vec::new();
    ZlibDecoder::new(&*stored)
        .take(whole + 1)
        .read_to_end(&mut entries)
        .map_err(|_| LsmtError::Compression {
            part: "gzip index",
            at: start,
        })?;
    if entries.len() != size(whole) {
        return rule(
            "gzip index",
            "it has another number of entries than its header says",
        );
    }
    let decode = |entry: &[u8]| {
        Ok(AccessPoint {
            uncompressed: number(entry, 0)?,
            compressed: number(entry, 8)?,
            window: number(entry, 16)?,
            bits: entry[24],
            window_bytes: u32_at(entry, 25),
        })
    };
    entries
        .chunks_exact(size(ENTRY_BYTES))
        .map(decode)
        .collect()
}
