//! The files of one blob of the cache: which chunks are there, and their checksums.

use std::collections::HashSet;
use std::fs::{self, File, FileType};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use blocks::Digest;
use crc32c::crc32c;
use nix::fcntl::{FallocateFlags, fallocate};
use parking_lot::Mutex;
use ranges::{Layout, Receiver, Server};
use rawio::private;

use super::map::{Chunks, Map};
use super::table::{Slot, Table};
use super::{BlobCache, CacheConfig, Meter};
use crate::ImageError;
use crate::error::file;

/// The last number of what was set aside.
const ASIDE_MAX: u32 = 99;

/// A chunk's state: these bits, and above them how often it went.
const PRESENT: u32 = 1;
/// Its content was compared with its checksum since this process began.
const CHECKED: u32 = 2;
/// It was read since the cache last looked for something to evict.
const USED: u32 = 4;
const GENERATION: u32 = 8;

/// The files of a blob.
#[derive(Debug)]
pub(super) struct StoredBlob {
    cache: Arc<BlobCache>,
    /// Among all blobs that were opened.
    number: u64,
    dir: PathBuf,
    digest: Digest,
    size: u64,
    /// `None` if its disk has no room for them, or can only be read and has none.
    files: Option<Files>,
    table: Table,
    /// Chunks that are being stored or removed.
    changing: Mutex<HashSet<u32>>,
    me: Weak<Self>,
}

#[derive(Debug)]
struct Files {
    data: File,
    map: Map,
}

impl Files {
    /// Opens the files in a directory, and returns them with the chunks that are there.
    fn open(
        dir: &Path,
        config: &CacheConfig,
        size: u64,
        count: u32,
    ) -> Result<(Self, Chunks), ImageError> {
        set_aside(dir, FileType::is_dir)?;
        private::keep(dir).map_err(file("making the cache of a blob", dir))?;
        for name in ["data", "map"] {
            set_aside(&dir.join(name), FileType::is_file)?;
        }
        let path = dir.join("data");
        let opened = private::open_or_read(&path);
        let (data, can_write) = opened.map_err(file("opening", &path))?;
        if can_write {
            let sized = data.set_len(size);
            sized.map_err(file("setting the size of", &path))?;
        }
        let path = dir.join("map");
        let opened = Map::open(&path, config.chunk_bytes, size, count);
        let (map, chunks) = opened.map_err(file("opening", &path))?;
        Ok((Self { data, map }, chunks))
    }
}

/// Renames what is in the place of a file or directory of the cache and is none: it may be somebody's, and the cache needs
/// the place.
fn set_aside(path: &Path, is_right: fn(&FileType) -> bool) -> Result<(), ImageError> {
    // Nothing there, or what opening it tells more of.
    let Some(found) = fs::symlink_metadata(path).ok() else {
        return Ok(());
    };
    if is_right(&found.file_type()) {
        return Ok(());
    }
    let named = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".unusable-{number}"));
        PathBuf::from(name)
    };
    let mut names = (0..=ASIDE_MAX).map(named);
    let free = names.find(|name| fs::symlink_metadata(name).is_err());
    let aside = free.unwrap_or_else(|| named(ASIDE_MAX));
    let moved = fs::rename(path, &aside);
    moved.map_err(file(
        "setting aside what is in the place of a cache's file,",
        path,
    ))?;
    log::warn!(
        "{} is not what a cache has there: it is set aside as {}, and the blob is cached anew",
        path.display(),
        aside.display()
    );
    Ok(())
}

/// Returns why a disk takes nothing, if that is what failed: then a cache costs speed, and no image.
fn takes_nothing(error: &ImageError) -> Option<&io::Error> {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let ImageError::File { source, .. } = error else {
        return None;
    };
    matches!(
        source.kind(),
        ReadOnlyFilesystem | StorageFull | QuotaExceeded
    )
    .then_some(source)
}

/// What became of a chunk that was to be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evicted {
    Gone,
    WasNotThere,
    /// It was used, or is being changed.
    InUse,
}

