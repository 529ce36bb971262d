//! The requests of a pass: which parts of which segments are read, in the order of the disk, each as large as the
//! disk takes at once.
//!
//! A segment's header, its blocks and its table follow each other in its file. They are one stretch of it, as far as a
//! gap between wanted parts takes less time to read than a seek.

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::Instant;

use blocks::{BlockIndex, BlockRange, ContentId, RangeSet};

use super::device::{Device, SEEKS};
use super::order::place_on_disk;
use crate::backing::Backing;
use crate::layout::{PAGE, PAGE_BYTES, len_usize};
use crate::reader::open_regular;
use crate::store::places::Places;
use crate::store::segment::blocks_of_file;

/// What is read first of a file. The kernel reads ahead as much again, and continues with folios that grow. With more, it
/// begins with as much as it ever reads ahead, in single pages, of which a request has 128 on many disks.
const FIRST_PAGES: u64 = 64;

/// A segment of which blocks are wanted.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) id: ContentId,
    /// The blocks.
    pub(super) wanted: RangeSet,
    /// The number of its blocks; none if it cannot be read.
    pub(super) blocks: u64,
    /// Its file and its length; an empty one if it cannot be read.
    file: Backing,
    len: u64,
}

/// A part of a segment's file, or its end.
#[derive(Debug)]
pub(super) enum Step {
    /// Pages that are wanted, and those behind them are not.
    Part(Arc<Source>, BlockRange),
    /// Pages of a stretch that goes to the end of the file. The kernel reads ahead in it, with larger requests than it
    /// takes from anybody, and brings nothing that is not wanted.
    Rest(Arc<Source>, BlockRange),
    /// All of it was read.
    End(Arc<Source>),
}

/// All steps of a pass.
#[derive(Debug)]
pub(super) struct Requests<'a> {
    places: &'a Places,
    segments: VecDeque<(ContentId, RangeSet)>,
    /// The steps of the segment that is being read.
    steps: VecDeque<Step>,
}

impl Source {
    fn open(places: &Places, id: ContentId, wanted: RangeSet) -> Self {
        let path = places.segment(&id);
        let file = open_regular(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let file = file.inspect_err(|error| log::warn!("{}: {error}", path.display()));
        let blocks = file.as_ref().ok().and_then(|(len, _)| blocks_of_file(*len));
        let (len, file) = match (file, blocks) {
            (Ok((len, file)), Some(_)) => (len, Backing::file(file)),
            _ => (0, Backing::Memory(Arc::default())),
        };
        Self {
            id,
            wanted,
            blocks: blocks.unwrap_or(0),
            file,
            len,
        }
    }

    /// Returns which pages of its file hold what is wanted, with its header and its table, or what lies between these if
    /// no more than `gap` pages do.
    fn pages(&self, gap: u64) -> Vec<BlockRange> {
        if self.len == 0 {
            return Vec::new();
        }
        let page = |start: u64, end: u64| BlockRange::new(BlockIndex(start), BlockIndex(end));
        let data = self.wanted.within(page(0, self.blocks));
        let data = data.map(|run| page(run.start().0 + 1, run.end().0 + 1));
        let table = page(self.blocks + 1, self.len.div_ceil(PAGE_BYTES));
        let all: RangeSet = [page(0, 1), table].into_iter().chain(data).collect();
        join(&all, gap)
    }

    /// Returns how many bytes these pages have: the last one of a file may be cut.
    fn len_of(&self, pages: BlockRange) -> u64 {
        (pages.end().0 * PAGE_BYTES).min(self.len) - pages.start().0 * PAGE_BYTES
    }
}

impl Step {
    /// Returns how many bytes are read.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Part(source, pages) | Self::Rest(source, pages) => source.len_of(*pages),
            Self::End(_) => 0,
        }
    }

    /// Has the kernel begin to read, unless it reads ahead by itself.
    pub(super) fn begin(&self) {
        if let Self::Part(source, pages) = self {
            let at = pages.start().0 * PAGE_BYTES;
            source.file.advise_soon(at, self.len());
        }
    }

    /// Reads into a buffer, which is empty afterwards if the bytes cannot be read.
    pub(super) fn read(&self, bytes: &mut Vec<u8>) {
        bytes.resize(len_usize(self.len()), 0);
        let at = |pages: &BlockRange| pages.start().0 * PAGE_BYTES;
        let (source, read) = match self {
            Self::Part(source, pages) => (source, source.file.read_only_this(at(pages), bytes)),
            Self::Rest(source, pages) => (source, source.file.read(at(pages), bytes)),
            Self::End(_) => return,
        };
        if let Err(error) = read {
            log::warn!("segment {}: {error}", source.id);
            bytes.clear(); // what is missing is not right
        }
    }
}

