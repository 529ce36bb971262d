//! Readahead without a plan: predicts the next reads from earlier ones.
//!
//! A demand read that misses costs a round trip, in which the line transfers
//! a number of bytes: so many may be read in vain for each avoided miss. Therefore all amounts are in
//! [round trips' worth of bytes](Gain::round_trip_bytes): much on a long and fast line, next to nothing on a
//! slow one.
//!
//! - A file that is read from one chunk to the next, or with equal steps between them, is predicted: one
//!   step ahead at first, twice as many each time that a predicted chunk is used.
//! - A small file is read whole. A miss in a large one predicts the chunks around it, the next miss in it twice as
//!   much.
//! - A miss in a small file predicts small files beside it in the directory and in those below, as an
//!   interpreter reads its modules: those of its kind, and few others. The next miss there predicts twice as much. When they
//!   are missed in two neighbouring directories, all of these [are included](Predictor::with_parents), and
//!   when in many anywhere, all directories. A program says little about those beside it.
//! - The libraries that a program [is linked with](Predictor::linked), the parts of its file that the loader
//!   [reads](Predictor::loaded), and those that are read when it [runs](Predictor::run), are predicted as soon as they are
//!   known.
//!
//! Predictions are counted by place. Where few of them are used, no more are made.
//!
//! ```
//! use fetch::predict::{FileChunks, Gain, Predictor};
//!
//! let file = FileChunks { first: 0, chunks: 100, bytes: 100 << 17, directory: 1, kind: 0 };
//! let mut predictor = Predictor::new(vec![file], 1 << 17);
//! // A short line: a round trip is worth one chunk.
//! predictor.set_gain(Gain { round_trip_bytes: 1 << 17, unused_bytes: 8 << 20 });
//! assert_eq!(predictor.touched(4).soon, []);
//! // The second chunk of a sequential run: the run doubles each time.
//! assert_eq!(predictor.touched(5).soon, [6..8]);
//! assert_eq!(predictor.touched(6).soon, [8..11]);
//! ```

mod branches;
mod groups;
mod runs;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use branches::Branches;
use groups::{Group, Groups};
use runs::Runs;

/// A file of so many bytes is small, if a round trip is not worth more.
const SMALL_BYTES: u64 = 512 << 10;
/// The part of a round trip's worth that the first miss in a directory is worth, and of a program.
const PART: u64 = 8;
const PROGRAM_PART: u64 = 64;
/// The part of a window that is for files of other kinds than the one that was missed.
const OTHER_KINDS: u64 = 4;
/// A file of so many round trips' worth of bytes that a program is linked with is brought whole.
const LINKED_WHOLE: u64 = 2;
/// Chunks at the start and at the end of such a file that the loader reads first.
const LINKED_START: u32 = 2;
const LINKED_END: u32 = 3;
/// Directories with a miss of a small file, after which all small files are brought.
const SWEEP_AFTER: usize = 24;

/// A file of a source, in chunks that the source counts through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileChunks {
    /// The number of its first chunk.
    pub first: u32,
    /// How many chunks it has; 0 for an empty file.
    pub chunks: u32,
    /// How many bytes it has.
    pub bytes: u64,
    /// Its directory, by any number that its neighbours share.
    pub directory: u32,
    /// What sort of content it has, by any number that files alike share: those of one extension;
    /// [`PROGRAM`](Self::PROGRAM) of programs and libraries.
    pub kind: u32,
}

impl FileChunks {
    /// The kind of programs and libraries: one says little about those beside it.
    pub const PROGRAM: u32 = u32::MAX;

    const fn end(&self) -> u32 {
        self.first + self.chunks
    }
}

/// How much is to be gained by a prediction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gain {
    /// The bytes that the line brings in a round trip, before compression: the measured round trip times the
    /// rate ([`LinkState`](crate::LinkState) has both). 0 if nothing is to be predicted.
    pub round_trip_bytes: u64,
    /// The maximum number of bytes that are predicted and not used yet: the limit of memory.
    pub unused_bytes: u64,
}

/// A prediction: chunks of the source that were neither read nor predicted before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Predicted {
    /// Chunks that are read soon, the most probable first.
    pub soon: Vec<Range<u32>>,
    /// What may wait until nothing else is to be done.
    pub later: Vec<Range<u32>>,
}