impl StoredBlob {
    /// Opens the files of a blob, and returns it with the chunks that are there.
    pub(super) fn open(
        cache: &Arc<BlobCache>,
        dir: &Path,
        digest: Digest,
        size: u64,
    ) -> Result<(Arc<Self>, impl Iterator<Item = u32> + use<>), ImageError> {
        let chunk_bytes = cache.config.chunk_bytes;
        let chunks = size.div_ceil(u64::from(chunk_bytes));
        let count = u32::try_from(chunks).map_err(|_| ImageError::Origin {
            digest: digest.to_string(),
            source: io::ErrorKind::FileTooLarge.into(),
        })?;
        let (files, chunks) = match Files::open(dir, &cache.config, size, count) {
            Ok((files, chunks)) => (Some(files), chunks),
            Err(error) => match takes_nothing(&error) {
                None => return Err(error),
                Some(why) => {
                    log::warn!("nothing is cached of {digest}: {error}: {why}");
                    (None, Chunks::new())
                }
            },
        };
        let blob = Arc::new_cyclic(|me| Self {
            cache: Arc::clone(cache),
            number: cache.blobs.fetch_add(1, Ordering::Relaxed),
            dir: dir.into(),
            digest,
            size,
            files,
            table: Table::new(count, &chunks, PRESENT),
            changing: Mutex::default(),
            me: Weak::clone(me),
        });
        Ok((blob, chunks.into_keys()))
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) const fn digest(&self) -> Digest {
        self.digest
    }

    pub(super) fn layout(&self) -> Layout {
        Layout {
            size: self.size,
            piece_bytes: self.config().chunk_bytes,
        }
    }

    pub(super) fn config(&self) -> &CacheConfig {
        &self.cache.config
    }

    pub(super) const fn cache(&self) -> &Arc<BlobCache> {
        &self.cache
    }

    fn meter(&self) -> &Meter {
        &self.cache.meter
    }

    pub(super) const fn chunks(&self) -> u32 {
        self.table.count()
    }

    /// Returns the bytes of the blob that a chunk has.
    pub(super) fn range(&self, chunk: u32) -> Range<u64> {
        self.layout().bytes(&(chunk..chunk + 1))
    }

    /// Returns the chunks that have these bytes.
    pub(super) fn chunks_of(&self, range: &Range<u64>) -> Range<u32> {
        let len = u64::from(self.config().chunk_bytes);
        let number = |chunk: u64| u32::try_from(chunk).unwrap_or(u32::MAX).min(self.chunks());
        number(range.start / len)..number(range.end.div_ceil(len))
    }

    /// Removes a chunk because a checksum of the blob shows that it is wrong, and returns which server brought it.
    pub(super) fn distrust(&self, chunk: u32) -> Option<Server> {
        let unstored = self.cache.unstored.lock().remove((self.number, chunk));
        if unstored.is_some() {
            return unstored;
        }
        let server = self.table.get(chunk)?.server.load(Ordering::Relaxed);
        let mut change = self.change(chunk)?;
        self.remove(&mut change).then(|| {
            self.meter().refetched.fetch_add(1, Ordering::Relaxed);
            Server(server.into())
        })
    }

