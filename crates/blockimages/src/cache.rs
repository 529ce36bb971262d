//! Blobs on demand: a bounded cache directory that one process owns and its devices share.
//!
//! A blob is cached in chunks, each with a checksum that is compared when it is first used after a
//! restart. Missing chunks are fetched by the crate `ranges`, each once for all who want it (singleflight): first for
//! readers, then for plans, then for all the rest. When the directory is full, chunks that were not used for long are evicted. A cache that
//! cannot be written costs speed: fetched data is served in any case.

mod blob;
mod fill;
mod map;
mod plan;
mod stored;
mod table;
mod unstored;

use std::collections::{HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use blocks::Digest;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::statvfs::statvfs;
use parking_lot::{Condvar, Mutex};

pub use blob::CachedBlob;
pub use fill::Filler;
pub use plan::PlanFetcher;
use ranges::{Feed, Fetcher};
use rawio::{private, trusted};
use stored::StoredBlob;
use unstored::Unstored;

use crate::error::file;
use crate::{ImageError, Origin, reads};

/// Digits of the digest of a registry's address in the names of its blobs.
const REGISTRY_DIGITS: usize = 16;

/// What has to be free before a cache that could not be written is filled again: as much as is on its way at a time.
const ROOM_BYTES: u64 = 4 << 20;

/// The limits of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Bytes of blobs in the directory.
    pub limit_bytes: u64,
    /// Bytes that are fetched and evicted together.
    pub chunk_bytes: u32,
    /// For a reader, whatever is tried meanwhile.
    pub read_deadline: Duration,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            limit_bytes: 4 << 30,
            // A start touches some hundred places, and should transfer little else.
            chunk_bytes: 4 << 10,
            read_deadline: Duration::from_secs(60),
        }
    }
}

/// What a cache has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CacheCounts {
    /// Requests to origins.
    pub requests: u64,
    /// Bytes that came from origins.
    pub fetched_bytes: u64,
    /// Bytes of blobs that are cached.
    pub cached_bytes: u64,
    /// Chunks that were evicted to make room.
    pub evicted: u64,
    /// Chunks that were damaged on the disk, and were fetched again.
    pub damaged: u64,
    /// Chunks that an origin had sent wrong, as a checksum of the blob showed; fetched again.
    pub refetched: u64,
    /// Chunks that could not be written to the directory.
    pub not_stored: u64,
    /// Wanted chunks that were on their way for somebody else already.
    pub joined: u64,
    /// Chunks that were requested a second time because they were late.
    pub hedged: u64,
    /// Chunks that were requested once more because a reader waited for them, and they were far behind in a long request.
    pub overtaken: u64,
    /// Chunks that were requested again after a failure.
    pub retried: u64,
    /// How often a server fell silent.
    pub stalls: u64,
    /// How often background fetches were paused, or plans ended, because the directory could not be written.
    pub pauses: u64,
}

#[derive(Debug, Default)]
struct Meter {
    requests: AtomicU64,
    fetched_bytes: AtomicU64,
    evicted: AtomicU64,
    damaged: AtomicU64,
    refetched: AtomicU64,
    not_stored: AtomicU64,
    pauses: AtomicU64,
}

/// A directory of cached blobs.
#[derive(Debug)]
pub struct BlobCache {
    dir: PathBuf,
    config: CacheConfig,
    meter: Meter,
    used_bytes: AtomicU64,
    order: Mutex<Order>,
    /// What there was no room for.
    unstored: Mutex<Unstored>,
    /// How many blobs were opened.
    blobs: AtomicU64,
    /// Whether the last chunk of all could not be written: that is said once.
    fails: AtomicBool,
    /// What fetches into it in the background, until it cannot be written.
    fills: Mutex<Vec<Weak<Feed>>>,
    /// Plans that are fetched, and how many chunks could not be written before each.
    plans: Mutex<Vec<(Weak<Feed>, u64)>>,
    /// A blob was opened, or could not be.
    opened: Condvar,
    /// By the servers that they ask.
    fetchers: Mutex<Vec<(Vec<String>, Arc<Fetcher>)>>,
    /// Held as long as this process owns the directory; the kernel releases it when the process dies.
    _lock: Flock<File>,
}

