//! One blob of the cache.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use blocks::Digest;
use crc32c::crc32c;
use lsmt::ReadAt;
use nix::fcntl::{FallocateFlags, fallocate};

use super::flights::{Boarding, Flights, Landed, Seat};
use super::map::Map;
use super::{BlobCache, CacheConfig, Meter};
use crate::error::file;
use crate::{ImageError, Origin};

/// A chunk's state: these bits, and above them how often it went.
const PRESENT: u32 = 1;
/// Its content was compared with its checksum since this process began.
const CHECKED: u32 = 2;
/// It was read since the cache last looked for something to evict.
const USED: u32 = 4;
const GENERATION: u32 = 8;

/// A chunk may be evicted while it is read, so often in a row before a reader gives up.
const READS_MAX: usize = 8;

/// A blob that is read through the cache.
pub struct CachedBlob {
    cache: Arc<BlobCache>,
    dir: PathBuf,
    digest: Digest,
    size: u64,
    origin: Box<dyn Origin>,
    data: File,
    map: Map,
    states: Vec<AtomicU32>,
    crcs: Vec<AtomicU32>,
    flights: Flights,
    /// Whether all of it was fetched twice, and did not match its digest.
    wrong: AtomicBool,
    /// Readers that wait for the origin: background fetches wait for them.
    demand: AtomicUsize,
    me: Weak<Self>,
}

impl std::fmt::Debug for CachedBlob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachedBlob")
            .field("digest", &self.digest)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

/// What became of a chunk that was to be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evicted {
    Gone,
    WasNotThere,
    /// It was used, or is being fetched.
    InUse,
}

impl CachedBlob {
    /// Opens the files of a blob, and returns it with the chunks that are there.
    pub(super) fn open(
        cache: &Arc<BlobCache>,
        dir: &Path,
        digest: Digest,
        size: u64,
        origin: Box<dyn Origin>,
    ) -> Result<(Arc<Self>, impl Iterator<Item = u32> + use<>), ImageError> {
        fs::create_dir_all(dir).map_err(file("making the cache of a blob", dir))?;
        let chunk_bytes = cache.config.chunk_bytes;
        let chunks = size.div_ceil(u64::from(chunk_bytes));
        let count = u32::try_from(chunks).map_err(|_| ImageError::Origin {
            digest: digest.to_string(),
            source: io::ErrorKind::FileTooLarge.into(),
        })?;
        let path = dir.join("data");
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let data = options.open(&path).map_err(file("opening", &path))?;
        data.set_len(size)
            .map_err(file("setting the size of", &path))?;
        let path = dir.join("map");
        let opened = Map::open(&path, chunk_bytes, size, count as usize);
        let (map, chunks) = opened.map_err(file("opening", &path))?;
        let state = |crc: &Option<u32>| AtomicU32::new(if crc.is_some() { PRESENT } else { 0 });
        let blob = Arc::new_cyclic(|me| Self {
            cache: Arc::clone(cache),
            dir: dir.into(),
            digest,
            size,
            origin,
            data,
            map,
            states: chunks.iter().map(state).collect(),
            crcs: chunks
                .iter()
                .map(|crc| AtomicU32::new(crc.unwrap_or(0)))
                .collect(),
            flights: Flights::default(),
            wrong: AtomicBool::new(false),
            demand: AtomicUsize::new(0),
            me: Weak::clone(me),
        });
        let here = (0..)
            .zip(chunks)
            .filter_map(|(chunk, crc)| crc.map(|_| chunk));
        Ok((blob, here))
    }

    /// Returns the blob's digest.
    #[must_use]
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    pub(super) fn config(&self) -> &CacheConfig {
        &self.cache.config
    }

    pub(super) const fn cache(&self) -> &Arc<BlobCache> {
        &self.cache
    }

    /// Returns whether a reader waits for the origin.
    pub(super) fn is_waited_for(&self) -> bool {
        self.demand.load(Ordering::Acquire) > 0
    }

    fn meter(&self) -> &Meter {
        &self.cache.meter
    }

