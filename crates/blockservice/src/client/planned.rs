//! The blocks of a source that boots read, fetched from the service.
//!
//! A boot image from another machine names these blocks. It is trusted with that only: the bytes are
//! those of the source's chunks, each of which is verified.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use blocks::{BlockCache, BlockRange, FileId, FileKey, Lookup, RangeSet, ReplayPlan};
use parking_lot::Mutex;

use super::Chunk;
use super::NicSource;
use super::flights::Ahead;
use super::nic_cache::blocks_of;
use crate::plan_order;
use crate::wire::Priority;

/// How many chunks of a plan are on their way, or came and were not read, at most: 64 MiB, half of what
/// is kept of them.
const AHEAD: usize = 512;
/// How many are asked for at a time.
const PART: usize = 128;

/// The blocks of a plan: reading one is a hit, if the service has it.
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
        let order = plan_order(source.remote().index(), plan);
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

    /// Returns the same blocks for a reader of the whole plan in its order: the next ones are fetched in
    /// time, with lower priority than demand reads.
    #[must_use]
    pub fn in_order(&self) -> InOrder<'_> {
        let places = self.order.iter().copied().zip(0..).collect();
        InOrder {
            planned: self,
            places,
            coming: Mutex::default(),
            last: Mutex::default(),
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

/// [`Planned`], with the next blocks being fetched. For one thread, and for a short time.
#[derive(Debug)]
pub struct InOrder<'a> {
    planned: &'a Planned,
    /// By chunk: its place in the order.
    places: HashMap<u32, usize>,
    coming: Mutex<Coming>,
    /// The chunk that was read last: the next blocks are often in it.
    last: Mutex<Option<(u32, Chunk)>>,
}

/// What was asked for ahead.
#[derive(Debug, Default)]
struct Coming {
    /// Everything before this place of the order.
    asked: usize,
    parts: VecDeque<Ahead>,
}

impl InOrder<'_> {
    /// Returns chunks, after it has asked for those that come next.
    fn fetch(&self, chunks: &[u32]) -> Vec<Option<Chunk>> {
        let places = chunks.iter().filter_map(|number| self.places.get(number));
        if let Some(place) = places.max() {
            self.ask_ahead(*place);
        }
        let source = &self.planned.source;
        let mut last = self.last.lock().take();
        let is_last = |number: &u32| last.as_ref().is_some_and(|(known, _)| known == number);
        let begins_with_last = chunks.first().is_some_and(is_last);
        let (known, lacking) = chunks.split_at(usize::from(begins_with_last));
        let mut found: Vec<_> = known
            .iter()
            .map(|_| last.take().map(|(_, chunk)| chunk))
            .collect();
        // Memory for the next ones.
        drop(last);
        if !lacking.is_empty() {
            found.extend(source.at_hand(lacking, Priority::Readahead));
        }
        let newest = chunks.last().zip(found.last());
        *self.last.lock() = newest.and_then(|(number, chunk)| Some((*number, chunk.clone()?)));
        found
    }

    /// Asks for what comes after `place`, as far as it was not asked for.
    fn ask_ahead(&self, place: usize) {
        let order = &self.planned.order;
        let mut coming = self.coming.lock();
        while coming.asked < order.len() && coming.asked < place + AHEAD {
            let end = order.len().min(coming.asked + PART);
            let part = order[coming.asked..end].iter().copied();
            let part: Vec<_> = part.filter(|n| !self.planned.source.has(*n)).collect();
            coming.asked = end;
            if !part.is_empty() {
                let part = self.planned.source.remote().ahead(&part);
                coming.parts.push_back(part);
            }
            // What was passed is here, or nobody comes back to it.
            if coming.parts.len() > AHEAD / PART + 1 {
                coming.parts.pop_front();
            }
        }
    }
}

impl BlockCache for InOrder<'_> {
    fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        let fetch = |chunks: Vec<u32>| self.fetch(&chunks);
        self.planned.get_by(file, range, out, fetch)
    }
}
