//! When each block was first read: in one run, then over all of them.
//!
//! Both steps work on runs of blocks between the places where some read begins or ends, never on
//! single blocks: a read of a gigabyte costs what a read of a page costs.

use std::collections::HashMap;

use blocks::{BlockIndex, BlockRange, Event, FileId};

use super::Match;
use crate::trace::Trace;

/// Blocks of a file that one run read first at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FirstRead {
    pub(super) file: FileId,
    pub(super) range: BlockRange,
    pub(super) at_us: u64,
}

/// Blocks of a file that equally many runs read, and that are needed at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) file: FileId,
    pub(super) range: BlockRange,
    pub(super) at_us: u64,
    pub(super) seen: u16,
}

/// Returns the first reads of a run: disjoint, sorted by file and place, cut to the files' sizes.
pub(super) fn of_run(trace: &Trace, matched: &HashMap<FileId, Match>) -> Vec<FirstRead> {
    let mut reads: Vec<FirstRead> = trace
        .events
        .iter()
        .filter_map(|event| {
            let Event::Read(access) = &event.what else {
                return None;
            };
            let found = matched.get(&access.file)?;
            let range = BlockRange::covering(access.offset, access.len).intersect(found.blocks?);
            (!range.is_empty()).then_some(FirstRead {
                file: found.file,
                range,
                at_us: event.at_us,
            })
        })
        .collect();
    // Stable: within a file, earlier reads stay first.
    reads.sort_by_key(|read| read.file);
    let mut first = Vec::new();
    for of_file in reads.chunk_by(|a, b| a.file == b.file) {
        claim(of_file, &mut first);
    }
    first
}

/// Gives every block to the first of `reads`, which are of one file and in the order of time.
fn claim(reads: &[FirstRead], first: &mut Vec<FirstRead>) {
    let cuts = cuts(reads.iter().map(|read| read.range));
    let place = |block: BlockIndex| cuts.partition_point(|cut| *cut < block);
    let mut at_us: Vec<Option<u64>> = vec![None; cuts.len()];
    // Cell i lies between cuts i and i + 1; `free` leads to the first unclaimed cell from i on.
    let mut free = FreeCells::new(cuts.len());
    for read in reads {
        let start = place(read.range.start());
        let end = place_after(&cuts, start, read.range.end());
        let mut cell = free.from(start);
        while cell < end {
            at_us[cell] = Some(read.at_us);
            cell = free.take(cell);
        }
    }
    let file = reads.first().map_or(FileId::ROOT, |read| read.file);
    let from = first.len();
    for (cell, pair) in cuts.windows(2).enumerate() {
        let Some(at_us) = at_us[cell] else {
            continue;
        };
        match first[from..].last_mut() {
            Some(last) if last.range.end() == pair[0] && last.at_us == at_us => {
                last.range = BlockRange::new(last.range.start(), pair[1]);
            }
            _ => first.push(FirstRead {
                file,
                range: BlockRange::new(pair[0], pair[1]),
                at_us,
            }),
        }
    }
}

/// Returns every place where a range begins or ends, sorted, each once.
fn cuts(ranges: impl Iterator<Item = BlockRange>) -> Vec<BlockIndex> {
    let mut cuts: Vec<BlockIndex> = ranges.flat_map(|r| [r.start(), r.end()]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

/// Returns the place of `block` among `cuts`, which is `from` or behind it. Most reads are short, so
/// it is near: steps that double find it in the cache, where a search over all would not look.
fn place_after(cuts: &[BlockIndex], from: usize, block: BlockIndex) -> usize {
    let behind = &cuts[from..];
    let mut step = 1;
    while behind.get(step).is_some_and(|cut| *cut < block) {
        step *= 2;
    }
    let near = &behind[step / 2..behind.len().min(step)];
    from + step / 2 + near.partition_point(|cut| *cut < block)
}

/// A row of cells of which some are taken: finds the next free one in next to no time, however
/// many are taken in between, by remembering where earlier searches ended.
struct FreeCells {
    next: Vec<usize>,
}

impl FreeCells {
    fn new(cells: usize) -> Self {
        Self {
            next: (0..=cells).collect(),
        }
    }

    /// Returns the first free cell from `cell` on; the number of cells if there is none.
    fn from(&mut self, cell: usize) -> usize {
        let mut end = cell;
        while self.next[end] != end {
            end = self.next[end];
        }
        let mut at = cell;
        while self.next[at] != end {
            at = std::mem::replace(&mut self.next[at], end);
        }
        end
    }

    /// Takes `cell` and returns the first free one behind it.
    fn take(&mut self, cell: usize) -> usize {
        self.next[cell] = cell + 1;
        self.from(cell + 1)
    }
}

/// Lays the runs over each other: which blocks how many of them read, and when they are needed.
/// Disjoint, sorted by file and place.
pub(super) fn combine(runs: &[Vec<FirstRead>]) -> Vec<Piece> {
    let mut edges: Vec<Edge> = runs
        .iter()
        .flatten()
        .flat_map(|read| {
            let edge = |at, side| Edge {
                file: read.file,
                at,
                side,
                at_us: read.at_us,
            };
            [
                edge(read.range.start(), Side::Start),
                edge(read.range.end(), Side::End),
            ]
        })
        .collect();
    edges.sort_unstable_by_key(|edge| (edge.file, edge.at));
    let mut pieces = Vec::new();
    // The times of the runs that read the blocks at hand, sorted: one for each run at most, since
    // first reads of one run are disjoint.
    let mut times: Vec<u64> = Vec::with_capacity(runs.len());
    let mut start = BlockIndex::default();
    for here in edges.chunk_by(|a, b| (a.file, a.at) == (b.file, b.at)) {
        let range = BlockRange::new(start, here[0].at);
        if let Some(at_us) = lower_median(&times) {
            pieces.push(Piece {
                file: here[0].file,
                range,
                at_us,
                seen: u16::try_from(times.len()).unwrap_or(u16::MAX),
            });
        }
        // What ends here goes before what starts here: there may be as many of either.
        for edge in here.iter().filter(|edge| edge.side == Side::End) {
            if let Ok(place) = times.binary_search(&edge.at_us) {
                times.remove(place);
            }
        }
        for edge in here.iter().filter(|edge| edge.side == Side::Start) {
            let place = times.partition_point(|time| *time < edge.at_us);
            times.insert(place, edge.at_us);
        }
        start = here[0].at;
    }
    pieces
}

/// Where a first read begins or ends.
#[derive(Clone, Copy)]
struct Edge {
    file: FileId,
    at: BlockIndex,
    side: Side,
    at_us: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Start,
    End,
}

/// The middle of sorted times; the earlier of two middles.
fn lower_median(sorted: &[u64]) -> Option<u64> {
    sorted.get(sorted.len().checked_sub(1)? / 2).copied()
}
