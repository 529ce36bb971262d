//! Readahead without a plan: what is probably read next, from what was read.
//!
//! - A file that is read from one chunk to the next, or with equal steps between them, is read on: one
//!   step ahead at first, twice as many each time that what was predicted is used.
//! - A small file is read whole.
//! - When several small files of a directory were read, as an interpreter reads its modules and a
//!   loader its libraries, the small files beside them follow.
//!
//! What was predicted and not used yet is bounded by a budget. A kind of prediction that is seldom
//! used is no longer made.
//!
//! ```
//! use fetch::predict::{FileChunks, Predictor};
//!
//! let mut predictor = Predictor::new(vec![FileChunks { first: 0, chunks: 100, directory: 1 }]);
//! predictor.set_budget(64);
//! assert_eq!(predictor.touched(4), []);
//! // The second chunk of a sequential run: the run doubles each time.
//! assert_eq!(predictor.touched(5), [6..8]);
//! assert_eq!(predictor.touched(6), [8..11]);
//! ```

use std::collections::HashMap;
use std::ops::Range;

/// A file of so many chunks is small: reading all of it costs less than another round trip.
const SMALL_CHUNKS: u32 = 4;
/// So many small files of a directory are read before those beside them are predicted.
const NEIGHBOURS_MIN: u32 = 3;
/// So many files beside one are predicted at a time.
const NEIGHBOURS: usize = 16;
/// The farthest that a run is read ahead, in steps.
const AHEAD_MAX: u32 = 64;
/// Predictions of a kind that may be unused whatever its success.
const TRIAL: u64 = 64;
/// A kind is dropped if fewer than one of so many of its predictions was used.
const USED_MIN: u64 = 4;
/// The most files and directories whose runs are remembered.
const REMEMBERED: usize = 4096;

/// A file of a source, in chunks that the source counts through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileChunks {
    /// The number of its first chunk.
    pub first: u32,
    /// How many chunks it has; 0 for an empty file.
    pub chunks: u32,
    /// Its directory, by any number that its neighbours share.
    pub directory: u32,
}

/// Why something was predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Run,
    Whole,
    Neighbour,
}

/// What is known of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Read,
    Predicted(Kind),
}

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

/// How many predictions of a kind were made, and used.
#[derive(Clone, Copy, Debug, Default)]
struct Success {
    made: u64,
    used: u64,
}

/// Predicts what is read next.
#[derive(Debug)]
pub struct Predictor {
    /// By their first chunk.
    files: Vec<FileChunks>,
    /// The positions in `files` of the small files of each directory.
    directories: HashMap<u32, Vec<usize>>,
    seen: HashMap<u32, Seen>,
    runs: HashMap<u32, Run>,
    small_read: HashMap<u32, u32>,
    success: [Success; 3],
    budget: u32,
    unused: u32,
}

impl Predictor {
    /// Returns a predictor for a source, with a budget of no chunks. Files that share chunks with
    /// one before them are left out.
    #[must_use]
    pub fn new(mut files: Vec<FileChunks>) -> Self {
        files.retain(|file| file.chunks > 0 && file.first.checked_add(file.chunks).is_some());
        files.sort_by_key(|file| file.first);
        let mut end = 0;
        files.retain(|file| {
            let apart = file.first >= end;
            if apart {
                end = file.first + file.chunks;
            }
            apart
        });
        let mut directories: HashMap<u32, Vec<usize>> = HashMap::new();
        for (at, file) in files.iter().enumerate() {
            if file.chunks <= SMALL_CHUNKS {
                directories.entry(file.directory).or_default().push(at);
            }
        }
        Self {
            files,
            directories,
            seen: HashMap::new(),
            runs: HashMap::new(),
            small_read: HashMap::new(),
            success: [Success::default(); 3],
            budget: 0,
            unused: 0,
        }
    }

    /// Sets the most chunks that may be predicted and not used yet: the measured round trip times the
    /// rate ([`LinkState`](crate::LinkState) has both), over the bytes of a chunk.
    pub const fn set_budget(&mut self, chunks: u32) {
        self.budget = chunks;
    }

