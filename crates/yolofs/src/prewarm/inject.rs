//! Pushing the blocks of a plan into the kernel's page cache.
//!
//! Two threads work hand in hand: one reads blocks from the cache, which verifies them; the
//! other, the caller's, writes them to the kernel. A few buffers go round between them.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use blocks::{
    BLOCK_SIZE, BlockCache, BlockRange, Extent, FileId, FileKey, Lookup, RangeSet, ReplayPlan,
};

use rawio::cached::cached_pages;

use super::{PrewarmError, PrewarmOptions, PrewarmReport, Progress};
use crate::fs::{FileSystem, Sample};
use crate::notify::InodeInKernel;
use crate::serving::Serving;
use crate::walk::Walker;

/// Blocks in a message to the kernel. Below 64 KiB each message costs more than its bytes; above
/// 1 MiB nothing is gained, and demand waits longer for a pause.
const MESSAGE_BLOCKS: u64 = 128;

/// Blocks in a buffer: 1 MiB holds the messages of many small files, so that waking the other
/// thread (tens of microseconds on a virtual machine) is paid once for all of them.
const BUFFER_BLOCKS: u64 = 256;

/// Buffers that go round: one being filled, one being written, one on its way.
const BUFFERS: usize = 3;

/// How long one message waits for demand at most: long enough for a request to be answered from
/// memory, short enough that a boot that never pauses does not stop the prewarm.
const YIELD: Duration = Duration::from_millis(2);

/// Which blocks of which files were pushed.
pub(crate) type Pushed = BTreeMap<FileId, RangeSet>;

/// A run of blocks to push; no longer than a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Job {
    key: FileKey,
    range: BlockRange,
}

impl Job {
    /// The bytes from the start of `run` to its end or the file's.
    fn byte_len(&self, run: BlockRange) -> u64 {
        let bytes = run.bytes();
        bytes
            .end
            .min(self.key.version.size)
            .saturating_sub(bytes.start)
    }
}

/// A buffer with some jobs in it, one behind the other.
#[derive(Default)]
struct Batch {
    buffer: Vec<u8>,
    parts: Vec<Part>,
}

/// What the cache had of a job.
struct Part {
    job: Job,
    /// Where the job's first block lies in the buffer.
    at: usize,
    /// Runs of the job's blocks that are in the buffer.
    hits: Vec<BlockRange>,
}

impl Part {
    /// The bytes of a run of blocks, cut at the end of the file.
    fn data<'a>(&self, buffer: &'a [u8], run: BlockRange) -> &'a [u8] {
        let at = self.at + place(run.start().0 - self.job.range.start().0);
        let len = usize::try_from(self.job.byte_len(run)).unwrap_or(usize::MAX);
        &buffer[at..at + len.min(place(run.len()))]
    }
}

/// Pushes the content of a plan, in its order, and counts in `report` what became of it. The first of it
/// is read from the cache while `walk` replays the names: a cache that is far away needs its round trips.
pub(crate) fn push(
    serving: &Serving,
    plan: &ReplayPlan,
    cache: &dyn BlockCache,
    options: &PrewarmOptions<'_>,
    walker: &mut Walker,
    report: &mut PrewarmReport,
    walk: impl FnOnce(&mut Walker, &mut PrewarmReport) -> Result<Progress, PrewarmError>,
) -> Result<Pushed, PrewarmError> {
    let fs = serving.file_system();
    let _watch = fs.watch(plan.extents.iter().map(|extent| extent.file));
    let mut keys = HashMap::new();
    let mut jobs = jobs(&plan.extents, |file| {
        *keys.entry(file).or_insert_with(|| fs.key_to_inject(file))
    });
    let total: u64 = jobs.iter().map(|job| job.byte_len(job.range)).sum();
    // A server before this one may have pushed them.
    if fs.injected().any() || serving.took_over() {
        report.present_bytes = leave_out_present(&mut jobs, walker);
    }
    if let Some(one_in) = options.hold_back {
        jobs = hold_back(&jobs, fs.sample(), one_in);
    }
    let result = std::thread::scope(|scope| {
        let (to_write, filled) = sync_channel(BUFFERS);
        let (to_fill, empty) = sync_channel(BUFFERS);
        for _ in 0..BUFFERS {
            // There is room for all of them, and the receiver is here.
            let _sent = to_fill.send(Batch::default());
        }
        let reader = std::thread::Builder::new()
            .name("yolofs-prewarm".to_owned())
            .spawn_scoped(scope, move || fill(jobs, cache, &empty, &to_write))
            .map_err(PrewarmError::Push)?;
        // When the writer ends early, its ends of the channels go, and with them the reader.
        let written = walk(walker, report).and_then(|walked| {
            let progress = Progress {
                bytes: report.present_bytes,
                bytes_total: total,
                ..walked
            };
            let mut pusher = Pusher {
                serving,
                fs,
                walker,
                report,
                pushed: Pushed::new(),
                progress,
            };
            pusher.write_all(options, filled, &to_fill)?;
            Ok(pusher.pushed)
        });
        drop(to_fill);
        reader.join().map_err(|_| PrewarmError::Cache)?;
        written
    });
    let brought = report.injected_bytes + report.present_bytes;
    report.skipped_bytes = total.saturating_sub(brought);
    result
}

