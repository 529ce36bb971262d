//! The journal: the writes of a layer since the last flush.
//!
//! It has two halves, in alternate chunks of the file. A flush switches to the other one, whose notes are in
//! the index by then. A half is not cleared: each note has the number of entries of the index when its half was
//! begun, and notes that are in the index already are ignored. It is never synced: it is for killed
//! processes, and after a loss of power it may contain anything, which checksums detect.

use crate::crc;
use crate::error::{Doing, Result};
use crate::num::{SECTOR, put, size, u32_at, u64_at, wide};
use crate::segment::{Content, SEGMENT_BYTES, Segment};
use crate::storage::{Storage, read_vec};
use crate::uuid::Uuid;

/// Bytes of a chunk: the note of the longest write fits.
const CHUNK_BYTES: u64 = 36 << 10;
/// Bytes of a half. A write that finds it full flushes first.
const HALF_BYTES: u64 = 112 * CHUNK_BYTES;
/// Notes begin at multiples of this.
const UNIT: u64 = 32;
const NOTE_BYTES: usize = 48;
const MAGIC: u32 = 0x4a4c_4f59;

/// Where notes are written.
#[derive(Debug)]
pub(super) struct Journal {
    half: u64,
    /// The place of the next note, within the half.
    at: u64,
    /// Bytes of the half that are used, or reserved for writes in progress.
    promised: u64,
    /// Entries of the index when the half was begun.
    base: u64,
    /// Notes of the half.
    count: u32,
    /// Binds notes to their layer.
    seed: u32,
}

/// A note with its place.
pub(super) struct Note {
    bytes: Vec<u8>,
    at: u64,
}

impl Journal {
    pub(super) fn new(uuid: Uuid, base: u64) -> Self {
        Self {
            half: 0,
            at: 0,
            promised: 0,
            base,
            count: 0,
            seed: crc::raw(0, &uuid.bytes()),
        }
    }

    /// Begins the other half.
    pub(super) fn switch(&mut self, base: u64) {
        self.half ^= 1;
        self.at = 0;
        self.promised = 0;
        self.base = base;
        self.count = 0;
    }

    /// Reserves space for the notes of so many sectors in so many segments, if there is enough.
    pub(super) fn promise(&mut self, sectors: u64, segments: u64) -> bool {
        // Twice, since a note that does not fit into its chunk goes to the next one.
        let bytes = 2 * (segments * (NOTE_BYTES as u64 + UNIT) + sectors * 4);
        let fits = self.promised + bytes <= HALF_BYTES;
        if fits {
            self.promised += bytes;
        }
        fits
    }

    /// Assigns a place to a segment's note; `sums` are those of its sectors, none for zeros.
    pub(super) fn note(&mut self, segment: Segment, sums: &[u32]) -> Note {
        let len = NOTE_BYTES + sums.len() * 4;
        let mut bytes = vec![0; size(wide(len).next_multiple_of(UNIT))];
        put(&mut bytes, 0, &MAGIC.to_le_bytes());
        put(&mut bytes, 8, &self.base.to_le_bytes());
        put(&mut bytes, 16, &self.count.to_le_bytes());
        let sum_count = u32::try_from(sums.len()).unwrap_or(0);
        put(&mut bytes, 20, &sum_count.to_le_bytes());
        put(&mut bytes, 24, &segment.encode());
        for (number, sum) in sums.iter().enumerate() {
            put(&mut bytes, NOTE_BYTES + number * 4, &sum.to_le_bytes());
        }
        let sum = crc::raw(self.seed, &bytes[8..len]);
        put(&mut bytes, 4, &sum.to_le_bytes());
        if self.at % CHUNK_BYTES + wide(bytes.len()) > CHUNK_BYTES {
            self.at = self.at.next_multiple_of(CHUNK_BYTES);
        }
        let chunk = self.at / CHUNK_BYTES * 2 + self.half;
        let at = chunk * CHUNK_BYTES + self.at % CHUNK_BYTES;
        self.at += wide(bytes.len());
        self.count += 1;
        Note { bytes, at }
    }
}

