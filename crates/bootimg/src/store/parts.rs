//! An image of a store as the parts that its files are made of, for copies on faster memory that
//! share what images share.

use std::io;

use blocks::{BlockIndex, BlockRange, ContentId};

use crate::backing::Backing;
use crate::data::{DataSpace, Run, segment_offset};
use crate::layout::{PAGE, PAGE_BYTES, len_usize, len64};
use crate::store::{catalog, reading};
use crate::{ImageId, Store, StoreError, Watch};

/// Blocks that are hashed as one: 256 KiB.
const PART_BLOCKS: u64 = 64;

/// What an image of a store is made of: parts of files, all of them verified once.
#[derive(Debug)]
pub struct StoredParts {
    files: Vec<(ContentId, Backing)>,
    parts: Vec<StoredPart>,
}

/// A run of blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredPart {
    /// Which file, by its place among the [files](StoredParts::files).
    pub file: usize,
    /// The blocks.
    pub blocks: BlockRange,
    /// The hash of the blocks.
    pub hash: [u8; 32],
}

impl StoredParts {
    /// Returns the names of the files: first the thin image, by its hash; then the segments.
    pub fn files(&self) -> impl Iterator<Item = ContentId> {
        self.files.iter().map(|(name, _)| *name)
    }

    /// Returns the parts. No two of them overlap.
    #[must_use]
    pub fn parts(&self) -> &[StoredPart] {
        &self.parts
    }

    /// Reads blocks of a file; the caller verifies their hash.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn read(&self, file: usize, blocks: BlockRange, out: &mut [u8]) -> io::Result<()> {
        let (_, file) = self.files.get(file).ok_or(io::ErrorKind::NotFound)?;
        file.read(blocks.bytes().start, out)
    }

    /// Takes in all blocks of the thin image's own file.
    fn of_file(file: &Backing) -> io::Result<Self> {
        let len = file.len()?;
        let whole = BlockRange::covering(0, len);
        let mut name = blake3::Hasher::new();
        let mut parts = Vec::new();
        let mut rest = whole;
        while !rest.is_empty() {
            let (blocks, after) = rest.split_first(PART_BLOCKS);
            // Its footer is its last page: there is no part of a block.
            let bytes = file.read_vec(blocks.bytes().start, blocks.byte_len())?;
            name.update(&bytes);
            let hash = *blake3::hash(&bytes).as_bytes();
            let file = 0;
            parts.push(StoredPart { file, blocks, hash });
            rest = after;
        }
        let name = ContentId(*name.finalize().as_bytes());
        let files = vec![(name, file.clone())];
        Ok(Self { files, parts })
    }
}

impl Store {
    /// Returns the parts of an image. All of its data is read and verified.
    ///
    /// # Errors
    /// If it is missing or damaged, or the watch cancels.
    pub fn parts(&self, id: &ImageId, watch: Watch<'_>) -> Result<StoredParts, StoreError> {
        let image = catalog::open_image(&self.places, id)?;
        let path = self.places.image(id);
        let mut made = StoredParts::of_file(&image.sealed.file).map_err(reading(&path))?;
        let DataSpace::Thin { segments, runs } = &image.data else {
            return Ok(made); // a store has no others
        };
        let names = image.sealed.segments();
        let names = names.map_err(|error| StoreError::Open(catalog::located(&path, error)))?;
        // A segment that lost its last block in a repack may be named still.
        let mut places = vec![None; names.len()];
        let mut parts = Cutter::new(runs);
        image.each_window(watch, &mut |_, blocks| {
            parts.take(blocks);
            Ok(())
        })?;
        for (run, hash) in parts.done {
            let file = *places[run.segment].get_or_insert_with(|| {
                let name = names[run.segment];
                made.files.push((name, segments[run.segment].clone()));
                made.files.len() - 1
            });
            let first = BlockIndex::containing(segment_offset(run.at));
            let blocks = BlockRange::with_len(first, run.blocks);
            made.parts.push(StoredPart { file, blocks, hash });
        }
        Ok(made)
    }
}

/// Cuts a data space that comes in order into parts, and hashes them.
struct Cutter {
    /// The remaining runs, the next one last.
    runs: Vec<Run>,
    /// Hash of the received part of the next one.
    hasher: blake3::Hasher,
    came: u64,
    done: Vec<(Run, [u8; 32])>,
}

impl Cutter {
    fn new(runs: &[Run]) -> Self {
        let cut = |run: &Run| {
            let run = *run;
            (0..run.blocks.div_ceil(PART_BLOCKS)).map(move |number| {
                let skip = number * PART_BLOCKS;
                Run {
                    place: run.place + skip,
                    blocks: PART_BLOCKS.min(run.blocks - skip),
                    at: run.at + skip,
                    ..run
                }
            })
        };
        let mut runs: Vec<Run> = runs.iter().flat_map(cut).collect();
        runs.reverse();
        Self {
            runs,
            hasher: blake3::Hasher::new(),
            came: 0,
            done: Vec::new(),
        }
    }

    fn take(&mut self, blocks: &[u8]) {
        let mut rest = blocks;
        while let (Some(run), false) = (self.runs.last().copied(), rest.is_empty()) {
            let wanted = len_usize((run.blocks - self.came) * PAGE_BYTES);
            let (here, after) = rest.split_at(wanted.min(rest.len()));
            self.hasher.update(here);
            self.came += len64(here.len() / PAGE);
            rest = after;
            if self.came == run.blocks {
                let hash = *self.hasher.finalize().as_bytes();
                self.done.push((run, hash));
                self.runs.pop();
                self.hasher.reset();
                self.came = 0;
            }
        }
    }
}
