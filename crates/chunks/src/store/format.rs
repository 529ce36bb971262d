//! The bytes of a segment: docs/nicfetch-store-format.md, sections 3 to 5. No I/O.

use super::{CHUNK_MAX, ChunkId, Codec, Stored};

const SEGMENT_MAGIC: [u8; 8] = *b"\x89YOLONC\n";
const RECORD_MAGIC: [u8; 4] = *b"\x89NCR";
const TAIL_MAGIC: [u8; 8] = *b"\x89YOLONS\n";
const VERSION: u32 = 1;

/// Bytes of a segment's header.
pub(super) const HEADER: usize = 64;
/// Bytes of a record's head.
pub(super) const HEAD: usize = 80;
/// Bytes of a record's line in the table.
pub(super) const LINE: usize = 48;
/// Bytes of the tail.
pub(super) const TAIL: usize = 64;
/// Records that a segment has at most.
pub(super) const RECORDS_MAX: usize = 65_536;

/// What a record costs besides its stored bytes.
pub(super) const OVERHEAD: u32 = 128;
const _: () = assert!(OVERHEAD as usize == HEAD + LINE);

/// Where the first record is.
pub(super) const FIRST: u32 = 64;
const _: () = assert!(FIRST as usize == HEADER);

/// Why bytes cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// They were changed, or never were a part of a segment.
    #[error("it is damaged")]
    Damaged,
    /// A later nicfetch wrote them.
    #[error("it has version {found}; this program knows {VERSION}")]
    Version {
        /// The version found.
        found: u32,
    },
}

/// The place of a record, and its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) id: ChunkId,
    pub(super) offset: u32,
    pub(super) stored_len: u32,
    pub(super) raw_len: u32,
    pub(super) codec: Codec,
}

impl Line {
    /// Returns the bytes of the record.
    pub(super) const fn record_len(&self) -> u64 {
        HEAD as u64 + self.stored_len as u64
    }

    /// Returns where the record ends.
    pub(super) const fn end(&self) -> u64 {
        self.offset as u64 + self.record_len()
    }

    /// Lengths that a record may have.
    fn is_possible(&self) -> bool {
        let raw = (1..=CHUNK_MAX).contains(&(self.raw_len as usize));
        let stored = match self.codec {
            Codec::Raw => self.stored_len == self.raw_len,
            Codec::Zstd => (1..=self.raw_len).contains(&self.stored_len),
        };
        raw && stored
    }
}

/// Takes fields off the front of bytes that are known to be long enough.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self
            .0
            .split_first_chunk()
            .map_or(([0; N], &[][..]), |(f, r)| (*f, r));
        self.0 = rest;
        field
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}

fn hash16(parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    let mut hash = [0; 16];
    hash.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    hash
}

/// Returns the header of segment `number`.
pub(super) fn header(number: u64) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[..8].copy_from_slice(&SEGMENT_MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[16..24].copy_from_slice(&number.to_le_bytes());
    let hash = hash16(&[&out[..48]]);
    out[48..].copy_from_slice(&hash);
    out
}

/// Checks a header.
pub(super) fn check_header(bytes: &[u8; HEADER], number: u64) -> Result<(), SegmentError> {
    let mut fields = Fields(bytes);
    let (magic, found): ([u8; 8], u32) = (fields.array(), fields.u32());
    let whole = hash16(&[&bytes[..48]]) == bytes[48..];
    if magic == SEGMENT_MAGIC && found != VERSION && whole {
        return Err(SegmentError::Version { found });
    }
    if *bytes == header(number) {
        Ok(())
    } else {
        Err(SegmentError::Damaged)
    }
}

/// Returns a record: head and stored bytes.
pub(super) fn record(number: u64, offset: u32, id: &ChunkId, stored: &Stored) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD + stored.bytes.len());
    out.extend_from_slice(&RECORD_MAGIC);
    out.extend_from_slice(&[stored.codec as u8, 0, 0, 0]);
    out.extend_from_slice(&stored.raw_len.to_le_bytes());
    // A stored chunk is never longer than a raw one.
    let stored_len = u32::try_from(stored.bytes.len()).unwrap_or(0);
    out.extend_from_slice(&stored_len.to_le_bytes());
    out.extend_from_slice(&id.0);
    out.extend_from_slice(&hash16(&[&stored.bytes]));
    out.extend_from_slice(&head_hash(number, offset, &out));
    out.extend_from_slice(&stored.bytes);
    out
}