impl<'a> Requests<'a> {
    /// Returns the requests for what is wanted of segments, in the order in which `places` has them on the disk.
    pub(super) fn new(places: &'a Places, wanted: BTreeMap<ContentId, RangeSet>) -> Self {
        let place = |id: &ContentId| {
            let file = open_regular(&places.segment(id));
            file.map_or(0, |file| place_on_disk(&file))
        };
        Self {
            places,
            segments: in_order(wanted, place),
            steps: VecDeque::new(),
        }
    }

    /// Measures how long the disk takes for one page each of segments that lie apart: the last one, which is read last
    /// anyway.
    pub(super) fn measure(&self) -> Device {
        let first = self.segments.front();
        let first = first.and_then(|(id, _)| self.places.segment(id).metadata().ok());
        let mut device = Device::of(first.map_or(0, |meta| meta.dev()));
        let step = self.segments.len().div_ceil(SEEKS).max(1);
        let last_page = |(id, _): &(ContentId, RangeSet)| {
            // One that cannot be read is told of when its turn comes.
            let file = Backing::file(open_regular(&self.places.segment(id)).ok()?);
            let len = file.len().ok()?;
            Some((file, len.saturating_sub(1) / PAGE_BYTES * PAGE_BYTES, len))
        };
        let apart = self.segments.iter().rev().step_by(step);
        let apart: Vec<_> = apart.filter_map(last_page).collect();
        let started = Instant::now();
        for (file, at, len) in &apart {
            file.advise_soon(*at, len - at);
        }
        let mut page = [0; PAGE];
        for (file, at, len) in &apart {
            let rest = &mut page[..len_usize(len - at)];
            if let Err(error) = file.read_only_this(*at, rest) {
                log::debug!("the disk is measured with one read less: {error}");
            }
        }
        device.seek(apart.len(), started.elapsed());
        device
    }

    /// Returns the next step, as the disk was measured so far.
    pub(super) fn next(&mut self, device: &Device) -> Option<Step> {
        if self.steps.is_empty() {
            let (id, wanted) = self.segments.pop_front()?;
            let source = Arc::new(Source::open(self.places, id, wanted));
            for mut rest in source.pages(device.gap_bytes() / PAGE_BYTES) {
                let step = match rest.end().0 * PAGE_BYTES >= source.len {
                    true => Step::Rest,
                    false => Step::Part,
                };
                let mut most = match rest.start().0 {
                    0 => FIRST_PAGES,
                    _ => device.request_bytes() / PAGE_BYTES,
                };
                while !rest.is_empty() {
                    let (pages, after) = rest.split_first(most);
                    most = device.request_bytes() / PAGE_BYTES;
                    self.steps.push_back(step(Arc::clone(&source), pages));
                    rest = after;
                }
            }
            self.steps.push_back(Step::End(source));
        }
        self.steps.pop_front()
    }
}

/// Returns segments in the order of their places.
fn in_order(
    wanted: BTreeMap<ContentId, RangeSet>,
    place: impl Fn(&ContentId) -> u64,
) -> VecDeque<(ContentId, RangeSet)> {
    let mut placed: Vec<_> = wanted
        .into_iter()
        .map(|(id, set)| (place(&id), id, set))
        .collect();
    placed.sort_unstable_by_key(|(place, id, _)| (*place, *id));
    placed.into_iter().map(|(_, id, set)| (id, set)).collect()
}

