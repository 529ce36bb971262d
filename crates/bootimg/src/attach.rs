//! Serving an image to the source as it is now.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use blocks::{
    BLOCK_SIZE, BlockCache, BlockRange, Extent, FileKey, Lookup, ReplayPlan, Touch, Tree, Version,
};

use crate::data::DataSpace;
use crate::extents::Content;
use crate::first_of::PATHS_BUDGET;
use crate::index::{ExtentIndex, Find};
use crate::layout::{hash, len_usize};
use crate::{DroppedFile, FirstOf, Image};

mod hint;
mod matching;
mod passing;

pub use hint::Hint;
use matching::{Matching, Sameness};
pub use passing::Passing;

/// The result of attaching an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttachReport {
    /// Files of the image that are served.
    pub files_kept: u64,
    /// Files of the image that are not, and why.
    pub dropped: FirstOf<DroppedFile>,
    /// Blocks that are served.
    pub blocks_kept: u64,
    /// Blocks that are not.
    pub blocks_dropped: u64,
    /// Names in the source that are not in the image.
    pub names_added: u64,
    /// Names in the image that the source no longer has.
    pub names_removed: u64,
}

impl AttachReport {
    /// Returns whether the source is as recorded, as far as the image shows.
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        self.dropped.is_empty() && self.names_added == 0 && self.names_removed == 0
    }
}

/// What an attached image did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachedCounts {
    /// Blocks served.
    pub blocks: u64,
    /// Those of them that are zero and were read from nowhere.
    pub zero_blocks: u64,
    /// Bytes read from the image and hashed.
    pub verified_bytes: u64,
    /// Reads with a wrong hash: the source was read instead.
    pub damaged_reads: u64,
    /// Reads that failed: the source was read instead.
    pub failed_reads: u64,
    /// Reads from a copy on faster memory that failed or were damaged: the store's own file was read
    /// instead.
    pub copy_failures: u64,
}

/// An image, attached to a tree: a cache under that tree's file ids.
#[derive(Debug)]
pub struct Attached {
    image: Arc<Image>,
    matching: Matching,
    index: ExtentIndex,
    /// By number of the file in the index: the version that the image has of it.
    versions: Vec<Version>,
    plan: ReplayPlan,
    report: AttachReport,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    blocks: AtomicU64,
    zero_blocks: AtomicU64,
    verified_bytes: AtomicU64,
    damaged_reads: AtomicU64,
    failed_reads: AtomicU64,
    copy_failures: AtomicU64,
}

impl Image {
    /// Matches the image with a tree: files by path and version, hard links by any of their
    /// paths. Files that do not match are dropped and reported, the rest gets the tree's file ids.
    #[must_use]
    pub fn attach(self: Arc<Self>, current: &Tree) -> Attached {
        Attached::new(self, current)
    }
}

impl Attached {
    fn new(image: Arc<Image>, current: &Tree) -> Self {
        let read_at = image.info().source.recorded_at;
        let matching = Matching::of(image.tree(), current, Sameness::Version { read_at });
        let ids = image
            .plan()
            .extents
            .iter()
            .map(|extent| (matching.file(extent.file), extent.range));
        // Dropped extents keep their numbers: those are the rows of the image.
        let nowhere = blocks::FileId(u32::MAX);
        let index = ExtentIndex::new(
            current.len(),
            ids.map(|(file, range)| (file.unwrap_or(nowhere), range)),
        );
        let versions = index
            .files()
            .filter_map(|file| current.key(file).map(|key| key.version))
            .collect();
        let plan = translate(image.plan(), &matching);
        let report = report(&image, &matching);
        Self {
            image,
            matching,
            index,
            versions,
            plan,
            report,
            counters: Counters::default(),
        }
    }

    /// Returns the image.
    #[must_use]
    pub const fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// Returns the plan, without dropped files, in the file ids of the tree.
    #[must_use]
    pub const fn plan(&self) -> &ReplayPlan {
        &self.plan
    }

    /// Returns which files matched.
    #[must_use]
    pub const fn report(&self) -> &AttachReport {
        &self.report
    }

