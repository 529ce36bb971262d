//! A bound on what a writable layer takes on its disk.
//!
//! What counts is the data that something reads, as it will be in the layer that is committed. Data that was overwritten
//! or trimmed is garbage in the file, whose space is given back in time.

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use super::{State, Upper, UpperKind, is_data};
use crate::error::{Doing, LsmtError, Result};
use crate::header::DATA_SECTOR;
use crate::num::SECTOR;

/// The part of the limit that garbage may have on top of it before its space is given back: that reads the whole map.
const GARBAGE_PART: u64 = 16;

impl Upper {
    /// Bounds the data to so many bytes: what would make it longer fails as on a full disk, and what is there can be
    /// overwritten. Writes under way at once may each find room for themselves. The file takes up to a sixteenth more.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes / SECTOR, Relaxed);
    }

    /// Fails if there is no room for sectors of the device.
    pub(super) fn make_room(&self, range: Range<u64>) -> Result<()> {
        let limit = self.limit.load(Relaxed);
        if limit == u64::MAX {
            return Ok(());
        }
        let garbage = {
            let state = self.state.read();
            let there = state.map.within(range.clone());
            let there = there.iter().filter(|part| is_data(part));
            let there: u64 = there.map(|part| part.sectors()).sum();
            let new = range.end - range.start - there;
            if new > 0 && state.map.live_sectors() + new > limit {
                return Err(LsmtError::Storage {
                    doing: "write more than the limit of the writable layer",
                    source: ErrorKind::StorageFull.into(),
                });
            }
            self.garbage(&state) - state.given_back
        };
        match garbage > limit / GARBAGE_PART {
            true => self.give_back(),
            false => Ok(()),
        }
    }

    /// Returns the sectors of the data that nothing reads.
    fn garbage(&self, state: &State) -> u64 {
        match self.kind {
            // It has holes in their place.
            UpperKind::Sparse => state.given_back,
            _ => (state.data_end - DATA_SECTOR).saturating_sub(state.map.live_sectors()),
        }
    }

    /// Gives back the space of garbage. Until it is flushed what has replaced it, a loss of power brings it back.
    fn give_back(&self) -> Result<()> {
        let mut left = self.flushing.lock();
        self.flush_left(&mut left)?;
        let _alone = self.gate.write();
        self.check()?;
        if self.frozen.load(Relaxed) {
            // Somebody reads what was there before.
            return Ok(());
        }
        self.flush_batch(self.batch(), &mut left)?;
        let (mut segments, end) = self.snapshot();
        segments.retain(is_data);
        segments.sort_unstable_by_key(|segment| segment.moffset());
        let mut at = DATA_SECTOR;
        let ends = segments.iter().map(|part| (part.moffset(), part.mend()));
        for (start, next) in ends.chain([(end, end)]) {
            if at < start {
                let hole = at * SECTOR..start * SECTOR;
                self.files.data.punch(hole).doing("punch a hole")?;
            }
            at = at.max(next);
        }
        let mut state = self.state.write();
        state.given_back = self.garbage(&state);
        Ok(())
    }
}