    pub(super) const fn chunks(&self) -> u32 {
        // As many as fit, which was checked when it was opened.
        #[expect(clippy::cast_possible_truncation, reason = "the argument above")]
        let count = self.states.len() as u32;
        count
    }

    pub(super) fn has(&self, chunk: u32) -> bool {
        self.states[chunk as usize].load(Ordering::Acquire) & PRESENT != 0
    }

    /// Returns the bytes of the blob that a chunk has.
    fn range(&self, chunk: u32) -> Range<u64> {
        let len = u64::from(self.config().chunk_bytes);
        let start = u64::from(chunk) * len;
        start..(start + len).min(self.size)
    }

    /// Returns the chunks that have these bytes.
    pub(super) fn chunks_of(&self, range: &Range<u64>) -> Range<u32> {
        let len = u64::from(self.config().chunk_bytes);
        let number = |chunk: u64| u32::try_from(chunk).unwrap_or(u32::MAX).min(self.chunks());
        number(range.start / len)..number(range.end.div_ceil(len))
    }

    /// Drops the cached data of a range, because a checksum of the blob shows that it is wrong. The
    /// next reader fetches it again.
    pub fn distrust(&self, range: &Range<u64>) {
        for chunk in self.chunks_of(range) {
            if let Boarding::Fly(mut seat) = self.flights.board(chunk)
                && self.remove(&mut seat)
            {
                self.meter().refetched.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Evicts a chunk unless it was used since this was last tried.
    pub(super) fn evict(&self, chunk: u32) -> Evicted {
        let state = &self.states[chunk as usize];
        let before = state.fetch_and(!USED, Ordering::AcqRel);
        match before {
            _ if before & PRESENT == 0 => Evicted::WasNotThere,
            _ if before & USED != 0 => Evicted::InUse,
            _ => match self.flights.board(chunk) {
                Boarding::Wait(_) => Evicted::InUse,
                Boarding::Fly(mut seat) => match self.remove(&mut seat) {
                    true => Evicted::Gone,
                    false => Evicted::WasNotThere,
                },
            },
        }
    }

    /// Removes a chunk; returns whether it was there. First it is said to be gone, then it goes: who
    /// reads it meanwhile looks again afterwards.
    fn remove(&self, seat: &mut Seat<'_>) -> bool {
        let state = &self.states[seat.chunk as usize];
        let before = state.load(Ordering::Acquire);
        if before & PRESENT == 0 {
            return false;
        }
        let after = (before & !(PRESENT | CHECKED | USED)).wrapping_add(GENERATION);
        state.store(after, Ordering::Release);
        if let Err(error) = self.map.note(seat.chunk, None) {
            log::warn!(
                "cannot note what was evicted from {}: {error}",
                self.dir.display()
            );
        }
        let range = self.range(seat.chunk);
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let (start, len) = (
            range.start.cast_signed(),
            (range.end - range.start).cast_signed(),
        );
        if let Err(error) = fallocate(&self.data, flags, start, len) {
            log::warn!("cannot evict from {}: {error}", self.dir.display());
        }
        self.cache.release();
        true
    }

    /// Reads a part of one chunk, from the file or the origin.
    fn read_chunk(
        &self,
        chunk: u32,
        offset: u64,
        buffer: &mut [u8],
        want: u32,
        deadline: Instant,
    ) -> io::Result<()> {
        let start = usize::try_from(offset - self.range(chunk).start).unwrap_or(usize::MAX);
        for _ in 0..READS_MAX {
            if self.has(chunk) {
                if self.read_stored(chunk, offset, buffer) {
                    return Ok(());
                }
                continue;
            }
            let content = match self.flights.board(chunk) {
                Boarding::Wait(flight) => match flight.wait(deadline) {
                    None => return Err(io::ErrorKind::TimedOut.into()),
                    Some(Landed::Again) => continue,
                    Some(Landed::Failed(kind, why)) => return Err(io::Error::new(kind, &*why)),
                    Some(Landed::Here(content)) => content,
                },
                // It may have landed since.
                Boarding::Fly(_) if self.has(chunk) => continue,
                Boarding::Fly(seat) => {
                    let _demand = Demand::new(&self.demand);
                    self.fetch(seat, want, deadline)?
                }
            };
            buffer.copy_from_slice(&content[start..start + buffer.len()]);
            return Ok(());
        }
        let why = "the cache is too small: chunks are evicted before they are read";
        Err(io::Error::other(why))
    }

    /// Reads a part of a chunk that is there; returns `false` if it is not (any more).
    fn read_stored(&self, chunk: u32, offset: u64, buffer: &mut [u8]) -> bool {
        let state = &self.states[chunk as usize];
        let before = state.load(Ordering::Acquire);
        if before & PRESENT == 0 {
            return false;
        }
        if before & CHECKED == 0 && !self.check(chunk, before) {
            return false;
        }
        let read = self.data.read_exact_at(buffer, offset);
        // Nothing of the read may move behind this look at the state.
        std::sync::atomic::fence(Ordering::Acquire);
        let after = state.load(Ordering::Acquire);
        let same = after & PRESENT != 0 && after / GENERATION == before / GENERATION;
        if let Err(error) = read {
            log::warn!("cannot read {}: {error}", self.dir.display());
            self.drop_damaged(chunk);
            return false;
        }
        if same && after & USED == 0 {
            state.fetch_or(USED, Ordering::Relaxed);
        }
        same
    }

    /// Compares a chunk with its checksum; one that differs is removed.
    fn check(&self, chunk: u32, before: u32) -> bool {
        let content = self.stored(chunk);
        let expected = self.crcs[chunk as usize].load(Ordering::Acquire);
        if content.is_ok_and(|content| crc32c(&content) == expected) {
            let state = &self.states[chunk as usize];
            // It may have gone meanwhile: then it is not marked.
            let marked = before | CHECKED;
            let _ = state.compare_exchange(before, marked, Ordering::AcqRel, Ordering::Relaxed);
            return true;
        }
        self.drop_damaged(chunk);
        false
    }

    fn drop_damaged(&self, chunk: u32) {
        if let Boarding::Fly(mut seat) = self.flights.board(chunk)
            && self.remove(&mut seat)
        {
            log::warn!("chunk {chunk} in {} was damaged", self.dir.display());
            self.meter().damaged.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn stored(&self, chunk: u32) -> io::Result<Vec<u8>> {
        let range = self.range(chunk);
        let len = usize::try_from(range.end - range.start).unwrap_or(0);
        let mut content = vec![0; len];
        self.data.read_exact_at(&mut content, range.start)?;
        Ok(content)
    }

    /// Fetches a chunk that the caller has taken, and later ones up to `want` that are not taken, as far as
    /// one request goes. Returns the first one's content.
    pub(super) fn fetch(
        &self,
        first: Seat<'_>,
        want: u32,
        deadline: Instant,
    ) -> io::Result<Arc<[u8]>> {
        let most = (self.config().request_bytes / self.config().chunk_bytes).max(1);
        let mut seats = vec![first];
        let chunk = seats[0].chunk;
        let end = want.min(self.chunks()).min(chunk.saturating_add(most));
        for next in chunk + 1..end {
            match self.flights.board(next) {
                Boarding::Fly(seat) if !self.has(next) => seats.push(seat),
                Boarding::Fly(_) | Boarding::Wait(_) => break,
            }
        }
        let last = seats.last().map_or(chunk, |seat| seat.chunk);
        let range = self.range(chunk).start..self.range(last).end;
        let deadline = deadline.min(Instant::now() + self.config().request_deadline);
        self.meter().requests.fetch_add(1, Ordering::Relaxed);
        let fetched = self
            .origin
            .fetch(range.clone(), deadline)
            .and_then(
                |bytes| match bytes.len() as u64 == range.end - range.start {
                    true => Ok(bytes),
                    false => Err(io::Error::other("the origin sent another length")),
                },
            );
        let bytes = match fetched {
            Ok(bytes) => bytes,
            Err(error) => {
                let why: Arc<str> = error.to_string().into();
                for seat in &mut seats {
                    seat.landing(Landed::Failed(error.kind(), Arc::clone(&why)));
                }
                return Err(error);
            }
        };
        let len = bytes.len() as u64;
        self.meter().fetched_bytes.fetch_add(len, Ordering::Relaxed);
        let pieces = bytes.chunks(self.config().chunk_bytes as usize);
        let mut content = None;
        for (mut seat, piece) in seats.into_iter().zip(pieces) {
            let piece: Arc<[u8]> = piece.into();
            self.publish(&seat, &piece);
            content.get_or_insert_with(|| Arc::clone(&piece));
            seat.landing(Landed::Here(piece));
        }
        content.ok_or(io::ErrorKind::UnexpectedEof.into())
    }

    /// Stores a chunk, if that is possible.
    fn publish(&self, seat: &Seat<'_>, content: &[u8]) {
        if !self.cache.reserve() {
            self.meter().not_stored.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let (chunk, crc) = (seat.chunk, crc32c(content));
        let wrote = self.data.write_all_at(content, self.range(chunk).start);
        let noted = wrote.and_then(|()| self.map.note(chunk, Some(crc)));
        if let Err(error) = noted {
            log::warn!("cannot cache in {}: {error}", self.dir.display());
            self.cache.release();
            self.meter().not_stored.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.crcs[chunk as usize].store(crc, Ordering::Release);
        self.states[chunk as usize].fetch_or(PRESENT | CHECKED | USED, Ordering::AcqRel);
        self.cache.stored(Weak::clone(&self.me), chunk);
    }

    /// Compares the whole blob with its digest, if it is complete; `None` if it is not.
    pub(super) fn is_right(&self) -> io::Result<Option<bool>> {
        if !(0..self.chunks()).all(|chunk| self.has(chunk)) {
            return Ok(None);
        }
        let reader = File::open(self.dir.join("data"))?;
        let (digest, len) = oci::digest_and_len(reader)?;
        Ok(Some(digest == self.digest && len == self.size))
    }

    /// Lets all reads fail from now on: what the origin has is not this blob.
    pub(super) fn condemn(&self) {
        self.wrong.store(true, Ordering::Release);
    }

    /// Takes a chunk to fetch it; `None` if it is cached or being fetched.
    pub(super) fn take(&self, chunk: u32) -> Option<Seat<'_>> {
        match self.flights.board(chunk) {
            Boarding::Fly(seat) if !self.has(chunk) => Some(seat),
            Boarding::Fly(_) | Boarding::Wait(_) => None,
        }
    }
}

impl ReadAt for CachedBlob {
    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64);
        let Some(end) = end.filter(|end| *end <= self.size) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        if self.wrong.load(Ordering::Acquire) {
            let why = format!("the origin has something else than {}", self.digest);
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let deadline = Instant::now() + self.config().read_deadline;
        let chunks = self.chunks_of(&(offset..end));
        let (mut at, mut rest) = (offset, buffer);
        for chunk in chunks.clone() {
            let stop = self.range(chunk).end.min(end);
            let len = usize::try_from(stop - at).unwrap_or(rest.len());
            let (now, later) = rest.split_at_mut(len);
            self.read_chunk(chunk, at, now, chunks.end, deadline)?;
            (at, rest) = (stop, later);
        }
        Ok(())
    }
}

impl Drop for CachedBlob {
    fn drop(&mut self) {
        let here = (0..self.chunks()).filter(|chunk| self.has(*chunk)).count() as u64;
        let bytes = here * u64::from(self.config().chunk_bytes);
        self.cache.closed(self.digest, &self.dir, bytes);
    }
}

/// A reader that waits for the origin.
struct Demand<'a>(&'a AtomicUsize);

impl<'a> Demand<'a> {
    fn new(readers: &'a AtomicUsize) -> Self {
        readers.fetch_add(1, Ordering::AcqRel);
        Self(readers)
    }
}

impl Drop for Demand<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