/// What can be evicted.
#[derive(Debug, Default)]
struct Order {
    /// Blobs that are cached and not open, with how many bytes: they go first.
    closed: VecDeque<(PathBuf, u64)>,
    /// Chunks of open blobs, in the order in which they came.
    chunks: VecDeque<(Weak<StoredBlob>, u32)>,
    /// Blobs that somebody opens: everybody else who wants one waits for that.
    opening: HashSet<PathBuf>,
    /// Blobs that are open.
    open: Vec<OpenBlob>,
}

#[derive(Debug)]
struct OpenBlob {
    dir: PathBuf,
    size: u64,
    blob: Weak<CachedBlob>,
    /// Outlives the blob while something is on its way.
    stored: Weak<StoredBlob>,
}

impl BlobCache {
    /// Opens a directory, or makes it, and owns it.
    ///
    /// # Errors
    /// If it cannot be made or read, or another process owns it.
    pub fn open(dir: &Path, config: CacheConfig) -> Result<Arc<Self>, ImageError> {
        let (dir, opened) = Self::make_with_lock(dir)?;
        let locked = Flock::lock(opened, FlockArg::LockExclusiveNonblock);
        let lock = locked.map_err(|_| ImageError::CacheInUse(dir.clone()))?;
        let mut order = Order::default();
        let mut used = 0;
        for entry in fs::read_dir(&dir).map_err(file("reading the cache", &dir))? {
            let entry = entry.map_err(file("reading the cache", &dir))?;
            let path = entry.path();
            if is_ours(&entry.file_name())
                && let Some(bytes) = bytes_of(&path)
            {
                used += bytes;
                order.closed.push_back((path, bytes));
            }
        }
        Ok(Arc::new(Self {
            dir,
            config,
            meter: Meter::default(),
            used_bytes: AtomicU64::new(used),
            order: Mutex::new(order),
            unstored: Mutex::default(),
            blobs: AtomicU64::new(0),
            fails: AtomicBool::new(false),
            fills: Mutex::default(),
            plans: Mutex::default(),
            opened: Condvar::new(),
            fetchers: Mutex::default(),
            _lock: lock,
        }))
    }