/// What is known of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Read,
    Predicted(Group),
}

/// What came of an attempt to predict.
#[derive(Clone, Copy, Debug, Default)]
struct Made {
    bytes: u64,
    /// The first chunk that was not predicted because it is not worth it now.
    stopped_at: Option<u32>,
}

/// Predicts the next reads.
#[derive(Debug)]
pub struct Predictor {
    /// By their first chunk.
    files: Vec<FileChunks>,
    chunk_bytes: u32,
    /// The positions in `files` of the files of each directory.
    directories: HashMap<u32, Vec<usize>>,
    branches: Branches,
    seen: HashMap<u32, Seen>,
    runs: Runs,
    groups: Groups,
    gain: Gain,
    /// Directories in which a small file was missed.
    missed_in: HashSet<u32>,
    /// Where the next small file is looked for when all are brought.
    swept: usize,
}

impl Predictor {
    /// Returns a predictor for a source of chunks of `chunk_bytes`, with nothing to gain. Files that share
    /// chunks with an earlier one are left out.
    #[must_use]
    pub fn new(mut files: Vec<FileChunks>, chunk_bytes: u32) -> Self {
        files.retain(|file| file.chunks > 0 && file.first.checked_add(file.chunks).is_some());
        files.sort_by_key(|file| file.first);
        let mut end = 0;
        files.retain(|file| {
            let apart = file.first >= end;
            if apart {
                end = file.end();
            }
            apart
        });
        let mut directories: HashMap<u32, Vec<usize>> = HashMap::new();
        for (at, file) in files.iter().enumerate() {
            directories.entry(file.directory).or_default().push(at);
        }
        Self {
            files,
            chunk_bytes,
            directories,
            branches: Branches::default(),
            seen: HashMap::new(),
            runs: Runs::default(),
            groups: Groups::default(),
            gain: Gain::default(),
            missed_in: HashSet::new(),
            swept: 0,
        }
    }

    /// Adds the directory tree: the parent of each directory, by their numbers.
    #[must_use]
    pub fn with_parents(self, parents: HashMap<u32, u32>) -> Self {
        let branches = Branches::new(parents, &self.files);
        Self { branches, ..self }
    }

    /// Sets how much is to be gained from now on.
    pub const fn set_gain(&mut self, gain: Gain) {
        self.gain = gain;
    }

    /// Records a read of a chunk, and returns the prediction.
    pub fn touched(&mut self, chunk: u32) -> Predicted {
        let mut predicted = Predicted::default();
        let Some(at) = self.file_of(chunk) else {
            return predicted;
        };
        let file = self.files[at];
        let before = self.seen.insert(chunk, Seen::Read);
        match before {
            Some(Seen::Read) => return predicted,
            Some(Seen::Predicted(group)) => {
                self.groups.used(group, chunk, self.bytes_of(file, chunk));
            }
            None => {}
        }
        if self.gain.round_trip_bytes == 0 {
            return predicted;
        }
        let missed = before.is_none();
        let run = self.runs.follow(&file, chunk);
        for ahead in run.iter().flatten() {
            let (range, soon) = (ahead.clone(), &mut predicted.soon);
            let made = self.predict(file, range, Group::Run, u64::MAX, soon);
            if let Some(chunk) = made.stopped_at {
                self.runs.resume_at(file.first, chunk);
                break;
            }
        }
        if self.is_small(&file) {
            let whole = file.first..file.end();
            self.predict(file, whole, Group::Whole, u64::MAX, &mut predicted.soon);
            self.beside(at, before, &mut predicted.soon);
            self.sweep(file.directory, missed, &mut predicted.later);
        } else if missed && run.is_none() {
            self.around(file, chunk, &mut predicted.soon);
        }
        predicted
    }

