//! One source made of a cache and a source.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use crate::{
    BLOCK_SIZE, BlockCache, BlockRange, BlockSource, FileId, FileKey, Lookup, SourceError,
    SourceErrorKind,
};

/// Reads from the cache what it has, and the rest from the source.
///
/// A range that is only partly cached is split here, in one place, so that caches stay simple.
/// The cache never fails a read: miss, throttled and damaged all mean "read the source".
#[derive(Debug)]
pub struct CachedSource<C, S> {
    cache: C,
    source: S,
    counts: Counters,
    first_miss: OnceLock<Miss>,
}

/// A read that the cache could not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// The file.
    pub file: FileId,
    /// From where on, in bytes.
    pub offset: u64,
    /// The time.
    pub at: Instant,
}

#[derive(Debug, Default)]
struct Counters {
    hit_bytes: AtomicU64,
    fallthrough_bytes: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    throttled: AtomicU64,
}

/// What a [`CachedSource`] did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Runs of blocks that the cache answered.
    pub hits: u64,
    /// Runs of blocks that the cache did not have.
    pub misses: u64,
    /// Questions that the cache declined.
    pub throttled: u64,
    /// Bytes that came from the cache.
    pub hit_bytes: u64,
    /// Bytes that came from the source.
    pub fallthrough_bytes: u64,
}

impl<C: BlockCache, S: BlockSource> CachedSource<C, S> {
    /// Returns the source that reads from `cache` first and the rest from `source`.
    pub fn new(cache: C, source: S) -> Self {
        Self {
            cache,
            source,
            counts: Counters::default(),
            first_miss: OnceLock::new(),
        }
    }

    /// Returns the cache.
    pub const fn cache(&self) -> &C {
        &self.cache
    }

    /// Returns the source behind the cache.
    pub const fn source(&self) -> &S {
        &self.source
    }

    /// Returns the first read that the cache could not serve: where a boot left the path of the
    /// recorded ones.
    pub fn first_miss(&self) -> Option<Miss> {
        self.first_miss.get().copied()
    }

    /// Returns the counters.
    pub fn counts(&self) -> CacheCounts {
        CacheCounts {
            hits: self.counts.hits.load(Relaxed),
            misses: self.counts.misses.load(Relaxed),
            throttled: self.counts.throttled.load(Relaxed),
            hit_bytes: self.counts.hit_bytes.load(Relaxed),
            fallthrough_bytes: self.counts.fallthrough_bytes.load(Relaxed),
        }
    }

    /// Asks the cache for `range`; `out` receives its bytes from `skip` on.
    ///
    /// A read that starts or ends inside a block, with no room for the rest of it, goes through a
    /// buffer of its own. Those are O_DIRECT reads of odd sizes only: the kernel's page cache
    /// asks for whole pages, the last one of a file included.
    fn lookup(
        &self,
        file: &FileKey,
        range: BlockRange,
        skip: usize,
        out: &mut [u8],
        keeper: Keeper,
    ) -> Lookup {
        let get = |out: &mut [u8]| match keeper {
            Keeper::Anybody => self.cache.get(file, range, out),
            Keeper::Reader => self.cache.get_once(file, range, out),
        };
        let bytes = blocks_to_bytes(range.len());
        if skip == 0 && bytes <= out.len() {
            get(&mut out[..bytes])
        } else {
            let mut whole = vec![0; bytes];
            let found = get(&mut whole);
            if let Lookup::Hit { blocks } = found {
                let end = blocks_to_bytes(blocks).min(skip + out.len());
                out[..end - skip].copy_from_slice(&whole[skip..end]);
            }
            found
        }
    }

    fn count(&self, found: Lookup) {
        match found {
            Lookup::Hit { .. } => self.counts.hits.fetch_add(1, Relaxed),
            Lookup::Miss { .. } => self.counts.misses.fetch_add(1, Relaxed),
            Lookup::Throttled => self.counts.throttled.fetch_add(1, Relaxed),
        };
    }
}

/// Who keeps in memory what is read.
#[derive(Clone, Copy, Debug)]
enum Keeper {
    /// Every reader, on the way.
    Anybody,
    /// Only the thread that reads it.
    Reader,
}

fn blocks_to_bytes(blocks: u64) -> usize {
    usize::try_from(blocks)
        .unwrap_or(usize::MAX)
        .saturating_mul(BLOCK_SIZE)
}

impl<C: BlockCache, S: BlockSource> CachedSource<C, S> {
    fn read(
        &self,
        file: &FileKey,
        offset: u64,
        buf: &mut [u8],
        keeper: Keeper,
    ) -> Result<usize, SourceError> {
        // A cache fills the last block up with zeros: the version says where the file ends.
        let left = file.version.size.saturating_sub(offset);
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let wanted = len - done;
            let range = BlockRange::covering(at, wanted as u64);
            let skip = usize::try_from(at - range.bytes().start).unwrap_or(0);
            // How many of the wanted bytes an answer about so many blocks speaks of.
            let span = |blocks| {
                blocks_to_bytes(blocks)
                    .saturating_sub(skip)
                    .clamp(1, wanted)
            };
            let found = self.lookup(file, range, skip, &mut buf[done..], keeper);
            let missing = match found {
                Lookup::Hit { blocks } => {
                    self.count(found);
                    self.counts
                        .hit_bytes
                        .fetch_add(span(blocks) as u64, Relaxed);
                    done += span(blocks);
                    continue;
                }
                Lookup::Miss { blocks } => {
                    self.first_miss.get_or_init(|| Miss {
                        file: file.file,
                        offset: at,
                        at: Instant::now(),
                    });
                    span(blocks)
                }
                Lookup::Throttled => wanted,
            };
            let out = &mut buf[done..done + missing];
            let read = match keeper {
                Keeper::Anybody => self.source.read_at(file, at, out),
                Keeper::Reader => self.source.read_once(file, at, out),
            };
            // A read that has to wait is done again by somebody who may: it counts then.
            let is_put_off = |error: &SourceError| error.kind() == SourceErrorKind::WouldWait;
            if !read.as_ref().is_err_and(is_put_off) {
                self.count(found);
            }
            let read = read?;
            self.counts
                .fallthrough_bytes
                .fetch_add(read as u64, Relaxed);
            let whole = read / BLOCK_SIZE;
            if skip == 0 && whole > 0 {
                let blocks = BlockRange::with_len(range.start(), whole as u64);
                self.cache.put(file, blocks, &out[..whole * BLOCK_SIZE]);
            }
            done += read;
            if read < missing {
                break;
            }
        }
        Ok(done)
    }
}

impl<C: BlockCache, S: BlockSource> BlockSource for CachedSource<C, S> {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        self.read(file, offset, buf, Keeper::Anybody)
    }

    fn read_once(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        self.read(file, offset, buf, Keeper::Reader)
    }

    fn advise(&self, file: &FileKey, ranges: &[BlockRange]) {
        self.source.advise(file, ranges);
    }
}