    /// Takes the right to change a chunk; `None` if somebody else has it.
    fn change(&self, chunk: u32) -> Option<Change<'_>> {
        let taken = self.changing.lock().insert(chunk);
        taken.then(|| Change { of: self, chunk })
    }

    /// Evicts a chunk unless it was used since this was last tried.
    pub(super) fn evict(&self, chunk: u32) -> Evicted {
        let Some(Slot { state, .. }) = self.table.get(chunk) else {
            return Evicted::WasNotThere;
        };
        let before = state.fetch_and(!USED, Ordering::AcqRel);
        match before {
            _ if before & PRESENT == 0 => Evicted::WasNotThere,
            _ if before & USED != 0 => Evicted::InUse,
            _ => match self.change(chunk) {
                None => Evicted::InUse,
                Some(mut change) => match self.remove(&mut change) {
                    true => Evicted::Gone,
                    false => Evicted::WasNotThere,
                },
            },
        }
    }

    /// Removes a chunk; returns whether it was there. First it is said to be gone, then it goes: who
    /// reads it meanwhile looks again afterwards.
    fn remove(&self, change: &mut Change<'_>) -> bool {
        let Some(Slot { state, .. }) = self.table.get(change.chunk) else {
            return false;
        };
        let before = state.load(Ordering::Acquire);
        if before & PRESENT == 0 {
            return false;
        }
        let after = (before & !(PRESENT | CHECKED | USED)).wrapping_add(GENERATION);
        state.store(after, Ordering::Release);
        if let Some(files) = self.written() {
            self.erase(files, change.chunk);
        }
        self.cache.release();
        true
    }

    fn erase(&self, files: &Files, chunk: u32) {
        let dir = self.dir.display();
        if let Err(error) = files.map.note(chunk, None) {
            log::warn!("cannot note what was evicted from {dir}: {error}");
        }
        let range = self.range(chunk);
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let (start, len) = (
            range.start.cast_signed(),
            (range.end - range.start).cast_signed(),
        );
        if let Err(error) = fallocate(&files.data, flags, start, len) {
            log::warn!("cannot evict from {dir}: {error}");
        }
    }

    /// Returns the files if they can be written.
    fn written(&self) -> Option<&Files> {
        self.files.as_ref().filter(|files| files.map.can_write())
    }

    /// Returns whether it keeps what is fetched.
    pub(super) fn keeps(&self) -> bool {
        self.written().is_some()
    }

    /// Reads a part of a chunk that is there; returns `false` if it is not (any more).
    pub(super) fn read(&self, chunk: u32, offset: u64, buffer: &mut [u8]) -> bool {
        self.read_stored(chunk, offset, buffer) || self.read_unstored(chunk, offset, buffer)
    }

    /// Returns whether a chunk need not be fetched.
    pub(super) fn is_here(&self, chunk: u32) -> bool {
        let name = (self.number, chunk);
        self.has(chunk) || self.cache.unstored.lock().get(name).is_some()
    }

    /// The same for a chunk that could not be written.
    fn read_unstored(&self, chunk: u32, offset: u64, buffer: &mut [u8]) -> bool {
        let content = self.cache.unstored.lock().get((self.number, chunk));
        let Some(content) = content else {
            return false;
        };
        let at = usize::try_from(offset - self.range(chunk).start).unwrap_or(usize::MAX);
        let part = at
            .checked_add(buffer.len())
            .and_then(|end| content.get(at..end));
        part.map(|part| buffer.copy_from_slice(part)).is_some()
    }

    fn read_stored(&self, chunk: u32, offset: u64, buffer: &mut [u8]) -> bool {
        let (Some(slot), Some(files)) = (self.table.get(chunk), &self.files) else {
            return false;
        };
        let state = &slot.state;
        let before = state.load(Ordering::Acquire);
        if before & PRESENT == 0 {
            return false;
        }
        if before & CHECKED == 0 && !self.check(chunk, slot, before) {
            return false;
        }
        let read = files.data.read_exact_at(buffer, offset);
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
    fn check(&self, chunk: u32, slot: &Slot, before: u32) -> bool {
        let content = self.stored(chunk);
        let expected = slot.crc.load(Ordering::Acquire);
        if content.is_ok_and(|content| crc32c(&content) == expected) {
            // It may have gone meanwhile: then it is not marked.
            let marked = before | CHECKED;
            let state = &slot.state;
            let _ = state.compare_exchange(before, marked, Ordering::AcqRel, Ordering::Relaxed);
            return true;
        }
        self.drop_damaged(chunk);
        false
    }

    fn drop_damaged(&self, chunk: u32) {
        if let Some(mut change) = self.change(chunk)
            && self.remove(&mut change)
        {
            log::warn!("chunk {chunk} in {} was damaged", self.dir.display());
            self.meter().damaged.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn stored(&self, chunk: u32) -> io::Result<Vec<u8>> {
        let range = self.range(chunk);
        let len = usize::try_from(range.end - range.start).unwrap_or(0);
        let mut content = vec![0; len];
        let files = self.files.as_ref().ok_or(io::ErrorKind::NotFound)?;
        files.data.read_exact_at(&mut content, range.start)?;
        Ok(content)
    }

    /// Stores a chunk, if that is possible.
    fn store(&self, chunk: u32, content: &[u8], from: Server) {
        let Some(_change) = self.change(chunk).filter(|_| !self.has(chunk)) else {
            return;
        };
        let Some(files) = self.written().filter(|_| self.cache.reserve()) else {
            self.keep_unstored(chunk, content, from);
            return;
        };
        let crc = crc32c(content);
        let wrote = files.data.write_all_at(content, self.range(chunk).start);
        let noted = wrote.and_then(|()| files.map.note(chunk, Some(crc)));
        if let Err(error) = noted {
            if !self.cache.fails.swap(true, Ordering::Relaxed) {
                let dir = self.dir.display();
                log::warn!(
                    "cannot cache in {dir}: {error}; nothing more is fetched in the background until that is over"
                );
            }
            self.cache.release();
            self.cache.pause_fills();
            self.keep_unstored(chunk, content, from);
            return;
        }
        if self.cache.cannot_write() {
            // One chunk finds room on a full disk now and then.
            self.cache.may_have_room();
        }
        let slot = self.table.make(chunk);
        slot.crc.store(crc, Ordering::Release);
        let server = u8::try_from(from.0).unwrap_or(u8::MAX);
        slot.server.store(server, Ordering::Relaxed);
        slot.state
            .fetch_or(PRESENT | CHECKED | USED, Ordering::AcqRel);
        self.cache.stored(Weak::clone(&self.me), chunk);
    }

    fn keep_unstored(&self, chunk: u32, content: &[u8], from: Server) {
        self.meter().not_stored.fetch_add(1, Ordering::Relaxed);
        let name = (self.number, chunk);
        self.cache.unstored.lock().keep(name, content, from);
        self.cache.end_plans();
    }

    /// Returns how many chunks are there.
    fn present(&self) -> u64 {
        let is_there = |slot: &&Slot| slot.state.load(Ordering::Acquire) & PRESENT != 0;
        self.table.made().filter(is_there).count() as u64
    }

    /// Compares the whole blob with its digest, if it is complete; `None` if it is not.
    pub(super) fn is_right(&self) -> io::Result<Option<bool>> {
        if self.present() != u64::from(self.chunks()) {
            return Ok(None);
        }
        let reader = File::open(self.dir.join("data"))?;
        let (digest, len) = oci::digest_and_len(reader)?;
        Ok(Some(digest == self.digest && len == self.size))
    }
}

impl Receiver for StoredBlob {
    fn has(&self, chunk: u32) -> bool {
        let slot = self.table.get(chunk);
        slot.is_some_and(|slot| slot.state.load(Ordering::Acquire) & PRESENT != 0)
    }

    fn publish(&self, chunk: u32, content: &[u8], from: Server) {
        let bytes = content.len() as u64;
        self.meter()
            .fetched_bytes
            .fetch_add(bytes, Ordering::Relaxed);
        self.store(chunk, content, from);
    }

    fn requested(&self) {
        self.meter().requests.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for StoredBlob {
    fn drop(&mut self) {
        let bytes = self.present() * u64::from(self.config().chunk_bytes);
        self.cache.unstored.lock().forget(self.number);
        self.cache.closed(&self.dir, bytes);
    }
}

/// The right to change a chunk.
#[derive(Debug)]
struct Change<'a> {
    of: &'a StoredBlob,
    chunk: u32,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.of.changing.lock().remove(&self.chunk);
    }
}
