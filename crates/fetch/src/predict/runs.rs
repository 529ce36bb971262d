//! Files that are read from one chunk to the next, or with equal steps between them.

use std::collections::HashMap;
use std::ops::Range;

use super::FileChunks;

/// The farthest that a run is read ahead, in steps.
const AHEAD_MAX: u32 = 64;
/// The most files whose runs are remembered.
const REMEMBERED: usize = 4096;

/// How a file is read.
#[derive(Clone, Copy, Debug)]
struct Run {
    last: u32,
    step: u32,
    /// How many steps ahead are predicted next.
    ahead: u32,
    /// The first chunk that was not predicted.
    end: u32,
}

/// The runs of all files, by their first chunk.
#[derive(Debug, Default)]
pub(super) struct Runs(HashMap<u32, Run>);

impl Runs {
    /// Records a read of a chunk of a file, and returns the chunks ahead of it; `None` if it continues no run.
    pub(super) fn follow(&mut self, file: &FileChunks, chunk: u32) -> Option<Vec<Range<u32>>> {
        if self.0.len() >= REMEMBERED && !self.0.contains_key(&file.first) {
            self.0.clear();
        }
        let fresh = Run {
            last: chunk,
            step: 0,
            ahead: 1,
            end: chunk + 1,
        };
        let known = self.0.entry(file.first).or_insert(fresh);
        let step = chunk.saturating_sub(known.last);
        let regular = step > 0 && (step == known.step || step == 1);
        if !regular {
            if chunk != known.last {
                let step = if step <= AHEAD_MAX { step } else { 0 };
                *known = Run { step, ..fresh };
            }
            return None;
        }
        if step != known.step {
            *known = Run { step, ..fresh };
        }
        known.last = chunk;
        known.end = known.end.max(chunk + step);
        known.ahead = (known.ahead * 2).min(AHEAD_MAX);
        let until = chunk
            .saturating_add(known.ahead.saturating_mul(step))
            .saturating_add(1)
            .min(file.end());
        let mut ahead = Vec::new();
        if step == 1 {
            ahead.push(known.end..until.max(known.end));
            known.end = known.end.max(until);
        } else {
            while known.end < until {
                ahead.push(known.end..known.end + 1);
                known.end = known.end.saturating_add(step);
            }
        }
        Some(ahead)
    }

    /// Records that nothing from a chunk on was predicted: it is the next.
    pub(super) fn resume_at(&mut self, first: u32, chunk: u32) {
        if let Some(run) = self.0.get_mut(&first) {
            run.end = run.end.min(chunk);
        }
    }
}