/// Cuts extents into jobs: neighbours in the same file are joined, what lies behind the end of a
/// file is left out, and no job is longer than a message.
fn jobs(extents: &[Extent], mut key: impl FnMut(FileId) -> Option<FileKey>) -> Vec<Job> {
    let mut jobs: Vec<Job> = Vec::new();
    for extent in extents {
        let last = jobs.last().map(|job| job.key);
        let known = last.filter(|last| last.file == extent.file);
        let Some(key) = known.or_else(|| key(extent.file)) else {
            continue; // the file is gone, or is none
        };
        let whole = BlockRange::covering(0, key.version.size);
        let mut rest = extent.range.intersect(whole);
        if let Some(job) = jobs.last_mut()
            && job.key == key
            && job.range.end() == rest.start()
        {
            let (joined, after) = rest.split_first(MESSAGE_BLOCKS - job.range.len());
            job.range = BlockRange::new(job.range.start(), joined.end());
            rest = after;
        }
        while !rest.is_empty() {
            let (range, after) = rest.split_first(MESSAGE_BLOCKS);
            jobs.push(Job { key, range });
            rest = after;
        }
    }
    jobs
}

/// Leaves out a sample of the blocks, and notes it.
fn hold_back(jobs: &[Job], sample: &Sample, one_in: NonZeroU32) -> Vec<Job> {
    let runs = |job: &Job| {
        let key = job.key;
        let runs = sample.hold_back(key.file, job.range, one_in);
        runs.into_iter().map(move |range| Job { key, range })
    };
    jobs.iter().flat_map(runs).collect()
}

/// Leaves out the jobs whose pages the kernel still has from an earlier prewarm, and returns how
/// many bytes they are. A kernel that does not tell what it has is given everything again.
fn leave_out_present(jobs: &mut Vec<Job>, walker: &Walker) -> u64 {
    let mut open: Option<(FileId, io::Result<OwnedFd>)> = None;
    let mut present = 0;
    jobs.retain(|job| {
        let file = job.key.file;
        if open.as_ref().is_none_or(|(last, _)| *last != file) {
            open = Some((file, walker.open_to_read(file)));
        }
        let Some((_, Ok(fd))) = &open else {
            return true;
        };
        let cached = cached_pages(fd, job.range.bytes().start, job.range.byte_len());
        let whole = cached.is_ok_and(|pages| pages >= job.range.len());
        if whole {
            present += job.byte_len(job.range);
        }
        !whole
    });
    present
}

/// Reads job after job from the cache, until there are no more or the receiver is gone.
fn fill(
    jobs: Vec<Job>,
    cache: &dyn BlockCache,
    empty: &Receiver<Batch>,
    to_write: &SyncSender<Batch>,
) {
    let mut jobs = jobs.into_iter().peekable();
    while jobs.peek().is_some() {
        let Ok(mut batch) = empty.recv() else {
            return;
        };
        batch.parts.clear();
        batch.buffer.resize(place(BUFFER_BLOCKS), 0);
        let mut room = BUFFER_BLOCKS;
        while let Some(job) = jobs.next_if(|job| job.range.len() <= room) {
            let at = place(BUFFER_BLOCKS - room);
            room -= job.range.len();
            let hits = read(&job, cache, &mut batch.buffer[at..]);
            batch.parts.push(Part { job, at, hits });
        }
        if to_write.send(batch).is_err() {
            return;
        }
    }
}