fn head_hash(number: u64, offset: u32, head: &[u8]) -> [u8; 16] {
    hash16(&[
        &number.to_le_bytes(),
        &u64::from(offset).to_le_bytes(),
        head,
    ])
}

/// Reads the head of the record at `offset`; of its stored bytes, nothing is known yet.
pub(super) fn parse_head(
    number: u64,
    offset: u32,
    head: &[u8; HEAD],
) -> Result<Line, SegmentError> {
    let mut fields = Fields(head);
    let (magic, codec, zero): ([u8; 4], [u8; 1], [u8; 3]) =
        (fields.array(), fields.array(), fields.array());
    let (raw_len, stored_len) = (fields.u32(), fields.u32());
    let id = ChunkId(fields.array());
    let codec = Codec::from_number(codec[0]).ok_or(SegmentError::Damaged)?;
    let line = Line {
        id,
        offset,
        stored_len,
        raw_len,
        codec,
    };
    let whole = head_hash(number, offset, &head[..64]) == head[64..];
    if magic == RECORD_MAGIC && zero == [0; 3] && whole && line.is_possible() {
        Ok(line)
    } else {
        Err(SegmentError::Damaged)
    }
}

/// Returns the chunk of a record with this head and bytes, if it matches `line`
/// and is not damaged.
pub(super) fn parse_record(
    number: u64,
    line: &Line,
    head: &[u8; HEAD],
    bytes: Vec<u8>,
) -> Option<Stored> {
    let found = parse_head(number, line.offset, head).ok()?;
    if found != *line || hash16(&[&bytes]) != head[48..64] {
        return None;
    }
    Some(Stored {
        codec: line.codec,
        raw_len: line.raw_len,
        bytes,
    })
}

/// Returns table and tail for records that end at `end`.
pub(super) fn seal(number: u64, end: u32, lines: &[Line]) -> Vec<u8> {
    let mut out = Vec::with_capacity(LINE * lines.len() + TAIL);
    for line in lines {
        out.extend_from_slice(&line.id.0);
        for field in [line.offset, line.stored_len, line.raw_len] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&[line.codec as u8, 0, 0, 0]);
    }
    let table = hash16(&[&out]);
    let start = out.len();
    out.extend_from_slice(&TAIL_MAGIC);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&u64::from(end).to_le_bytes());
    out.extend_from_slice(&(lines.len() as u64).to_le_bytes());
    out.extend_from_slice(&table);
    out.extend_from_slice(&hash16(&[&out[start..]]));
    out
}

/// The description of a table in its tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tail {
    /// Where the records end, and the table begins.
    pub(super) end: u32,
    /// How many lines it has.
    pub(super) lines: usize,
    hash: [u8; 16],
}

/// Reads the tail of a file of `file_len` bytes.
pub(super) fn parse_tail(number: u64, file_len: u64, tail: &[u8; TAIL]) -> Option<Tail> {
    let mut fields = Fields(tail);
    let (magic, found): ([u8; 8], u64) = (fields.array(), fields.u64());
    let (end, lines, hash) = (fields.u64(), fields.u64(), fields.array());
    let whole = hash16(&[&tail[..48]]) == tail[48..];
    if magic != TAIL_MAGIC || found != number || !whole || lines > RECORDS_MAX as u64 {
        return None;
    }
    let (end, lines) = (u32::try_from(end).ok()?, usize::try_from(lines).ok()?);
    let wanted = u64::from(end) + (lines * LINE + TAIL) as u64;
    (wanted == file_len).then_some(Tail { end, lines, hash })
}

/// Reads the table that a tail describes: lines in order, without overlaps.
pub(super) fn parse_table(tail: &Tail, table: &[u8]) -> Option<Vec<Line>> {
    if hash16(&[table]) != tail.hash {
        return None;
    }
    let mut end = u64::from(FIRST);
    let lines = table.as_chunks::<LINE>().0.iter().map(|bytes| {
        let mut fields = Fields(bytes);
        let id = ChunkId(fields.array());
        let (offset, stored_len, raw_len) = (fields.u32(), fields.u32(), fields.u32());
        let codec = Codec::from_number(fields.array::<1>()[0])?;
        let line = Line {
            id,
            offset,
            stored_len,
            raw_len,
            codec,
        };
        let fits = u64::from(offset) >= end && line.end() <= u64::from(tail.end);
        end = line.end();
        (fits && fields.array() == [0; 3] && line.is_possible()).then_some(line)
    });
    lines.collect()
}
