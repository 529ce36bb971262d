//! Chunks on a disk, in segments: docs/nicfetch-store-format.md.
//!
//! The index of the store is in memory; its lock is not held during I/O. A write also holds the
//! writer's lock, so that one thread writes at a time; reads do not.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::format::{Line, OVERHEAD};
use super::segment::Segment;
use super::steps::Steps;
use super::{
    CHUNK_MAX, ChunkId, ChunkStore, Class, Codec, PutError, PutOutcome, StoreStats, Stored,
};
use crate::policy::{Fingerprint as _, Item, Limit, PolicyKind, Residents};

mod compact;
mod open;
#[cfg(test)]
mod tests;
mod verify;
mod write;

pub use compact::GcReport;
pub use open::OpenStoreError;
pub use verify::VerifyReport;
use write::Writer;

/// Segments that are kept free of live records, so that there is always room to compact.
const SPARE_SEGMENTS: u64 = 3;

/// How a store behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// Bytes that the files of the store may take: at least 4 segments.
    pub budget_bytes: u64,
    /// Chunks that it may have; each takes some 150 bytes of memory.
    pub chunks_max: usize,
    /// Bytes of a segment: at least 256 KiB.
    pub segment_bytes: u32,
    /// What goes when room is needed.
    pub policy: PolicyKind,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            budget_bytes: 32 << 30, // of the some 40 GB that a BlueField has
            chunks_max: 2_000_000,
            segment_bytes: 64 << 20,
            policy: PolicyKind::default(),
        }
    }
}

impl StoreConfig {
    /// Returns how much may live: the rest is for dead records, and for compacting them.
    const fn limit(&self) -> Limit {
        let spare = SPARE_SEGMENTS * self.segment_bytes as u64;
        Limit {
            bytes: self.budget_bytes.saturating_sub(spare) / 8 * 7,
            entries: self.chunks_max,
        }
    }
}

/// Where the record of a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecordLocation {
    number: u64,
    offset: u32,
    stored_len: u32,
    raw_len: u32,
    codec: Codec,
}

impl RecordLocation {
    const fn new(number: u64, line: &Line) -> Self {
        Self {
            number,
            offset: line.offset,
            stored_len: line.stored_len,
            raw_len: line.raw_len,
            codec: line.codec,
        }
    }

    const fn line(&self, id: ChunkId) -> Line {
        Line {
            id,
            offset: self.offset,
            stored_len: self.stored_len,
            raw_len: self.raw_len,
            codec: self.codec,
        }
    }

    /// Returns what the record counts in the budget.
    const fn cost(&self) -> u32 {
        OVERHEAD + self.stored_len
    }
}

/// A segment, and how much of it is alive.
#[derive(Debug)]
struct Held {
    segment: Segment,
    /// Bytes of the file.
    len: u64,
    /// Costs of the records that are alive.
    live_bytes: u64,
}

/// What is where.
#[derive(Debug)]
struct StoreState {
    residents: Residents<ChunkId, RecordLocation>,
    segments: BTreeMap<u64, Held>,
    stored_bytes: u64,
    raw_bytes: u64,
}

impl StoreState {
    /// Lets a record in that is on the disk, and returns how many had to go for it; `None` if there
    /// is no room, or the chunk is here.
    fn admit(&mut self, id: ChunkId, place: RecordLocation, class: Class) -> Option<u64> {
        let mut gone = Vec::new();
        let item = Item {
            fingerprint: id.fingerprint(),
            bytes: place.cost(),
            class,
        };
        if !self
            .residents
            .admit(id, place, item, &mut |_, place| gone.push(place))
        {
            return None;
        }
        self.count(&place);
        gone.iter().for_each(|place| self.discount(place));
        Some(gone.len() as u64)
    }

    /// Takes a chunk out, if it is still there.
    fn forget(&mut self, id: &ChunkId, place: &RecordLocation) -> bool {
        let here = self.residents.get(id) == Some(place);
        if here {
            self.residents.remove(id);
            self.discount(place);
        }
        here
    }

    /// Notes that a chunk was copied, if it is still where it was.
    fn relocate(&mut self, id: &ChunkId, from: &RecordLocation, to: RecordLocation) {
        match self.residents.get_mut(id) {
            Some(place) if place == from => *place = to,
            _ => return,
        }
        self.discount(from);
        self.count(&to);
    }

    fn count(&mut self, place: &RecordLocation) {
        self.stored_bytes += u64::from(place.stored_len);
        self.raw_bytes += u64::from(place.raw_len);
        if let Some(held) = self.segments.get_mut(&place.number) {
            held.live_bytes += u64::from(place.cost());
        }
    }

    fn discount(&mut self, place: &RecordLocation) {
        self.stored_bytes -= u64::from(place.stored_len);
        self.raw_bytes -= u64::from(place.raw_len);
        if let Some(held) = self.segments.get_mut(&place.number) {
            held.live_bytes -= u64::from(place.cost());
        }
    }

    fn disk_bytes(&self) -> u64 {
        self.segments.values().map(|held| held.len).sum()
    }
}

/// What happened since the store was opened.
#[derive(Debug, Default)]
struct Counts {
    hits: AtomicU64,
    misses: AtomicU64,
    damaged: AtomicU64,
    evicted: AtomicU64,
    refused: AtomicU64,
}