    /// Returns its counters.
    #[must_use]
    pub fn counts(&self) -> AttachedCounts {
        AttachedCounts {
            blocks: self.counters.blocks.load(Relaxed),
            zero_blocks: self.counters.zero_blocks.load(Relaxed),
            verified_bytes: self.counters.verified_bytes.load(Relaxed),
            damaged_reads: self.counters.damaged_reads.load(Relaxed),
            failed_reads: self.counters.failed_reads.load(Relaxed),
            copy_failures: self.counters.copy_failures.load(Relaxed),
        }
    }

    /// Returns the served extents, in the file ids of the tree, with their data in the image.
    pub(crate) fn extents(&self) -> impl Iterator<Item = (Extent, Content)> {
        let rows = self.image.rows.iter();
        rows.filter_map(|row| {
            let file = self.matching.file(row.extent.file)?;
            Some((Extent { file, ..row.extent }, row.content))
        })
    }

    /// Fills `out` with `wanted`, a part of the extent that has that number and range. Returns
    /// whether it could.
    fn fill(
        &self,
        number: u32,
        range: BlockRange,
        wanted: BlockRange,
        out: &mut [u8],
        ways: &Ways<'_>,
    ) -> bool {
        match self.image.rows[number as usize].content {
            Content::Zero => {
                out.fill(0);
                self.counters.zero_blocks.fetch_add(wanted.len(), Relaxed);
                true
            }
            Content::Data { place, hash } if range == wanted => {
                self.read(place, &hash, out, ways.whole)
            }
            Content::Data { place, hash } => SCRATCH.with_borrow_mut(|scratch| {
                scratch.resize(len_usize(range.byte_len()), 0);
                if !self.read(place, &hash, scratch, ways.part) {
                    return false;
                }
                let skip = len_usize(wanted.start().0 - range.start().0) * BLOCK_SIZE;
                out.copy_from_slice(&scratch[skip..skip + out.len()]);
                true
            }),
        }
    }

    /// Reads a whole extent and verifies it: from a copy on faster memory if this is one, and from
    /// the store's own file if that fails.
    fn read(&self, place: u64, want: &[u8; 32], out: &mut [u8], read: &ReadData<'_>) -> bool {
        let Some(copy) = &self.image.copy_of else {
            return self.read_own(&self.image, place, want, out, read);
        };
        let why = match read(&self.image.data, place, out) {
            Ok(()) if hash(out) == *want => {
                let bytes = out.len() as u64;
                self.counters.verified_bytes.fetch_add(bytes, Relaxed);
                return true;
            }
            Ok(()) => "it is damaged".to_owned(),
            Err(error) => error.to_string(),
        };
        if self.counters.copy_failures.fetch_add(1, Relaxed) == 0 {
            let (id, tier) = (self.image.info().id.short(), copy.tier());
            log::warn!(
                "boot image {id}: the copy on {tier} fails: {why}; the store's own file is read \
                 instead"
            );
        }
        copy.own()
            .is_some_and(|own| self.read_own(own, place, want, out, read))
    }

    /// Reads a whole extent of an image of the store, and verifies it.
    fn read_own(
        &self,
        image: &Image,
        place: u64,
        want: &[u8; 32],
        out: &mut [u8],
        read: &ReadData<'_>,
    ) -> bool {
        if let Err(error) = read(&image.data, place, out) {
            if self.counters.failed_reads.fetch_add(1, Relaxed) == 0 {
                log::warn!(
                    "boot image {}: cannot read: {error}",
                    self.image.info().id.short()
                );
            }
            return false;
        }
        let bytes = out.len() as u64;
        self.counters.verified_bytes.fetch_add(bytes, Relaxed);
        if hash(out) == *want {
            return true;
        }
        if self.counters.damaged_reads.fetch_add(1, Relaxed) == 0 {
            let id = self.image.info().id.short();
            log::warn!("boot image {id}: damaged; reading the source instead");
        }
        false
    }
}

thread_local! {
    /// Room for one extent: reads that want a part of one have to verify all of it.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A way of reading the data of an image.
type ReadData<'a> = dyn Fn(&DataSpace, u64, &mut [u8]) -> io::Result<()> + 'a;

/// How extents are read of which all is wanted, and those of which a part is.
struct Ways<'a> {
    whole: &'a ReadData<'a>,
    part: &'a ReadData<'a>,
}