    /// Records that a program is linked with the file that begins with this chunk, and returns the
    /// prediction for it: its two ends, where the loader looks first, and what lies between them if it is small. Of a large
    /// one, its content says what is [loaded](Self::loaded) and [run](Self::run).
    pub fn linked(&mut self, first: u32) -> Predicted {
        let mut predicted = Predicted::default();
        let Some(at) = self.file_of(first) else {
            return predicted;
        };
        let (file, worth) = (self.files[at], self.gain.round_trip_bytes);
        let (whole, soon) = (file.first..file.end(), &mut predicted.soon);
        let start = whole.start..(whole.start + LINKED_START).min(whole.end);
        let end = whole.end.saturating_sub(LINKED_END).max(whole.start)..whole.end;
        // The outermost first: little is requested at a time until the rate of the line was measured.
        let (first, last) = (start.start..start.start + 1, end.end - 1..end.end);
        for part in [first, last, start, end] {
            self.predict(file, part, Group::Linked, u64::MAX, soon);
        }
        if file.bytes <= worth.saturating_mul(LINKED_WHOLE) {
            self.predict(file, whole, Group::Linked, u64::MAX, &mut predicted.later);
        }
        predicted
    }

    /// Records that the loader of a program reads these chunks of a file, and returns the prediction for them.
    pub fn loaded(&mut self, chunks: Range<u32>) -> Predicted {
        let mut predicted = Predicted::default();
        if let Some(at) = self.file_of(chunks.start) {
            let (file, worth) = (self.files[at], self.gain.round_trip_bytes);
            // The kernel reads around a page that is not there, and so the end of the chunk before.
            let start = chunks.start.saturating_sub(1).max(file.first);
            let inside = start..chunks.end.min(file.end());
            self.predict(file, inside, Group::Linked, worth, &mut predicted.soon);
        }
        predicted
    }

    /// Records that a program that is loaded may read these chunks of a file when it runs, and returns the prediction for
    /// them.
    pub fn run(&mut self, chunks: Range<u32>) -> Predicted {
        let mut predicted = Predicted::default();
        if let Some(at) = self.file_of(chunks.start) {
            let file = self.files[at];
            let inside = chunks.start..chunks.end.min(file.end());
            self.predict(file, inside, Group::Linked, u64::MAX, &mut predicted.later);
        }
        predicted
    }

    /// Returns the position of the file that a chunk belongs to.
    fn file_of(&self, chunk: u32) -> Option<usize> {
        let behind = self.files.partition_point(|file| file.first <= chunk);
        let at = behind.checked_sub(1)?;
        (chunk < self.files[at].end()).then_some(at)
    }

    /// Returns the bytes of a chunk of a file.
    fn bytes_of(&self, file: FileChunks, chunk: u32) -> u64 {
        let full = u64::from(self.chunk_bytes);
        let before = u64::from(chunk - file.first) * full;
        file.bytes.saturating_sub(before).clamp(1, full)
    }

    fn is_small(&self, file: &FileChunks) -> bool {
        file.bytes <= SMALL_BYTES.max(self.gain.round_trip_bytes / 4)
    }

    /// Predicts what lies around a miss in a large file: most of it behind the miss.
    fn around(&mut self, file: FileChunks, chunk: u32, predicted: &mut Vec<Range<u32>>) {
        let group = Group::File(file.first);
        let window = self.groups.grow(group, self.gain, 2);
        let chunks = u32::try_from(window / u64::from(self.chunk_bytes)).unwrap_or(u32::MAX);
        let start = chunk.saturating_sub(chunks / 4).max(file.first);
        let end = start.saturating_add(chunks).clamp(chunk, file.end());
        self.predict(file, chunk..end, group, u64::MAX, predicted);
        self.predict(file, start..chunk, group, u64::MAX, predicted);
    }

    /// Predicts small files beside one that was read, in its directory and in those beside it.
    fn beside(&mut self, at: usize, before: Option<Seen>, predicted: &mut Vec<Range<u32>>) {
        let directory = self.files[at].directory;
        let own = Group::Directory(directory);
        let (group, before) = match before {
            None => (own, None),
            Some(Seen::Predicted(group @ (Group::Directory(_) | Group::Branch(_)))) => {
                (group, before)
            }
            // The first file of a directory says as much as a miss, also when it was known that it is read.
            Some(Seen::Predicted(Group::Linked)) if self.groups.window(own) == 0 => (own, None),
            Some(_) => return,
        };
        let is_program = self.files[at].kind == FileChunks::PROGRAM;
        let part = if is_program { PROGRAM_PART } else { PART };
        self.near(at, group, before, part, predicted);
        if before.is_none()
            && !is_program
            && let Some(above) = self.branches.missed(directory)
        {
            self.near(at, Group::Branch(above), before, 2, predicted);
        }
    }