impl Note {
    pub(super) fn write(&self, to: &dyn Storage) -> Result<()> {
        to.write_at(&self.bytes, self.at).doing("write the journal")
    }
}

/// Returns the checksums of sectors.
pub(super) fn sums(data: &[u8]) -> Vec<u32> {
    data.chunks(size(SECTOR)).map(sum).collect()
}

/// Returns the checksum of a sector. Those of zeros would be zero in a sector never written, too.
pub(super) fn sum(sector: &[u8]) -> u32 {
    crc::standard(sector)
}

/// A note that was read.
#[derive(Debug)]
pub(super) struct Found {
    base: u64,
    number: u32,
    pub(super) segment: Segment,
    pub(super) sums: Vec<u32>,
}

/// Reads the notes that are missing in an index of so many entries, in order.
///
/// The second result is how many entries the index must have from now on, so that they are not
/// read again.
pub(super) fn replay(journal: &dyn Storage, uuid: Uuid, entries: u64) -> Result<(Vec<Found>, u64)> {
    let seed = crc::raw(0, &uuid.bytes());
    let bytes = journal
        .size()
        .doing("get the size of the journal")?
        .min(2 * HALF_BYTES);
    let bytes = read_vec(journal, 0, bytes, "read the journal")?;
    let half = |half: usize| {
        let chunks = bytes.chunks(size(CHUNK_BYTES)).skip(half).step_by(2);
        latest(chunks.flat_map(|chunk| scan(chunk, seed)).collect())
    };
    let mut halves = vec![half(0), half(1)];
    halves.retain(|notes| !notes.is_empty());
    halves.sort_by_key(|notes| notes[0].base);
    let mut next = entries;
    let mut missing = Vec::new();
    for notes in halves {
        let base = notes[0].base;
        let end = notes
            .last()
            .map_or(0, |last| base + u64::from(last.number) + 1);
        // A flush may have written a part of them; to do it again changes nothing.
        if base <= next && next < end {
            next = end;
            missing.extend(notes);
        }
    }
    Ok((missing, next))
}

fn scan(chunk: &[u8], seed: u32) -> Vec<Found> {
    let mut found = Vec::new();
    let mut at = 0;
    while at + NOTE_BYTES <= chunk.len() {
        match decode(&chunk[at..], seed) {
            Some(note) => {
                let len = wide(NOTE_BYTES + note.sums.len() * 4).next_multiple_of(UNIT);
                at += size(len);
                found.push(note);
            }
            None => at += size(UNIT),
        }
    }
    found
}

/// Keeps the notes of the latest time that the half was begun.
fn latest(mut notes: Vec<Found>) -> Vec<Found> {
    let base = notes.iter().map(|note| note.base).max().unwrap_or(0);
    notes.retain(|note| note.base == base);
    notes.sort_by_key(|note| note.number);
    notes
}

fn decode(bytes: &[u8], seed: u32) -> Option<Found> {
    let count = size(u64::from(u32_at(bytes, 20)));
    if u32_at(bytes, 0) != MAGIC || count > size(CHUNK_BYTES) {
        return None;
    }
    let len = NOTE_BYTES + count * 4;
    let body = bytes.get(8..len)?;
    let segment = Segment::decode(&bytes[24..24 + SEGMENT_BYTES]);
    let counts = match segment.content() {
        Content::Data => wide(count) == segment.sectors(),
        Content::Zeros => count == 0,
    };
    if crc::raw(seed, body) != u32_at(bytes, 4) || !counts || segment.is_padding() {
        return None;
    }
    Some(Found {
        base: u64_at(bytes, 8),
        number: u32_at(bytes, 16),
        segment,
        sums: (0..count)
            .map(|number| u32_at(bytes, NOTE_BYTES + number * 4))
            .collect(),
    })
}