    /// Makes a directory, for this user and for a process that becomes another one and keeps the right to write to it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn make(dir: &Path) -> Result<(), ImageError> {
        Self::make_with_lock(dir).map(drop)
    }

    fn make_with_lock(dir: &Path) -> Result<(PathBuf, File), ImageError> {
        // What is fetched may be for some users only, and who could make files here would have them written.
        private::keep(dir).map_err(file("making the cache", dir))?;
        let (dir, _) = trusted::open_own_dir(dir).map_err(file("using the cache", dir))?;
        let lock = dir.join("lock");
        let opened = private::open_or_read(&lock).map_err(file("opening", &lock))?;
        Ok((dir, opened.0))
    }

    /// Opens a blob, which devices may share.
    ///
    /// # Errors
    /// If its files cannot be made.
    pub fn blob(
        self: &Arc<Self>,
        digest: Digest,
        size: u64,
        origin: Origin,
    ) -> Result<Arc<CachedBlob>, ImageError> {
        let name = name_of(digest, origin.registry());
        self.blob_named(&name, digest, size, origin)
    }

    /// Opens what is kept apart from the blobs of layers, with its size as a part of its name: who refers to it may give it the
    /// digest of a layer, and another size.
    ///
    /// # Errors
    /// As [`blob`](Self::blob).
    pub(crate) fn blob_apart(
        self: &Arc<Self>,
        digest: Digest,
        size: u64,
        origin: Origin,
    ) -> Result<Arc<CachedBlob>, ImageError> {
        let name = name_apart(digest, size, &origin);
        self.blob_named(&name, digest, size, origin)
    }

    fn blob_named(
        self: &Arc<Self>,
        name: &str,
        digest: Digest,
        size: u64,
        origin: Origin,
    ) -> Result<Arc<CachedBlob>, ImageError> {
        let dir = self.dir.join(name);
        let fetcher = self.fetcher(&origin);
        let fetcher = fetcher.map_err(file("starting to fetch for", &dir))?;
        let deadline = reads::wait(self.config.read_deadline).deadline();
        let mut order = self.order.lock();
        while order.opening.contains(&dir) {
            if self.opened.wait_until(&mut order, deadline).timed_out() {
                let late = io::Error::from(io::ErrorKind::TimedOut);
                return Err(file("waiting for who opens", &dir)(late));
            }
        }
        order.open.retain(|open| open.stored.strong_count() > 0);
        let mut known = order.open.iter().filter(|open| open.dir == dir);
        let known = known.next_back();
        if known.is_some_and(|open| open.size != size) {
            // One of two images is wrong about its size. The other one is not to be read as that says.
            drop(order);
            let name = name_apart(digest, size, &origin);
            return self.blob_named(&name, digest, size, origin);
        }
        if let Some(blob) = known.and_then(|open| open.blob.upgrade()) {
            return Ok(blob);
        }
        if let Some(stored) = known.and_then(|open| open.stored.upgrade()) {
            let blob = Arc::new(CachedBlob::new(stored, &fetcher, origin));
            order.opened(&blob, size);
            return Ok(blob);
        }
        if let Some(at) = order.closed.iter().position(|(path, _)| *path == dir)
            && let Some((_, bytes)) = order.closed.remove(at)
        {
            self.used_bytes.fetch_sub(bytes, Relaxed);
        }
        order.opening.insert(dir.clone());
        drop(order);
        // Without the lock: readers of other blobs do not wait for this disk.
        let opened = StoredBlob::open(self, &dir, digest, size);
        let mut order = self.order.lock();
        order.opening.remove(&dir);
        self.opened.notify_all();
        let (stored, chunks) = opened?;
        let here: Vec<_> = chunks
            .map(|chunk| (Arc::downgrade(&stored), chunk))
            .collect();
        let bytes = u64::from(self.config.chunk_bytes) * here.len() as u64;
        self.used_bytes.fetch_add(bytes, Relaxed);
        order.chunks.extend(here);
        let blob = Arc::new(CachedBlob::new(stored, &fetcher, origin));
        order.opened(&blob, size);
        Ok(blob)
    }

    /// Returns who fetches from the servers of a blob: one for all blobs of the same servers.
    fn fetcher(&self, origin: &Origin) -> io::Result<Arc<Fetcher>> {
        let mut fetchers = self.fetchers.lock();
        let known = fetchers.iter().find(|(of, _)| *of == origin.servers);
        if let Some((_, fetcher)) = known {
            return Ok(Arc::clone(fetcher));
        }
        let fetcher = Fetcher::start(origin.servers.len())?;
        fetchers.push((origin.servers.clone(), Arc::clone(&fetcher)));
        Ok(fetcher)
    }

    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> CacheCounts {
        let Meter {
            requests,
            fetched_bytes,
            evicted,
            damaged,
            refetched,
            not_stored,
            pauses,
        } = &self.meter;
        let (mut joined, mut hedged, mut overtaken, mut retried, mut stalls) = (0, 0, 0, 0, 0);
        for (_, fetcher) in self.fetchers.lock().iter() {
            let counts = fetcher.counts();
            joined += counts.joins;
            hedged += counts.hedges;
            overtaken += counts.overtakes;
            retried += counts.retries;
            stalls += counts.stalls;
        }
        CacheCounts {
            requests: requests.load(Relaxed),
            fetched_bytes: fetched_bytes.load(Relaxed),
            cached_bytes: self.used_bytes.load(Relaxed),
            evicted: evicted.load(Relaxed),
            damaged: damaged.load(Relaxed),
            refetched: refetched.load(Relaxed),
            not_stored: not_stored.load(Relaxed),
            joined,
            hedged,
            overtaken,
            retried,
            stalls,
            pauses: pauses.load(Relaxed),
        }
    }

    /// Notes a background fetch that is to end when a chunk cannot be written; returns `false` if that is so now.
    fn note_fill(&self, feed: &Arc<Feed>) -> bool {
        let mut fills = self.fills.lock();
        fills.retain(|fill| fill.strong_count() > 0);
        fills.push(Arc::downgrade(feed));
        !self.fails.load(Relaxed)
    }

    /// Ends what is fetched in the background: it would be fetched in vain. Who started it tries again later.
    fn pause_fills(&self) {
        let fills = std::mem::take(&mut *self.fills.lock());
        for feed in fills.iter().filter_map(Weak::upgrade) {
            self.meter.pauses.fetch_add(1, Relaxed);
            feed.stop();
        }
    }

    /// Returns whether the last chunk of all could not be written.
    fn cannot_write(&self) -> bool {
        self.fails.load(Relaxed)
    }

    /// Returns whether what comes next of a background fetch may find room, and lets it try.
    fn may_have_room(&self) -> bool {
        let free = statvfs(&self.dir).map(|about| about.blocks_available() * about.fragment_size());
        // Where that cannot be told, trying does.
        let may = free.map_or(true, |free| free >= ROOM_BYTES);
        if may {
            self.fails.store(false, Relaxed);
        }
        may
    }

    /// Makes room for one more chunk; returns `false` if there is none to be had.
    fn reserve(&self) -> bool {
        let chunk = u64::from(self.config.chunk_bytes);
        let used = self.used_bytes.fetch_add(chunk, Relaxed) + chunk;
        let mut over = used > self.config.limit_bytes;
        while over {
            if !self.evict_one() {
                self.used_bytes.fetch_sub(chunk, Relaxed);
                return false;
            }
            over = self.used_bytes.load(Relaxed) > self.config.limit_bytes;
        }
        true
    }

    /// Gives back the room of a chunk.
    fn release(&self) {
        let chunk = u64::from(self.config.chunk_bytes);
        self.used_bytes.fetch_sub(chunk, Relaxed);
    }

    /// Adds a chunk that is there to those that can be evicted.
    fn stored(&self, blob: Weak<StoredBlob>, chunk: u32) {
        self.order.lock().chunks.push_back((blob, chunk));
    }

    /// Evicts a blob that is not open, or a chunk that was not used since it was last looked at.
    fn evict_one(&self) -> bool {
        let closed = self.order.lock().closed.pop_front();
        if let Some((path, bytes)) = closed {
            if let Err(error) = fs::remove_dir_all(&path) {
                log::warn!("cannot remove {} from the cache: {error}", path.display());
            }
            self.used_bytes.fetch_sub(bytes, Relaxed);
            return true;
        }
        // Twice around: the first time each may be spared for having been used.
        let tries = 2 * self.order.lock().chunks.len() + 1;
        for _ in 0..tries {
            let Some((weak, chunk)) = self.order.lock().chunks.pop_front() else {
                return false;
            };
            let Some(blob) = weak.upgrade() else {
                continue;
            };
            match blob.evict(chunk) {
                stored::Evicted::Gone => {
                    self.meter.evicted.fetch_add(1, Relaxed);
                    return true;
                }
                stored::Evicted::WasNotThere => {}
                stored::Evicted::InUse => self.order.lock().chunks.push_back((weak, chunk)),
            }
        }
        false
    }

    /// Notes a blob that no process has open any more.
    fn closed(&self, dir: &Path, bytes: u64) {
        let mut order = self.order.lock();
        order.chunks.retain(|(blob, _)| blob.strong_count() > 0);
        let mut open = order.open.iter();
        if open.any(|open| open.dir == dir && open.stored.strong_count() > 0) {
            // It was opened again meanwhile, and counted.
            self.used_bytes.fetch_sub(bytes, Relaxed);
            return;
        }
        order.closed.push_back((dir.into(), bytes));
    }
}