/// A store of chunks in a directory, which it has for itself.
#[derive(Debug)]
pub struct DiskStore {
    /// Where the segments are.
    dir: PathBuf,
    config: StoreConfig,
    steps: Steps,
    state: Mutex<StoreState>,
    writer: Mutex<Writer>,
    counts: Counts,
    /// Locked as long as this lives.
    _lock: File,
}

impl DiskStore {
    /// Returns the directory of the segments.
    #[must_use]
    pub fn segments_dir(&self) -> &Path {
        &self.dir
    }

    /// Returns whether what is pinned leaves half of the room to what is not.
    #[must_use]
    pub fn leaves_half(&self) -> bool {
        let limit = self.config.limit();
        let state = self.state.lock();
        let (bytes, entries) = state.residents.pinned_room();
        bytes <= limit.bytes / 2 && entries <= limit.entries / 2
    }

    /// Returns whether what is pinned would have room if the files might take `budget_bytes`.
    #[must_use]
    pub fn pins_fit(&self, budget_bytes: u64) -> bool {
        let config = StoreConfig {
            budget_bytes,
            ..self.config
        };
        let limit = config.limit();
        let (bytes, entries) = self.state.lock().residents.pinned_room();
        bytes <= limit.bytes && entries <= limit.entries
    }

    /// Returns where a chunk is, and notes that it was asked for.
    fn find(&self, id: &ChunkId, class: Class) -> Option<(RecordLocation, Segment)> {
        let mut state = self.state.lock();
        state.residents.hit(id, class);
        let place = *state.residents.get(id)?;
        let segment = state.segments.get(&place.number)?.segment.clone();
        Some((place, segment))
    }

    /// Forgets a chunk whose record turned out to be damaged.
    fn lose(&self, id: &ChunkId, place: &RecordLocation) {
        if self.state.lock().forget(id, place) {
            self.counts.damaged.fetch_add(1, Relaxed);
            log::warn!("chunk {id} is damaged in segment {:016x}", place.number);
        }
    }
}

impl ChunkStore for DiskStore {
    fn get(&self, id: &ChunkId, class: Class) -> Option<Stored> {
        let stored = self.find(id, class).and_then(|(place, segment)| {
            let stored = segment.read(&place.line(*id));
            if stored.is_none() {
                self.lose(id, &place);
            }
            stored
        });
        let count = match stored {
            Some(_) => &self.counts.hits,
            None => &self.counts.misses,
        };
        count.fetch_add(1, Relaxed);
        stored
    }

    fn get_now(&self, id: &ChunkId, class: Class) -> Option<Stored> {
        let (place, segment) = {
            let state = self.state.lock();
            let place = *state.residents.get(id)?;
            (place, state.segments.get(&place.number)?.segment.clone())
        };
        let stored = segment.read_now(&place.line(*id))?;
        self.state.lock().residents.hit(id, class);
        self.counts.hits.fetch_add(1, Relaxed);
        Some(stored)
    }

    fn note_use(&self, id: &ChunkId, class: Class) {
        self.state.lock().residents.hit(id, class);
        self.counts.hits.fetch_add(1, Relaxed);
    }

    fn contains(&self, id: &ChunkId) -> bool {
        self.state.lock().residents.get(id).is_some()
    }

    fn put(&self, id: &ChunkId, raw: &[u8], class: Class) -> Result<PutOutcome, PutError> {
        let found = ChunkId::of(raw);
        if found != *id {
            return Err(PutError::WrongId { id: *id, found });
        }
        if self.contains(id) {
            return Ok(PutOutcome::Present);
        }
        self.put_stored(id, &Stored::pack(raw)?, class)
    }

    fn put_stored(
        &self,
        id: &ChunkId,
        stored: &Stored,
        class: Class,
    ) -> Result<PutOutcome, PutError> {
        if self.contains(id) {
            return Ok(PutOutcome::Present);
        }
        let raw_len = stored.raw_len as usize;
        if !(1..=CHUNK_MAX).contains(&raw_len) || stored.bytes.len() > raw_len {
            return Err(PutError::Length { bytes: raw_len });
        }
        let mut writer = self.writer.lock();
        // Another one may have put it meanwhile.
        if self.contains(id) {
            return Ok(PutOutcome::Present);
        }
        let kept = self.keep(&mut writer, id, stored, class);
        if kept.is_err() {
            self.counts.refused.fetch_add(1, Relaxed);
        }
        kept.map(|()| PutOutcome::Stored)
    }

    fn pin(&self, ids: &[ChunkId]) {
        let mut state = self.state.lock();
        ids.iter().for_each(|id| state.residents.pin(id));
    }

    fn unpin(&self, ids: &[ChunkId]) {
        let mut state = self.state.lock();
        ids.iter().for_each(|id| state.residents.unpin(id));
    }

    fn stats(&self) -> StoreStats {
        let state = self.state.lock();
        StoreStats {
            chunks: state.residents.len() as u64,
            stored_bytes: state.stored_bytes,
            raw_bytes: state.raw_bytes,
            disk_bytes: state.disk_bytes(),
            budget_bytes: self.config.budget_bytes,
            pinned: state.residents.pinned() as u64,
            hits: self.counts.hits.load(Relaxed),
            misses: self.counts.misses.load(Relaxed),
            damaged: self.counts.damaged.load(Relaxed),
            evicted: self.counts.evicted.load(Relaxed),
            refused: self.counts.refused.load(Relaxed),
        }
    }
}