/// Returns the runs of a set, joined where no more than `gap` blocks lie between them.
fn join(wanted: &RangeSet, gap: u64) -> Vec<BlockRange> {
    let mut joined: Vec<BlockRange> = Vec::new();
    for run in wanted.runs() {
        match joined.last_mut() {
            Some(last) if run.start().0 - last.end().0 <= gap => {
                *last = BlockRange::new(last.start(), run.end());
            }
            _ => joined.push(*run),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    use crate::layout::HASH;
    use std::fs::File;

    fn run(start: u64, end: u64) -> BlockRange {
        BlockRange::new(BlockIndex(start), BlockIndex(end))
    }

    fn all(blocks: u64) -> RangeSet {
        [run(0, blocks)].into_iter().collect()
    }

    #[test]
    fn runs_are_joined_over_small_gaps() {
        let wanted: RangeSet = [run(0, 4), run(6, 8), run(20, 21)].into_iter().collect();
        assert_eq!(join(&wanted, 0), wanted.runs());
        assert_eq!(join(&wanted, 2), [run(0, 8), run(20, 21)]);
        assert_eq!(join(&wanted, 100), [run(0, 21)]);
    }

    #[test]
    fn segments_come_in_the_order_of_their_places() {
        let ids = [3, 1, 2, 0].map(|byte: u8| ContentId::of(&[byte]));
        let wanted = ids.iter().map(|id| (*id, all(1))).collect();
        let place = |id: &ContentId| ids.iter().position(|known| known == id).unwrap() as u64;
        let ordered = in_order(wanted, place);
        assert!(ordered.iter().map(|(id, _)| id).eq(&ids));
        assert!(!ordered.iter().map(|(id, _)| id).is_sorted());
    }

    /// Makes a store of segments, which are not valid, each of so many blocks, one after the other.
    fn store(dir: &std::path::Path, blocks: &[u64]) -> (Places, Vec<ContentId>) {
        fs::create_dir(dir.join("segments")).unwrap();
        let places = Places::of(dir.to_owned(), None).unwrap();
        let ids = (0..).zip(blocks).map(|(number, blocks): (u64, _)| {
            let id = ContentId::of(&number.to_le_bytes());
            let len = PAGE_BYTES + blocks * (PAGE_BYTES + HASH as u64);
            let file = File::create(places.segment(&id)).unwrap();
            std::io::Write::write_all(&mut &file, &vec![1; len_usize(len)]).unwrap();
            file.sync_all().unwrap();
            id
        });
        let ids = ids.collect();
        (places, ids)
    }

    #[test]
    fn a_pass_goes_over_the_disk_once() {
        // On a disk: a temporary directory may be memory, which has no places.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (places, ids) = store(dir.path(), &[40; 24]);
        let wanted = ids.iter().map(|id| (*id, all(40))).collect();
        let mut requests = Requests::new(&places, wanted);
        let device = Device::of(0);
        let mut order = Vec::new();
        while let Some(step) = requests.next(&device) {
            if let Step::End(source) = step {
                order.push(source.id);
            }
        }
        let place = |id: &ContentId| place_on_disk(&File::open(places.segment(id)).unwrap());
        assert!(order.iter().map(place).is_sorted());
        // They do not lie in the order of their names.
        assert!(order.len() == 24 && !order.is_sorted());
        assert!(order.iter().all(|id| place(id) > 0));
    }

    #[test]
    fn header_blocks_and_table_are_one_stretch() {
        let dir = tempfile::tempdir().unwrap();
        let (places, ids) = store(dir.path(), &[600]);
        let device = Device::of(0); // 256 pages
        let reads = |wanted: RangeSet| {
            let mut requests = Requests::new(&places, BTreeMap::from([(ids[0], wanted)]));
            let steps = std::iter::from_fn(|| requests.next(&device));
            let reads = steps.filter_map(|step| match &step {
                Step::Part(_, pages) => Some(("part", *pages, step.len())),
                Step::Rest(_, pages) => Some(("rest", *pages, step.len())),
                Step::End(_) => None,
            });
            reads.collect::<Vec<_>>()
        };
        // 601 pages, and 600 hashes in 5 pages, the last of which has 2816 bytes.
        let cut = (606 - 576) * PAGE_BYTES - (PAGE_BYTES - 2816);
        let whole = [
            ("rest", run(0, 64), 256 << 10),
            ("rest", run(64, 320), 1 << 20),
            ("rest", run(320, 576), 1 << 20),
            ("rest", run(576, 606), cut),
        ];
        assert_eq!(reads(all(600)), whole);
        // Nothing is known of the disk: no gap is read.
        let part = reads([run(10, 20)].into_iter().collect());
        let part: Vec<_> = part
            .into_iter()
            .map(|(how, pages, _)| (how, pages))
            .collect();
        let want = [
            ("part", run(0, 1)),
            ("part", run(11, 21)),
            ("rest", run(601, 606)),
        ];
        assert_eq!(part, want);
        // Past its end there is nothing to read.
        assert_eq!(reads([run(600, 999)].into_iter().collect()).len(), 2);
    }
}