impl Order {
    fn opened(&mut self, blob: &Arc<CachedBlob>, size: u64) {
        self.open.push(OpenBlob {
            dir: blob.dir().to_owned(),
            size,
            blob: Arc::downgrade(blob),
            stored: blob.stored(),
        });
    }
}

/// Returns the name of the directory of a blob. What one registry sent is not served to images of another: it may be
/// wrong, which is found out only when all of it is there.
fn name_of(digest: Digest, registry: &str) -> String {
    let blob = digest.to_string().replace(':', "-");
    let registry = oci::digest_of(registry.as_bytes()).hex();
    format!("{blob}-{}", &registry[..REGISTRY_DIGITS])
}

/// Returns the name of the directory of what is kept apart.
fn name_apart(digest: Digest, size: u64, origin: &Origin) -> String {
    name_of(digest, &format!("{} {size}", origin.registry()))
}

/// Returns whether a name is that of a blob's directory, of an earlier release too; others are left alone.
fn is_ours(name: &OsStr) -> bool {
    let parts = name.to_str().and_then(|name| name.strip_prefix("sha256-"));
    let mut parts = parts.unwrap_or_default().split('-');
    let mut is_hex = |digits: usize| {
        let part = parts.next();
        part.map(|part| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    is_hex(64) == Some(true) && is_hex(REGISTRY_DIGITS) != Some(false) && parts.next().is_none()
}

/// Returns how many bytes of a blob its directory has; `None` if it is none.
fn bytes_of(dir: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let about: io::Result<_> = fs::metadata(dir.join("data"));
    about.ok().map(|about| about.blocks() * 512)
}
