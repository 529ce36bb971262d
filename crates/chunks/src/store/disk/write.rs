//! Appends records; seals a segment that is full, begins the next, and abandons one when the disk is
//! full.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{ChunkId, Class, DiskStore, Held, PutError, RecordLocation, Stored};
use crate::store::format::{self, FIRST, LINE, Line, OVERHEAD, RECORDS_MAX, TAIL};
use crate::store::segment::{Segment, path_of};

/// Segments that are given up for one put, at most.
const GIVE_UPS: usize = 2;

/// The writer of the store.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) active: Option<Active>,
    /// The number of the next segment.
    pub(super) next: u64,
    /// Whether records are being copied to make room: then no more room is made for them.
    pub(super) compacting: bool,
}

/// The segment that is written.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) segment: Segment,
    pub(super) end: u32,
    pub(super) lines: Vec<Line>,
}

impl Active {
    /// Returns whether there is room for a record, its line, and the tail.
    fn has_room(&self, record_len: u64, segment_bytes: u32) -> bool {
        let table = (self.lines.len() + 1) * LINE + TAIL;
        let bytes = u64::from(self.end) + record_len + table as u64;
        self.lines.len() < RECORDS_MAX && bytes <= u64::from(segment_bytes)
    }
}

/// A file that could not be changed.
#[derive(Debug)]
pub(super) struct Failed {
    path: PathBuf,
    source: io::Error,
}

impl Failed {
    pub(super) const fn new(path: PathBuf, source: io::Error) -> Self {
        Self { path, source }
    }

    fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self.source.kind(), StorageFull | QuotaExceeded)
    }
}

impl From<Failed> for PutError {
    fn from(failed: Failed) -> Self {
        if failed.is_full() {
            return Self::Full;
        }
        let Failed { path, source } = failed;
        Self::Io { path, source }
    }
}

impl DiskStore {
    /// Writes a chunk that is not here, and lets it in.
    pub(super) fn keep(
        &self,
        writer: &mut Writer,
        id: &ChunkId,
        stored: &Stored,
        class: Class,
    ) -> Result<(), PutError> {
        // A stored chunk is never longer than a raw one.
        let cost = OVERHEAD.saturating_add(u32::try_from(stored.bytes.len()).unwrap_or(u32::MAX));
        if !self.state.lock().residents.has_room(cost) {
            return Err(PutError::Full);
        }
        let place = self.append_anyhow(writer, id, stored)?;
        // Somebody may have pinned the rest of the room meanwhile: then the record is dead.
        let evicted = self.state.lock().admit(*id, place, class);
        let evicted = evicted.ok_or(PutError::Full)?;
        self.counts.evicted.fetch_add(evicted, Relaxed);
        Ok(())
    }

    /// Appends; when the disk is full, gives up what is there.
    fn append_anyhow(
        &self,
        writer: &mut Writer,
        id: &ChunkId,
        stored: &Stored,
    ) -> Result<RecordLocation, PutError> {
        for _ in 0..GIVE_UPS {
            match self.append(writer, id, stored) {
                Err(failed) if failed.is_full() && self.give_up(writer) => {}
                other => return other.map_err(PutError::from),
            }
        }
        self.append(writer, id, stored).map_err(PutError::from)
    }

    /// Appends a record.
    pub(super) fn append(
        &self,
        writer: &mut Writer,
        id: &ChunkId,
        stored: &Stored,
    ) -> Result<RecordLocation, Failed> {
        let record_len = format::HEAD as u64 + stored.bytes.len() as u64;
        let full = |active: &Active| !active.has_room(record_len, self.config.segment_bytes);
        if writer.active.as_ref().is_none_or(full) {
            self.seal(writer)?;
            self.begin(writer)?;
            self.make_room(writer);
        }
        // Making room fills the new segment, and may fill it up.
        if writer.active.as_ref().is_none_or(full) {
            self.seal(writer)?;
        }
        let active = match &mut writer.active {
            Some(active) => active,
            None => self.begin(writer)?,
        };
        let (number, offset) = (active.segment.number, active.end);
        let record = format::record(number, offset, id, stored);
        let path = path_of(&self.dir, number);
        let file = &active.segment.file;
        let written = self.steps.write(file, &path, &record, u64::from(offset));
        if let Err(source) = written {
            // What was written of it takes room; if it cannot be cut off, the next one is put over it.
            let _cut = self.steps.cut(file, u64::from(offset));
            return Err(Failed { path, source });
        }
        let line = Line {
            id: *id,
            offset,
            stored_len: u32::try_from(stored.bytes.len()).unwrap_or(0),
            raw_len: stored.raw_len,
            codec: stored.codec,
        };
        active.end = u32::try_from(line.end()).unwrap_or(u32::MAX);
        active.lines.push(line);
        self.note_len(number, line.end());
        Ok(RecordLocation::new(number, &line))
    }

    /// Ends the active segment, if there is one.
    fn seal(&self, writer: &mut Writer) -> Result<(), Failed> {
        let Some(active) = &writer.active else {
            return Ok(());
        };
        let (number, end) = (active.segment.number, u64::from(active.end));
        let path = path_of(&self.dir, number);
        let file = &active.segment.file;
        let table = format::seal(number, active.end, &active.lines);
        let written = self.steps.write(file, &path, &table, end);
        // A damaged record may have been behind the end, and be longer than the table.
        let written = written.and_then(|()| self.steps.cut(file, end + table.len() as u64));
        if let Err(source) = written.and_then(|()| self.steps.sync(file, &path)) {
            let _cut = self.steps.cut(file, end);
            return Err(Failed { path, source });
        }
        self.note_len(number, end + table.len() as u64);
        writer.active = None;
        Ok(())
    }

    /// Begins a segment.
    fn begin<'w>(&self, writer: &'w mut Writer) -> Result<&'w mut Active, Failed> {
        let number = writer.next;
        let path = path_of(&self.dir, number);
        let failed = |source| Failed {
            path: path.clone(),
            source,
        };
        let file = self.steps.create(&path).map_err(failed)?;
        writer.next += 1;
        let header = format::header(number);
        let written = self.steps.write(&file, &path, &header, 0);
        if let Err(source) = written.and_then(|()| self.steps.sync_dir(&self.dir)) {
            let _removed = self.steps.remove(&path);
            return Err(failed(source));
        }
        let segment = Segment {
            number,
            file: Arc::new(file),
        };
        let held = Held {
            segment: segment.clone(),
            len: u64::from(FIRST),
            live_bytes: 0,
        };
        self.state.lock().segments.insert(number, held);
        Ok(writer.active.insert(Active {
            segment,
            end: FIRST,
            lines: Vec::new(),
        }))
    }

    fn note_len(&self, number: u64, len: u64) {
        if let Some(held) = self.state.lock().segments.get_mut(&number) {
            held.len = len;
        }
    }
}