    /// Notes that a chunk is read, and returns what is probably read next, the most probable first:
    /// chunks of the source that were neither read nor predicted before.
    pub fn touched(&mut self, chunk: u32) -> Vec<Range<u32>> {
        let Some(at) = self.file_of(chunk) else {
            return Vec::new();
        };
        let before = self.seen.insert(chunk, Seen::Read);
        if let Some(Seen::Predicted(kind)) = before {
            self.success[kind as usize].used += 1;
            self.unused -= 1;
        }
        let file = self.files[at];
        let mut predicted = Vec::new();
        if file.chunks > SMALL_CHUNKS {
            self.read_on(file, chunk, &mut predicted);
        } else {
            let whole = file.first..file.first + file.chunks;
            self.predict(whole, Kind::Whole, &mut predicted);
            self.neighbours(at, before, &mut predicted);
        }
        predicted
    }

    /// Returns the position of the file that a chunk belongs to.
    fn file_of(&self, chunk: u32) -> Option<usize> {
        let behind = self.files.partition_point(|file| file.first <= chunk);
        let at = behind.checked_sub(1)?;
        (chunk - self.files[at].first < self.files[at].chunks).then_some(at)
    }

    /// Follows a run through a large file.
    fn read_on(&mut self, file: FileChunks, chunk: u32, predicted: &mut Vec<Range<u32>>) {
        if self.runs.len() >= REMEMBERED && !self.runs.contains_key(&file.first) {
            self.runs.clear();
        }
        let fresh = Run {
            last: chunk,
            step: 0,
            ahead: 1,
            end: chunk + 1,
        };
        let mut run = *self.runs.entry(file.first).or_insert(fresh);
        let step = chunk.saturating_sub(run.last);
        if chunk == run.last {
            return;
        }
        let regular = step > 0 && (step == run.step || step == 1);
        if !regular {
            let step = if step <= AHEAD_MAX { step } else { 0 };
            self.runs.insert(file.first, Run { step, ..fresh });
            return;
        }
        if step != run.step {
            run = Run { step, ..fresh };
        }
        run.last = chunk;
        run.end = run.end.max(chunk + step);
        run.ahead = (run.ahead * 2).min(AHEAD_MAX);
        let file_end = file.first + file.chunks;
        let until = chunk
            .saturating_add(run.ahead.saturating_mul(step))
            .saturating_add(1)
            .min(file_end);
        if step == 1 {
            self.predict(run.end..until.max(run.end), Kind::Run, predicted);
            run.end = run.end.max(until);
        } else {
            while run.end < until {
                self.predict(run.end..run.end + 1, Kind::Run, predicted);
                run.end = run.end.saturating_add(step);
            }
        }
        self.runs.insert(file.first, run);
    }

    /// Predicts the small files beside one, once several of their directory were read.
    fn neighbours(&mut self, at: usize, before: Option<Seen>, predicted: &mut Vec<Range<u32>>) {
        let file = self.files[at];
        if self.small_read.len() >= REMEMBERED && !self.small_read.contains_key(&file.directory) {
            self.small_read.clear();
        }
        let read = self.small_read.entry(file.directory).or_default();
        if before != Some(Seen::Read) {
            *read += 1;
        }
        if *read < NEIGHBOURS_MIN {
            return;
        }
        let Some(beside) = self.directories.get(&file.directory) else {
            return;
        };
        let here = beside.partition_point(|other| *other <= at);
        let next: Vec<_> = beside[here..]
            .iter()
            .chain(beside[..here].iter().rev())
            .map(|at| self.files[*at])
            .filter(|file| !self.seen.contains_key(&file.first))
            .take(NEIGHBOURS)
            .collect();
        for file in next {
            let whole = file.first..file.first + file.chunks;
            self.predict(whole, Kind::Neighbour, predicted);
        }
    }

    /// Adds what is new of some chunks, as far as the budget and the success of their kind allow.
    fn predict(&mut self, chunks: Range<u32>, kind: Kind, predicted: &mut Vec<Range<u32>>) {
        let success = self.success[kind as usize];
        // What is read next may still use the latest of them: these are the trial.
        if success.made >= success.used.saturating_mul(USED_MIN).saturating_add(TRIAL) {
            return;
        }
        for chunk in chunks {
            if self.unused >= self.budget {
                return;
            }
            if self.seen.contains_key(&chunk) {
                continue;
            }
            self.seen.insert(chunk, Seen::Predicted(kind));
            self.success[kind as usize].made += 1;
            self.unused += 1;
            match predicted.last_mut() {
                Some(last) if last.end == chunk => last.end += 1,
                _ => predicted.push(chunk..chunk + 1),
            }
        }
    }
}
