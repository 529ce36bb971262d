//! Writes and trims.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use super::journal::{self, Note};
use super::{State, Upper, UpperKind, is_data};
use crate::error::{Doing, LsmtError, Result};
use crate::header::DATA_SECTOR;
use crate::num::{SECTOR, size, wide};
use crate::segment::{Content, SEGMENT_SECTORS_MAX, Segment};
use crate::stack::sectors;
use crate::storage::check_range;

/// Sectors that are written as one: overlaybd splits at 4 MiB, too.
const WRITE_SECTORS: u64 = 8192;
/// Entries that wait for a flush at most.
const PENDING_MAX: usize = 1 << 16;

impl Upper {
    /// Writes whole sectors.
    ///
    /// # Errors
    ///
    /// Fails if the bytes are not whole sectors within the device, and as the storage does; then a part
    /// may be written.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let sectors = self.checked(offset, data.len())?;
        for (number, piece) in data.chunks(size(WRITE_SECTORS * SECTOR)).enumerate() {
            self.write_piece(sectors.start + wide(number) * WRITE_SECTORS, piece)?;
        }
        Ok(())
    }

    /// Zeroes whole sectors, and makes their former data garbage.
    ///
    /// # Errors
    ///
    /// As [`Self::write_at`].
    pub fn trim(&self, range: Range<u64>) -> Result<()> {
        let len = range.end.saturating_sub(range.start);
        let sectors = self.checked(range.start, size(len))?;
        let mut at = sectors.start;
        while at < sectors.end {
            let len = (sectors.end - at).min(SEGMENT_SECTORS_MAX);
            self.trim_piece(at, len)?;
            at += len;
        }
        Ok(())
    }

    fn checked(&self, offset: u64, len: usize) -> Result<Range<u64>> {
        self.check()?;
        check_range(offset, len, self.virtual_size())?;
        let end = offset + wide(len);
        match [offset, end].into_iter().find(|byte| byte % SECTOR != 0) {
            None => Ok(sectors(offset, len)),
            Some(offset) => Err(LsmtError::Unaligned { offset }),
        }
    }

    /// Waits until the journal has room for a write, and keeps flushes away while it is under way.
    fn enter(
        &self,
        sectors: u64,
        segments: impl Fn(&State) -> u64,
    ) -> Result<parking_lot::RwLockReadGuard<'_, ()>> {
        loop {
            let guard = self.gate.read();
            // It may have failed, or been replaced, while this waited.
            self.check()?;
            let mut state = self.state.write();
            let wanted = segments(&state);
            if state.pending.len() < PENDING_MAX && state.journal.promise(sectors, wanted) {
                return Ok(guard);
            }
            drop(state);
            drop(guard);
            self.flush()?;
        }
    }

    fn write_piece(&self, sector: u64, data: &[u8]) -> Result<()> {
        let len = wide(data.len()) / SECTOR;
        let range = sector..sector + len;
        self.make_room(range.clone())?;
        let parts = |state: &State| wide(state.map.within(range.clone()).len()) + 1;
        let _entered = match self.kind {
            UpperKind::Hybrid => self.enter(len, parts)?,
            _ => self.enter(len, |_| 1)?,
        };
        match self.kind {
            UpperKind::Append => self.append(sector, data),
            UpperKind::Sparse => self.write_sparse(sector, data),
            UpperKind::Hybrid => self.write_hybrid(sector, data),
        }
    }

    fn append(&self, sector: u64, data: &[u8]) -> Result<()> {
        let len = wide(data.len()) / SECTOR;
        let at = {
            let mut state = self.state.write();
            state.data_end += len;
            state.data_end - len
        };
        self.files
            .data
            .write_at(data, at * SECTOR)
            .doing("write the writable layer")?;
        let sums = journal::sums(data);
        let segment = Segment::new(sector, len, at, Content::Data);
        let note = self.map(segment, &sums);
        self.write_note(&note)
    }

    /// Maps a segment whose data is written; returns its note.
    fn map(&self, segment: Segment, sums: &[u32]) -> Note {
        let mut state = self.state.write();
        state.map.insert(segment);
        state.pending.push(segment);
        state.writes += 1;
        state.journal.note(segment, sums)
    }

    fn write_note(&self, note: &Note) -> Result<()> {
        match &self.files.journal {
            Some(journal) => note.write(&**journal),
            None => Ok(()),
        }
    }

    /// Overwrites what the index on the disk has, and appends the rest. A torn write of a sector that was
    /// there is what any disk may leave.
    fn write_hybrid(&self, sector: u64, data: &[u8]) -> Result<()> {
        let end = sector + wide(data.len()) / SECTOR;
        let frozen = self.frozen.load(Relaxed);
        let places: Vec<_> = {
            let state = self.state.read();
            let flushed = |segment: &Segment| segment.mend() <= state.flushed_end;
            let parts = state.map.within(sector..end).into_iter();
            parts
                .filter(|part| !frozen && is_data(part) && flushed(part))
                .collect()
        };
        let bytes = |from: u64, to: u64| {
            &data[size((from - sector) * SECTOR)..size((to - sector) * SECTOR)]
        };
        let mut at = sector;
        for place in places {
            if at < place.offset() {
                self.append(at, bytes(at, place.offset()))?;
            }
            let there = place.moffset() * SECTOR;
            let data = bytes(place.offset(), place.end());
            self.files
                .data
                .write_at(data, there)
                .doing("write the writable layer")?;
            self.state.write().writes += 1;
            at = place.end();
        }
        match at < end {
            true => self.append(at, bytes(at, end)),
            false => Ok(()),
        }
    }

    /// Notes first and writes then: the sums of both the old and the new content have to be known to the
    /// journal while the sectors are one or the other.
    fn write_sparse(&self, sector: u64, data: &[u8]) -> Result<()> {
        let len = wide(data.len()) / SECTOR;
        let segment = Segment::new(sector, len, sector + DATA_SECTOR, Content::Data);
        let known = {
            let state = self.state.read();
            let waits = |map: &super::Map| !map.within(sector..sector + len).is_empty();
            let there = state.map.within(sector..sector + len);
            let there = there
                .iter()
                .filter(|part| is_data(part))
                .map(|part| part.sectors());
            there.sum::<u64>() == len && !state.unflushed.iter().any(waits)
        };
        let write = || {
            let place = segment.moffset() * SECTOR;
            self.files
                .data
                .write_at(data, place)
                .doing("write the writable layer")
        };
        if known {
            write()?;
            self.state.write().writes += 1;
            return Ok(());
        }
        self.noted(segment, &journal::sums(data), write)
    }

    /// Notes a segment, does what is noted, and maps it. If that fails, the entry that was promised to the
    /// index becomes padding.
    fn noted(
        &self,
        segment: Segment,
        sums: &[u32],
        act: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let note = self.state.write().journal.note(segment, sums);
        let done = self.write_note(&note).and_then(|()| act());
        let mut state = self.state.write();
        state.writes += 1;
        match done {
            Ok(()) => {
                state.map.insert(segment);
                state.unflushed[0].insert(segment);
                state.pending.push(segment);
            }
            Err(_) => state.pending.push(Segment::PADDING),
        }
        done
    }

    fn trim_piece(&self, sector: u64, len: u64) -> Result<()> {
        let _entered = self.enter(0, |_| 1)?;
        if self.kind == UpperKind::Sparse {
            let place = sector + DATA_SECTOR;
            let segment = Segment::new(sector, len, place, Content::Zeros);
            let hole = place * SECTOR..(place + len) * SECTOR;
            return self.noted(segment, &[], || {
                self.files.data.punch(hole).doing("punch a hole")
            });
        }
        let note = {
            let mut state = self.state.write();
            let segment = Segment::new(sector, len, state.data_end, Content::Zeros);
            state.map.insert(segment);
            state.pending.push(segment);
            state.writes += 1;
            state.journal.note(segment, &[])
        };
        self.write_note(&note)
    }
}
