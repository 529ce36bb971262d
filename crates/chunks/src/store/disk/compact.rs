//! Frees space: copies the live records of a segment to the active one and removes the segment, or
//! evicts them with it.

use std::sync::atomic::Ordering::Relaxed;

use super::write::{Failed, Writer};
use super::{DiskStore, Held, PutError, RecordLocation, SPARE_SEGMENTS};
use crate::store::format::Line;
use crate::store::segment::{Segment, path_of};

/// The result of [`DiskStore::gc`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcReport {
    /// Segments whose live records were moved.
    pub compacted: u64,
    /// Bytes that the files took.
    pub bytes_before: u64,
    /// Bytes in use now.
    pub bytes_after: u64,
}

impl DiskStore {
    /// Compacts the segments of which half or more is dead, and others as long as the store is too
    /// large.
    ///
    /// # Errors
    /// If the disk fails, or has no space for a copy.
    pub fn gc(&self) -> Result<GcReport, PutError> {
        let mut writer = self.writer.lock();
        let bytes_before = self.state.lock().disk_bytes();
        let mut compacted = 0;
        for _ in 0..self.compactions_max() {
            let Some((number, len, live)) = self.emptiest(&writer) else {
                break;
            };
            if live * 2 > len && !self.is_tight(&writer) {
                break;
            }
            writer.compacting = true;
            let done = self.compact(&mut writer, number);
            writer.compacting = false;
            done?;
            compacted += 1;
        }
        Ok(GcReport {
            compacted,
            bytes_before,
            bytes_after: self.state.lock().disk_bytes(),
        })
    }

    /// Compacts until there is space for the active segment and for compaction itself. Failures are
    /// ignored: the put that needs the space will fail.
    pub(super) fn make_room(&self, writer: &mut Writer) {
        if writer.compacting {
            return;
        }
        writer.compacting = true;
        for _ in 0..self.compactions_max() {
            let Some((number, ..)) = self.emptiest(writer).filter(|_| self.is_tight(writer)) else {
                break;
            };
            if let Err(failed) = self.compact(writer, number) {
                log::warn!("cannot compact a segment: {}", PutError::from(failed));
                // The budget holds, even if that costs what could not be moved.
                if !self.give_up(writer) {
                    break;
                }
            }
        }
        writer.compacting = false;
    }

    /// Returns a bound for compactions in a row: each frees something, and makes at most one segment.
    fn compactions_max(&self) -> usize {
        2 * self.state.lock().segments.len()
    }

    /// Returns whether the segments besides the active one take more than they may.
    fn is_tight(&self, writer: &Writer) -> bool {
        let state = self.state.lock();
        let active = writer.active.as_ref().map(|active| active.segment.number);
        let others = state
            .segments
            .iter()
            .filter(|(number, _)| Some(**number) != active);
        let bytes: u64 = others.map(|(_, held)| held.len).sum();
        let spare = SPARE_SEGMENTS * u64::from(self.config.segment_bytes);
        bytes + spare > self.config.budget_bytes
    }

    /// Returns the segment with the smallest part of live records, its bytes, and its live bytes.
    fn emptiest(&self, writer: &Writer) -> Option<(u64, u64, u64)> {
        let state = self.state.lock();
        let active = writer.active.as_ref().map(|active| active.segment.number);
        let others = state
            .segments
            .iter()
            .filter(|(number, _)| Some(**number) != active);
        let part = |held: &Held| (u128::from(held.live_bytes) << 64) / u128::from(held.len.max(1));
        let least = others.min_by_key(|(_, held)| part(held));
        least.map(|(number, held)| (*number, held.len, held.live_bytes))
    }

    /// Moves what lives of a segment to the active one, and removes it.
    fn compact(&self, writer: &mut Writer, number: u64) -> Result<(), Failed> {
        let path = path_of(&self.dir, number);
        let failed = |source| Failed::new(path.clone(), source);
        let Some(segment) = self.segment(number) else {
            return Ok(());
        };
        for line in segment.contents().map_err(failed)?.lines {
            self.copy(writer, &segment, &line)?;
        }
        if let Some(active) = &writer.active {
            let path = path_of(&self.dir, active.segment.number);
            let synced = self.steps.sync(&active.segment.file, &path);
            synced.map_err(|source| Failed::new(path, source))?;
        }
        self.steps.remove(&path).map_err(failed)?;
        self.state.lock().segments.remove(&number);
        Ok(())
    }

    fn copy(&self, writer: &mut Writer, from: &Segment, line: &Line) -> Result<(), Failed> {
        let place = RecordLocation::new(from.number, line);
        if self.state.lock().residents.get(&line.id) != Some(&place) {
            return Ok(());
        }
        let Some(stored) = from.read(line) else {
            self.lose(&line.id, &place);
            return Ok(());
        };
        let copy = self.append(writer, &line.id, &stored)?;
        self.state.lock().relocate(&line.id, &place, copy);
        Ok(())
    }

    /// Drops the segment with the fewest live bytes that has nothing pinned; returns whether there
    /// is one. This needs no space.
    pub(super) fn give_up(&self, writer: &Writer) -> bool {
        let active = writer.active.as_ref().map(|active| active.segment.number);
        let mut others: Vec<(u64, u64)> = {
            let state = self.state.lock();
            let others = state
                .segments
                .iter()
                .filter(|(number, _)| Some(**number) != active);
            others
                .map(|(number, held)| (held.live_bytes, *number))
                .collect()
        };
        others.sort_unstable();
        others
            .into_iter()
            .any(|(_, number)| self.drop_segment(number))
    }

    /// Removes a segment with all its chunks, unless one is pinned.
    fn drop_segment(&self, number: u64) -> bool {
        let contents = self.segment(number).map(|segment| segment.contents());
        let Some(Ok(contents)) = contents else {
            return false;
        };
        let mut state = self.state.lock();
        let place = |line: &Line| RecordLocation::new(number, line);
        let lives = |line: &&Line| state.residents.get(&line.id) == Some(&place(line));
        let live: Vec<Line> = contents.lines.iter().filter(lives).copied().collect();
        if live.iter().any(|line| state.residents.is_pinned(&line.id)) {
            return false;
        }
        for line in &live {
            state.forget(&line.id, &place(line));
        }
        drop(state);
        self.counts.evicted.fetch_add(live.len() as u64, Relaxed);
        if let Err(error) = self.steps.remove(&path_of(&self.dir, number)) {
            log::warn!("cannot remove segment {number:016x}: {error}");
            return false;
        }
        self.state.lock().segments.remove(&number);
        true
    }

    pub(super) fn segment(&self, number: u64) -> Option<Segment> {
        let state = self.state.lock();
        state.segments.get(&number).map(|held| held.segment.clone())
    }
}
