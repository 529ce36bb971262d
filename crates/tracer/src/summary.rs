//! A boot in figures, for people.

use std::collections::HashMap;

use blocks::{BLOCK_SIZE, BlockRange, Event, FileId, Touch, Warmth};

use crate::trace::{CommandId, Trace};

/// The sizes of blocks for which [`Summary::footprint`] computes the cost of recording with them.
pub const GRANULARITIES: [u64; 5] = [4 << 10, 16 << 10, 64 << 10, 128 << 10, 1 << 20];

/// What a boot did, in figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// How long the recording lasted, in microseconds.
    pub lasted_us: u64,
    /// Events that are not in the trace, because a limit was reached.
    pub lost: u64,
    /// How often content was read.
    pub reads: u64,
    /// How often a name was looked up.
    pub lookups: u64,
    /// How often a directory was listed.
    pub lists: u64,
    /// How often a symbolic link was read.
    pub read_links: u64,
    /// Files whose content was read.
    pub files: u64,
    /// Blocks of 4 KiB that were read, each counted once.
    pub blocks: u64,
    /// Bytes that were requested, repetitions included.
    pub bytes_asked: u64,
    /// Time spent on reads, in microseconds; readers may have waited in parallel.
    pub waited_us: u64,
    /// Requested bytes, by where they were.
    pub warmth: WarmthBytes,
    /// Reads that began where the last read of the same file ended.
    pub sequential: u64,
    /// Reads that began elsewhere. First reads of files are neither.
    pub jumps: u64,
    /// Runs of blocks that lie apart, over all files.
    pub runs: u64,
    /// What the blocks would come to if blocks were larger: one entry for each of
    /// [`GRANULARITIES`].
    pub footprint: Vec<Footprint>,
    /// Programs, the one with the most requested bytes first.
    pub commands: Vec<CommandShare>,
}

/// Requested bytes, by whether the source had them in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmthBytes {
    /// The disk had to be read.
    pub cold: u64,
    /// The page cache of the source had them.
    pub warm: u64,
    /// Not determined.
    pub unknown: u64,
}

/// The cost of recording with larger blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes in a block.
    pub granularity: u64,
    /// Bytes in all blocks that were touched.
    pub bytes: u64,
}

/// The requests of one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandShare {
    /// Its name; empty if unknown.
    pub command: String,
    /// Number of requests, metadata included.
    pub requests: u64,
    /// Requested bytes.
    pub bytes: u64,
}

impl Summary {
    /// Returns the figures of a trace.
    #[must_use]
    pub fn of(trace: &Trace) -> Self {
        let mut summary = Self {
            lasted_us: trace.lasted_us,
            lost: trace.lost,
            ..Self::default()
        };
        let mut last_end: HashMap<FileId, u64> = HashMap::new();
        for event in &trace.events {
            match &event.what {
                Event::Touch(Touch::Lookup { .. }) => summary.lookups += 1,
                Event::Touch(Touch::List { .. }) => summary.lists += 1,
                Event::Touch(Touch::ReadLink { .. }) => summary.read_links += 1,
                Event::Read(access) => {
                    summary.reads += 1;
                    summary.waited_us += u64::from(event.took_us);
                    add(&mut summary.bytes_asked, access.len);
                    let bytes = match access.warmth {
                        Warmth::Cold => &mut summary.warmth.cold,
                        Warmth::Warm => &mut summary.warmth.warm,
                        Warmth::Unknown => &mut summary.warmth.unknown,
                    };
                    add(bytes, access.len);
                    let end = access.offset.saturating_add(access.len);
                    match last_end.insert(access.file, end) {
                        Some(last) if last == access.offset => summary.sequential += 1,
                        Some(_) => summary.jumps += 1,
                        None => {}
                    }
                }
            }
        }
        summary.files = last_end.len() as u64;
        let touched = touched(trace);
        summary.runs = touched.len() as u64;
        summary.footprint = footprints(&touched);
        let bytes = summary.footprint.first().map_or(0, |finest| finest.bytes);
        summary.blocks = bytes / BLOCK_SIZE as u64;
        summary.commands = commands(trace);
        summary
    }
}

/// Lengths come from files that may say anything.
fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

/// Returns the blocks that were read, within the sizes of their files, as runs that lie apart.
pub(crate) fn touched(trace: &Trace) -> Vec<(FileId, BlockRange)> {
    let mut reads: Vec<(FileId, BlockRange)> = Vec::new();
    for event in &trace.events {
        let Event::Read(access) = &event.what else {
            continue;
        };
        let size = trace.file(access.file).map_or(0, |file| file.version.size);
        let range = BlockRange::covering(access.offset, access.len)
            .intersect(BlockRange::covering(0, size));
        if !range.is_empty() {
            reads.push((access.file, range));
        }
    }
    reads.sort_unstable();
    let mut runs: Vec<(FileId, BlockRange)> = Vec::new();
    for (file, range) in reads {
        match runs.last_mut() {
            Some((of, run)) if *of == file && run.touches(range) => {
                *run = BlockRange::new(run.start(), run.end().max(range.end()));
            }
            _ => runs.push((file, range)),
        }
    }
    runs
}

/// What the runs come to in blocks of each size: a block counts once, even where two runs lie in
/// it.
fn footprints(runs: &[(FileId, BlockRange)]) -> Vec<Footprint> {
    let footprint = |granularity: u64| {
        let per_block = granularity / BLOCK_SIZE as u64;
        let mut blocks: u64 = 0;
        let mut done = (FileId::ROOT, 0);
        for (file, run) in runs {
            let counted_to = if done.0 == *file { done.1 } else { 0 };
            let end = run.end().0.div_ceil(per_block);
            let start = (run.start().0 / per_block).max(counted_to);
            add(&mut blocks, end.saturating_sub(start));
            done = (*file, end);
        }
        Footprint {
            granularity,
            bytes: blocks.saturating_mul(granularity),
        }
    };
    GRANULARITIES.into_iter().map(footprint).collect()
}

/// Returns who asked for how much. Two threads of one name are one program here.
fn commands(trace: &Trace) -> Vec<CommandShare> {
    let mut shares: HashMap<CommandId, (u64, u64)> = HashMap::new();
    for event in &trace.events {
        let (requests, bytes) = shares.entry(event.command).or_default();
        *requests += 1;
        if let Event::Read(access) = &event.what {
            add(bytes, access.len);
        }
    }
    let mut shares: Vec<CommandShare> = shares
        .into_iter()
        .map(|(command, (requests, bytes))| CommandShare {
            command: trace.command(command),
            requests,
            bytes,
        })
        .collect();
    shares.sort_unstable_by(|a, b| {
        let most = |share: &CommandShare| (share.bytes, share.requests);
        most(b)
            .cmp(&most(a))
            .then_with(|| a.command.cmp(&b.command))
    });
    shares
}