    /// Predicts the small files of a group: those of its kind first, in the order of the source from it on. As much
    /// as a miss is worth, whose first window is a `part` of a round trip's, and half as much after a hit.
    fn near(
        &mut self,
        at: usize,
        group: Group,
        before: Option<Seen>,
        part: u64,
        predicted: &mut Vec<Range<u32>>,
    ) {
        let mut left = match before {
            None => self.groups.grow(group, self.gain, part),
            Some(_) => self.groups.window(group) / 2,
        };
        let (beside, below): (&[usize], &[usize]) = match group {
            Group::Directory(directory) => match self.directories.get(&directory) {
                Some(beside) => (beside, self.branches.below(directory)),
                None => return,
            },
            Group::Branch(above) => (self.branches.below(above), &[]),
            _ => return,
        };
        let kind = self.files[at].kind;
        let next = from(beside, at).chain(from(below, at));
        let next = next.map(|at| self.files[*at]);
        let fresh = next.filter(|file| !self.seen.contains_key(&file.first) && self.is_small(file));
        let (alike, others): (Vec<_>, Vec<_>) = fresh.partition(|file| file.kind == kind);
        let mut chosen = Vec::new();
        let mut take = |files: Vec<FileChunks>, left: &mut u64| {
            for file in files {
                if *left == 0 {
                    break;
                }
                *left = left.saturating_sub(file.bytes);
                chosen.push(file);
            }
        };
        let least = left / OTHER_KINDS;
        take(alike, &mut left);
        if kind != FileChunks::PROGRAM {
            let others = others.into_iter();
            let others = others.filter(|file| file.kind != FileChunks::PROGRAM);
            take(others.collect(), &mut left.min(least));
        }
        for file in chosen {
            self.predict(file, file.first..file.end(), group, u64::MAX, predicted);
        }
    }

    /// Predicts small files in the order of the source, once they were missed in many directories.
    fn sweep(&mut self, directory: u32, missed: bool, predicted: &mut Vec<Range<u32>>) {
        if self.missed_in.len() < SWEEP_AFTER {
            if missed {
                self.missed_in.insert(directory);
            }
            return;
        }
        let mut left = match missed {
            true => self.groups.grow(Group::All, self.gain, 2),
            false => self.groups.window(Group::All) / 8,
        };
        while left > 0 && self.groups.is_worth(Group::All, self.gain) {
            let Some(file) = self.files.get(self.swept).copied() else {
                return;
            };
            self.swept += 1;
            if self.is_small(&file) {
                let whole = file.first..file.end();
                let made = self.predict(file, whole, Group::All, u64::MAX, predicted);
                left = left.saturating_sub(made.bytes);
            }
        }
    }

    /// Adds what is new of some chunks of a file, up to `most` bytes and as far as it is worth it.
    fn predict(
        &mut self,
        file: FileChunks,
        chunks: Range<u32>,
        group: Group,
        most: u64,
        predicted: &mut Vec<Range<u32>>,
    ) -> Made {
        let mut made = Made::default();
        for chunk in chunks {
            if made.bytes >= most || !self.groups.is_worth(group, self.gain) {
                made.stopped_at = Some(chunk);
                break;
            }
            if self.seen.contains_key(&chunk) {
                continue;
            }
            let bytes = self.bytes_of(file, chunk);
            self.seen.insert(chunk, Seen::Predicted(group));
            self.groups.made(group, chunk, bytes, self.gain);
            made.bytes += bytes;
            match predicted.last_mut() {
                Some(last) if last.end == chunk => last.end += 1,
                _ => predicted.push(chunk..chunk + 1),
            }
        }
        made
    }
}

/// Returns positions in the order of the source: those behind `at`, and then those before it, backwards.
fn from(positions: &[usize], at: usize) -> impl Iterator<Item = &usize> {
    let here = positions.partition_point(|other| *other <= at);
    positions[here..]
        .iter()
        .chain(positions[..here].iter().rev())
}
