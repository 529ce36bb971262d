//! The blocks of a source that boots read, fetched from the service.
//!
//! Which blocks these are is told by a boot image that another machine made. It is trusted with that
//! only: the bytes are those of the source's chunks, each of which is verified.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use blocks::{BlockCache, BlockRange, FileId, FileKey, Lookup, RangeSet, ReplayPlan};
use parking_lot::Mutex;

use super::NicSource;
use super::nic_cache::blocks_of;
use super::remote::Chunk;
use crate::wire::Priority;

/// Chunks that are fetched ahead at a time, at most: 4 MiB of a window that is usually 16.
const BATCH: usize = 32;
/// Chunks that are kept while a plan is gone through, at most: it comes back to many of them, for
/// other blocks. 32 MiB.
const KEPT: usize = 256;

/// The blocks of a plan: what of them is asked for is a hit, if the service has it.
#[derive(Debug)]
pub struct Planned {
    source: Arc<NicSource>,
    blocks: HashMap<FileId, RangeSet>,
    /// The chunks that they lie in, in the order in which boots came to them.
    order: Vec<u32>,
}

impl Planned {
    /// Returns the blocks of a plan, whose files are those of the source's index.
    #[must_use]
    pub fn new(source: Arc<NicSource>, plan: &ReplayPlan) -> Self {
        let index = source.remote().index();
        let (mut order, mut known) = (Vec::new(), HashSet::new());
        for extent in &plan.extents {
            let start = extent.range.bytes().start;
            let chunks = index.covering(extent.file, start, extent.range.byte_len());
            order.extend(chunks.filter(|number| known.insert(*number)));
        }
        // In order they are put together quickly, however another machine has mixed them.
        let mut ranges: Vec<_> = plan.extents.iter().map(|e| (e.file, e.range)).collect();
        ranges.sort_unstable_by_key(|(file, range)| (*file, range.start()));
        let mut blocks: HashMap<FileId, RangeSet> = HashMap::new();
        for (file, range) in ranges {
            blocks.entry(file).or_default().insert(range);
        }
        Self {
            source,
            blocks,
            order,
        }
    }

    /// Returns the same blocks for who goes through all of the plan in its order: what comes next
    /// is fetched in time, less urgently than what somebody waits for.
    #[must_use]
    pub fn in_order(&self) -> InOrder<'_> {
        let places = self.order.iter().copied().zip(0..).collect();
        InOrder {
            planned: self,
            places,
            kept: Mutex::default(),
        }
    }

    /// Returns the blocks at the start of `range` that are in the plan, or how many are not.
    fn known(&self, file: &FileKey, range: BlockRange) -> Result<BlockRange, u64> {
        let index = self.source.remote().index();
        let set = self.blocks.get(&file.file);
        let set = set.filter(|_| index.tree().key(file.file) == Some(*file));
        let run = set.and_then(|set| set.within(range).next());
        match run {
            None => Err(range.len()),
            Some(run) if run.start() > range.start() => Err(run.start().0 - range.start().0),
            Some(run) => Ok(run),
        }
    }

    fn get_by(
        &self,
        file: &FileKey,
        range: BlockRange,
        out: &mut [u8],
        fetch: impl FnOnce(Vec<u32>) -> Vec<Option<Chunk>>,
    ) -> Lookup {
        let run = match self.known(file, range) {
            Ok(run) => run,
            Err(blocks) => return Lookup::Miss { blocks },
        };
        let len = usize::try_from(run.byte_len()).unwrap_or(usize::MAX);
        let out = &mut out[..len];
        let index = self.source.remote().index();
        let chunks = index.covering(file.file, run.bytes().start, run.byte_len());
        blocks_of(&fetch(chunks.collect()), run, out)
    }
}

impl BlockCache for Planned {
    fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        let fetch = |chunks: Vec<u32>| self.source.at_hand(&chunks, Priority::Demand);
        self.get_by(file, range, out, fetch)
    }
}

/// [`Planned`], with what comes next at hand. Meant for one thread, and not for long: it keeps what
/// it fetched.
#[derive(Debug)]
pub struct InOrder<'a> {
    planned: &'a Planned,
    /// By chunk: its place in the order.
    places: HashMap<u32, usize>,
    kept: Mutex<FetchedChunks>,
}

/// Chunks that were fetched; the oldest go first.
#[derive(Debug, Default)]
struct FetchedChunks {
    chunks: BTreeMap<u32, Chunk>,
    ages: VecDeque<u32>,
}

impl FetchedChunks {
    fn add(&mut self, number: u32, chunk: Chunk) {
        if self.chunks.insert(number, chunk).is_none() {
            self.ages.push_back(number);
        }
        if self.ages.len() > KEPT
            && let Some(oldest) = self.ages.pop_front()
        {
            self.chunks.remove(&oldest);
        }
    }
}

impl InOrder<'_> {
    /// Returns chunks, and fetches, if one of them is not at hand, what comes after it, too.
    fn fetch(&self, chunks: &[u32]) -> Vec<Option<Chunk>> {
        let mut kept = self.kept.lock();
        let lacking = chunks.iter().find(|n| !kept.chunks.contains_key(n));
        if let Some(place) = lacking.and_then(|number| self.places.get(number)) {
            let next = self.planned.order[*place..].iter();
            let next = next.filter(|number| !kept.chunks.contains_key(number));
            let next: Vec<_> = next.take(BATCH).copied().collect();
            let found = self.planned.source.at_hand(&next, Priority::Readahead);
            for (number, chunk) in next.into_iter().zip(found) {
                if let Some(chunk) = chunk {
                    kept.add(number, chunk);
                }
            }
        }
        let at_hand = chunks.iter().map(|number| kept.chunks.get(number).cloned());
        at_hand.collect()
    }
}

impl BlockCache for InOrder<'_> {
    fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        let fetch = |chunks: Vec<u32>| self.fetch(&chunks);
        self.planned.get_by(file, range, out, fetch)
    }
}