/// Reads what the cache has of a job, each block to its place in `buffer`.
fn read(job: &Job, cache: &dyn BlockCache, buffer: &mut [u8]) -> Vec<BlockRange> {
    let mut hits = Vec::new();
    let mut rest = job.range;
    while !rest.is_empty() {
        let at = place(rest.start().0 - job.range.start().0);
        let out = &mut buffer[at..at + place(rest.len())];
        let answered = match cache.get(&job.key, rest, out) {
            Lookup::Hit { blocks } => {
                let (hit, _) = rest.split_first(blocks);
                hits.push(hit);
                blocks
            }
            Lookup::Miss { blocks } => blocks,
            // Too busy now; the blocks are answered on demand.
            Lookup::Throttled => break,
        };
        rest = rest.split_first(answered.max(1)).1;
    }
    hits
}

/// The place of a block in a buffer. Buffers are small: it always fits.
fn place(blocks: u64) -> usize {
    usize::try_from(blocks)
        .unwrap_or(usize::MAX)
        .saturating_mul(BLOCK_SIZE)
}

/// Writes to the kernel what was read.
struct Pusher<'a> {
    serving: &'a Serving,
    fs: &'a FileSystem,
    walker: &'a mut Walker,
    report: &'a mut PrewarmReport,
    pushed: Pushed,
    progress: Progress,
}

impl Pusher<'_> {
    fn write_all(
        &mut self,
        options: &PrewarmOptions<'_>,
        filled: Receiver<Batch>,
        to_fill: &SyncSender<Batch>,
    ) -> Result<(), PrewarmError> {
        let budget = options.budget_bytes.unwrap_or(u64::MAX);
        for batch in filled {
            for part in &batch.parts {
                let wanted = part.job.byte_len(part.job.range);
                let fits = self.report.injected_bytes.saturating_add(wanted) <= budget;
                if options.is_over() || !fits {
                    return Ok(());
                }
                self.write(part, &batch.buffer)?;
                self.progress.bytes += wanted;
            }
            if !self.serving.visible() {
                return Err(PrewarmError::Unmounted);
            }
            options.tell(self.progress);
            // The reader is gone once it has sent its last batch.
            let _gone = to_fill.send(batch);
        }
        Ok(())
    }

    fn write(&mut self, part: &Part, buffer: &[u8]) -> Result<(), PrewarmError> {
        let job = &part.job;
        let mut missing = job.byte_len(job.range);
        for run in &part.hits {
            let len = job.byte_len(*run);
            missing -= len;
            self.fs.demand().wait_idle(YIELD);
            let data = part.data(buffer, *run);
            match self.store(&job.key, run.bytes().start, data)? {
                Stored::Done => {
                    self.fs.injected().pushed(job.key.file, *run);
                    self.pushed.entry(job.key.file).or_default().insert(*run);
                    self.report.injected_bytes += len;
                }
                Stored::Changed => self.report.diverted_bytes += len,
                Stored::Unknown => self.report.unknown_bytes += len,
            }
        }
        self.report.missing_bytes += missing;
        Ok(())
    }

    /// Stores some pages of a file that the kernel has to know first. If it does not, the file is
    /// looked up again, once. What the kernel was told to be of another version meanwhile, it is
    /// made to forget.
    fn store(&mut self, key: &FileKey, offset: u64, data: &[u8]) -> Result<Stored, PrewarmError> {
        let (fs, file) = (self.fs, key.file);
        // The descriptor is held until the pages are there, even if it cannot be pinned.
        let mut held = self.walker.reach(file);
        for _ in 0..2 {
            if held.is_err() {
                break;
            }
            let pushing = fs.diversions().begin_push(file);
            let pushing = pushing.filter(|_| fs.is_still(key));
            let Some(pushing) = pushing else {
                return Ok(Stored::Changed);
            };
            let notifier = self.serving.notifier();
            let told = notifier.store(file, offset, data);
            drop(pushing);
            match told {
                Ok(InodeInKernel::Known) if fs.is_still(key) => return Ok(Stored::Done),
                Ok(InodeInKernel::Known) => {
                    notifier.invalidate(file).map_err(PrewarmError::Push)?;
                    fs.injected().forget(file);
                    return Ok(Stored::Changed);
                }
                Ok(InodeInKernel::Unknown) => held = self.walker.reach_again(file),
                Err(error) if is_about_the_file(&error) => break,
                Err(error) => return Err(PrewarmError::Push(error)),
            }
        }
        Ok(Stored::Unknown)
    }
}