const ANYHOW: Ways<'static> = Ways {
    whole: &DataSpace::read,
    part: &DataSpace::read,
};

/// A reader of a part of an extent usually reads the rest next, and all of it is verified each time:
/// it stays in memory.
const ONCE: Ways<'static> = Ways {
    whole: &DataSpace::read_once,
    part: &DataSpace::read,
};

impl BlockCache for Attached {
    fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        self.get_by(file, range, out, &ANYHOW)
    }

    fn get_once(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        self.get_by(file, range, out, &ONCE)
    }
}

impl Attached {
    fn get_by(&self, file: &FileKey, range: BlockRange, out: &mut [u8], ways: &Ways<'_>) -> Lookup {
        let (range, _) = range.split_first((out.len() / BLOCK_SIZE) as u64);
        let all = Lookup::Miss {
            blocks: range.len(),
        };
        let Some(extents) = self.index.file(file.file) else {
            return all;
        };
        if self.versions.get(extents.number) != Some(&file.version) {
            return all;
        }
        let mut rest = range;
        let mut out = out;
        while !rest.is_empty() {
            let done = range.len() - rest.len();
            let missing = match extents.find(rest.start()) {
                Find::Gap { blocks } => blocks.min(rest.len()),
                Find::Extent {
                    number,
                    range: extent,
                } => {
                    let (wanted, after) = rest.split_at(extent.end());
                    let (here, behind) = out.split_at_mut(len_usize(wanted.byte_len()));
                    if self.fill(number, extent, wanted, here, ways) {
                        (rest, out) = (after, behind);
                        continue;
                    }
                    wanted.len()
                }
            };
            if done == 0 {
                return Lookup::Miss { blocks: missing };
            }
            break;
        }
        let blocks = range.len() - rest.len();
        self.counters.blocks.fetch_add(blocks, Relaxed);
        if blocks == 0 {
            all
        } else {
            Lookup::Hit { blocks }
        }
    }
}

fn translate(plan: &ReplayPlan, matching: &Matching) -> ReplayPlan {
    let extents = plan.extents.iter();
    let touches = plan.touches.iter();
    ReplayPlan {
        runs: plan.runs,
        bin_ms: plan.bin_ms,
        extents: extents
            .filter_map(|extent| {
                let file = matching.file(extent.file)?;
                Some(Extent { file, ..*extent })
            })
            .collect(),
        // A name that is found or missing now and was not then is only looked up again.
        touches: touches
            .filter_map(|touch| {
                Some(match touch {
                    Touch::Lookup { dir, name } => Touch::Lookup {
                        dir: matching.file(*dir)?,
                        name: name.clone(),
                    },
                    Touch::List { dir } => Touch::List {
                        dir: matching.file(*dir)?,
                    },
                    Touch::ReadLink { link } => Touch::ReadLink {
                        link: matching.file(*link)?,
                    },
                })
            })
            .collect(),
    }
}

fn report(image: &Image, matching: &Matching) -> AttachReport {
    let mut report = AttachReport {
        names_added: matching.names_added,
        names_removed: matching.names_removed,
        ..AttachReport::default()
    };
    let mut files: Vec<(blocks::FileId, u64)> = image
        .plan()
        .extents
        .iter()
        .map(|extent| (extent.file, extent.range.len()))
        .collect();
    files.sort_unstable();
    let mut paths = image.tree().paths_within(PATHS_BUDGET);
    for of_file in files.chunk_by(|a, b| a.0 == b.0) {
        let blocks = of_file.iter().map(|(_, blocks)| blocks).sum();
        let file = of_file[0].0;
        match matching.verdict(file) {
            Ok(_) => {
                report.files_kept += 1;
                report.blocks_kept += blocks;
            }
            Err(reason) => {
                report.blocks_dropped += blocks;
                report.dropped.add(|| DroppedFile {
                    path: paths.next(file),
                    reason,
                    blocks,
                });
            }
        }
    }
    report
}