/// What became of a message.
enum Stored {
    Done,
    /// It is of a version that is over.
    Changed,
    Unknown,
}

/// Whether the kernel could not take these pages, but may take others: no memory for them.
fn is_about_the_file(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::OutOfMemory
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocks::testing::{Fault, Faulty, MemCache};
    use blocks::{BlockIndex, Version};

    fn run(start: u64, len: u64) -> BlockRange {
        BlockRange::with_len(BlockIndex(start), len)
    }

    fn key(file: u32, size: u64) -> FileKey {
        let version = Version {
            size,
            ..Version::default()
        };
        FileKey {
            file: FileId(file),
            version,
        }
    }

    fn extent(file: u32, range: BlockRange) -> Extent {
        Extent {
            file: FileId(file),
            range,
            bin: 0,
            seen: 1,
        }
    }

    fn ranges(extents: &[Extent], size: u64) -> Vec<(u32, BlockRange)> {
        jobs(extents, |file| (file.0 < 10).then(|| key(file.0, size)))
            .into_iter()
            .map(|job| (job.key.file.0, job.range))
            .collect()
    }

    #[test]
    fn neighbours_are_joined_and_others_are_not() {
        let big = 1 << 30;
        let extents = [
            extent(1, run(0, 2)),
            extent(1, run(2, 3)),
            extent(1, run(6, 1)),
            extent(2, run(7, 1)),
            extent(1, run(7, 1)),
        ];
        let expected = [
            (1, run(0, 5)),
            (1, run(6, 1)),
            (2, run(7, 1)),
            (1, run(7, 1)),
        ];
        assert_eq!(ranges(&extents, big), expected);
    }

    #[test]
    fn no_job_is_longer_than_a_message_or_the_file() {
        let extents = [
            extent(1, run(0, 100)),
            extent(1, run(100, 10 * MESSAGE_BLOCKS)),
        ];
        let size = 300 * 4096 - 1;
        let cut = ranges(&extents, size);
        assert!(
            cut.iter()
                .all(|(_, range)| range.len() <= MESSAGE_BLOCKS && !range.is_empty())
        );
        let covered: RangeSet = cut.iter().map(|(_, range)| *range).collect();
        assert_eq!(covered.runs(), [run(0, 300)]);
        let jobs = jobs(&extents, |_| Some(key(1, size)));
        let bytes: u64 = jobs.iter().map(|job| job.byte_len(job.range)).sum();
        assert_eq!(bytes, size);
    }

    #[test]
    fn files_that_are_gone_and_blocks_behind_the_end_are_left_out() {
        let extents = [
            extent(10, run(0, 1)),
            extent(1, run(1, 1)),
            extent(2, run(0, 2)),
        ];
        assert_eq!(ranges(&extents, 4096), [(2, run(0, 1))]);
    }

    #[test]
    fn a_job_keeps_what_the_cache_has() {
        let key = key(1, 1 << 20);
        let cache = MemCache::default();
        cache.put(&key, run(2, 2), &[2; 2 * BLOCK_SIZE]);
        cache.put(&key, run(6, 1), &[6; BLOCK_SIZE]);
        let job = Job {
            key,
            range: run(1, 7),
        };
        let mut buffer = vec![0; 7 * BLOCK_SIZE];
        assert_eq!(read(&job, &cache, &mut buffer), [run(2, 2), run(6, 1)]);
        assert_eq!(buffer[BLOCK_SIZE], 2);
        assert_eq!(buffer[5 * BLOCK_SIZE], 6);
        let tired = Faulty::new(cache, Fault::Busy, 2);
        assert_eq!(read(&job, &tired, &mut buffer), [run(2, 2)]);
    }
}
