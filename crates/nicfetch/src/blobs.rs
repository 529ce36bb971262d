//! Blobs on the mirror's disk: whole and verified, or growing.
//!
//! A blob that is missing is filled once, whoever asks and however many: the first becomes its
//! *lead*, everybody reads the growing file. Readers and the fill know nothing of each other but
//! how far it is, so that a slow reader slows nobody and one that goes away stops nothing.
//!
//! ```text
//! DIR/blobs/sha256/HEX      whole: hashed, synced, then renamed to here
//! DIR/parts/sha256-HEX      growing
//! DIR/parts/sha256-HEX.json what is needed to go on with it after a restart
//! ```

mod digest;
mod growing;
mod lead;
mod looks;
mod part;
mod room;
mod verify;
mod whole;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::policy::PolicyKind;

pub(crate) use digest::Hasher;
pub use digest::{Algorithm, BlobDigest, ParseBlobDigestError};
pub use growing::{End, FillError, Growing, Progress};
pub use lead::Lead;
pub(crate) use lead::Verdict;
pub(crate) use looks::{Joined, Look};
pub(crate) use part::Part;
use room::{Order, Tenant};
pub use verify::VerifiedBlobs;
pub use whole::Whole;

/// How often the time at which a blob was used is noted on disk.
const TOUCH_EVERY: u64 = 60;

/// Free bytes that the file system keeps beside what a blob needs: others write there, too.
const SPARE: u64 = 16 << 20;

/// How much and what the cache may keep.
#[derive(Clone, Copy, Debug)]
pub struct BlobConfig {
    /// Bytes of all blobs together, growing ones included.
    pub budget: u64,
    /// Bytes at the end of a blob that nobody gets before all are verified.
    pub hold_back: u64,
    /// Which of the blobs that images need go first.
    pub policy: PolicyKind,
}

/// How much known images value a blob: manifests that need it, and when one was last asked for.
pub type Worth = dyn Fn(&BlobDigest) -> (usize, u64) + Send + Sync;

/// The blobs of one directory. One process at a time.
pub struct BlobCache {
    dir: PathBuf,
    config: BlobConfig,
    _lock: File,
    state: Arc<Mutex<State>>,
    worth: Box<Worth>,
}

impl std::fmt::Debug for BlobCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlobCache")
            .field("dir", &self.dir)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct State {
    whole: HashMap<BlobDigest, Stored>,
    /// The same blobs, in the order in which they would go.
    order: Order,
    /// Beginnings of blobs that nobody fills at the moment, with their lengths.
    parts: HashMap<BlobDigest, u64>,
    growing: HashMap<BlobDigest, Flight>,
    evicted: Evicted,
}

#[derive(Clone, Copy, Debug)]
struct Stored {
    bytes: u64,
    used: u64,
    noted: u64,
}

#[derive(Debug)]
struct Flight {
    growing: Arc<Growing>,
    /// Bytes that are set aside for it.
    reserved: u64,
}

/// What was removed to make room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Blobs, and beginnings of them.
    pub blobs: u64,
    /// What they took.
    pub bytes: u64,
}

/// Where a blob is.
#[derive(Debug)]
pub enum Place {
    /// Here.
    Whole(Whole),
    /// On its way.
    Growing(Arc<Growing>),
    /// Nowhere: whoever gets this fills it.
    Lead(Lead),
}

/// A blob in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Which.
    pub digest: BlobDigest,
    /// Bytes on disk.
    pub bytes: u64,
    /// `whole`, `part` or `growing`.
    pub state: &'static str,
    /// Manifests that need it.
    pub references: usize,
    /// Seconds since 1970 at which it, or an image that needs it, was last asked for.
    pub used: u64,
}

impl BlobCache {
    /// Opens the cache in a directory, and makes it if it is not there. `worth` says what known
    /// images think of a blob.
    ///
    /// # Errors
    /// If the directory cannot be made or read, or another process has it.
    pub fn open(dir: &Path, config: BlobConfig, worth: Box<Worth>) -> io::Result<Self> {
        fs::create_dir_all(dir.join("parts"))?;
        let lock = File::create(dir.join("lock"))?;
        lock.try_lock()
            .map_err(|error| io::Error::new(io::ErrorKind::ResourceBusy, error))?;
        let mut whole = Vec::new();
        for algorithm in Algorithm::ALL {
            let blobs = dir.join("blobs").join(algorithm.word());
            fs::create_dir_all(&blobs)?;
            for entry in fs::read_dir(blobs)? {
                let entry = entry?;
                let hex = entry.file_name();
                let name = format!("{}:{}", algorithm.word(), hex.to_string_lossy());
                let (Ok(digest), metadata) = (name.parse(), entry.metadata()?) else {
                    log::warn!("{} is not a blob: left alone", entry.path().display());
                    continue;
                };
                let used = metadata.modified().map_or(0, seconds);
                let bytes = metadata.len();
                let noted = used;
                whole.push((digest, Stored { bytes, used, noted }));
            }
        }
        whole.sort_by_key(|(_, stored)| stored.used);
        let mut order = Order::new(config.policy, config.budget);
        for (digest, stored) in &whole {
            order.insert(digest, stored.bytes, stored.used);
        }
        let state = State {
            whole: whole.into_iter().collect(),
            order,
            parts: part::list(&dir.join("parts"))?.into_iter().collect(),
            growing: HashMap::new(),
            evicted: Evicted::default(),
        };
        Ok(Self {
            dir: dir.to_owned(),
            config,
            _lock: lock,
            state: Arc::new(Mutex::new(state)),
            worth,
        })
    }

    /// Returns where a blob is, and makes the caller its lead if it is nowhere.
    ///
    /// # Errors
    /// If a whole blob cannot be opened.
    pub fn find(self: &Arc<Self>, digest: &BlobDigest) -> io::Result<Place> {
        if let Some(whole) = self.open_whole(digest)? {
            return Ok(Place::Whole(whole));
        }
        let mut state = self.state.lock();
        if let Some(flight) = state.growing.get(digest) {
            return Ok(Place::Growing(Arc::clone(&flight.growing)));
        }
        // It may have become whole since we looked.
        if state.whole.contains_key(digest) {
            drop(state);
            let whole = self.open_whole(digest)?;
            return whole
                .map(Place::Whole)
                .ok_or_else(|| io::Error::other("removed meanwhile"));
        }
        let growing = Arc::new(Growing::new(digest.clone(), self.config.hold_back));
        let reserved = state.parts.remove(digest).unwrap_or(0);
        let flight = Flight {
            growing: Arc::clone(&growing),
            reserved,
        };
        state.growing.insert(digest.clone(), flight);
        Ok(Place::Lead(Lead::new(Arc::clone(self), growing)))
    }

    /// Returns a blob if it is whole or on its way.
    ///
    /// # Errors
    /// If a whole blob cannot be opened.
    pub fn peek(&self, digest: &BlobDigest) -> io::Result<Option<Place>> {
        if let Some(whole) = self.open_whole(digest)? {
            return Ok(Some(Place::Whole(whole)));
        }
        let state = self.state.lock();
        let flight = state.growing.get(digest);
        Ok(flight.map(|flight| Place::Growing(Arc::clone(&flight.growing))))
    }

    fn open_whole(&self, digest: &BlobDigest) -> io::Result<Option<Whole>> {
        let now = seconds(SystemTime::now());
        let note = {
            let mut state = self.state.lock();
            let Some(stored) = state.whole.get_mut(digest) else {
                return Ok(None);
            };
            stored.used = now;
            let note = now.saturating_sub(stored.noted) >= TOUCH_EVERY;
            if note {
                stored.noted = now;
            }
            (stored.bytes, note)
        };
        let (size, note) = note;
        let file = match File::open(self.whole_path(digest)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.state.lock().forget(digest);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if file.metadata()?.len() != size {
            log::error!("{digest} has changed its length on disk: removed");
            self.remove_whole(digest);
            return Ok(None);
        }
        if note {
            // A convenience: without it the blob looks older after a restart.
            let _noted = file.set_modified(SystemTime::now());
        }
        let file = Arc::new(file);
        Ok(Some(Whole::new(file, size, &self.state, digest)))
    }

    fn remove_whole(&self, digest: &BlobDigest) {
        self.state.lock().forget(digest);
        part::forget(&self.whole_path(digest));
    }

    fn whole_path(&self, digest: &BlobDigest) -> PathBuf {
        let blobs = self.dir.join("blobs").join(digest.algorithm().word());
        blobs.join(digest.hex())
    }

    /// Returns the file of a blob that is whole. It may be removed at any time.
    #[must_use]
    pub fn whole_file(&self, digest: &BlobDigest) -> Option<PathBuf> {
        let known = self.state.lock().whole.contains_key(digest);
        known.then(|| self.whole_path(digest))
    }

    pub(crate) fn parts_dir(&self) -> PathBuf {
        self.dir.join("parts")
    }

    /// Returns the bytes that blobs take, or will.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().used_bytes()
    }

    /// Returns the most bytes that blobs may take.
    #[must_use]
    pub const fn budget(&self) -> u64 {
        self.config.budget
    }

    /// Returns how many blobs are whole.
    #[must_use]
    pub fn whole_count(&self) -> usize {
        self.state.lock().whole.len()
    }

    /// Returns how many blobs are on their way.
    #[must_use]
    pub fn growing_count(&self) -> usize {
        self.state.lock().growing.len()
    }

    /// Returns what was evicted since the cache was opened.
    #[must_use]
    pub fn evicted(&self) -> Evicted {
        self.state.lock().evicted
    }

    /// Returns all blobs.
    #[must_use]
    pub fn list(&self) -> Vec<Listed> {
        self.list_of(&self.state.lock())
    }

    fn list_of(&self, state: &State) -> Vec<Listed> {
        let list = |digest: &BlobDigest, bytes, state, used: u64| {
            let (references, wanted) = (self.worth)(digest);
            Listed {
                digest: digest.clone(),
                bytes,
                state,
                references,
                used: used.max(wanted),
            }
        };
        let whole = state.whole.iter();
        let whole = whole.map(|(digest, stored)| list(digest, stored.bytes, "whole", stored.used));
        let parts = state.parts.iter();
        let parts = parts.map(|(digest, bytes)| list(digest, *bytes, "part", 0));
        let growing = state.growing.iter();
        let growing = growing.map(|(digest, flight)| list(digest, flight.reserved, "growing", 0));
        whole.chain(parts).chain(growing).collect()
    }

    /// Sets bytes aside for a blob that grows; the least valuable blobs go. `false` if there is no
    /// room whoever goes.
    pub(crate) fn reserve(&self, digest: &BlobDigest, size: u64) -> bool {
        if size > self.config.budget {
            return false;
        }
        let over = {
            let mut state = self.state.lock();
            if let Some(flight) = state.growing.get_mut(digest) {
                flight.reserved = size;
            }
            state.used_bytes().saturating_sub(self.config.budget)
        };
        self.evict(over);
        let lacks = size.saturating_add(SPARE).saturating_sub(self.free_bytes());
        if lacks <= self.used_bytes() {
            // Otherwise others have filled the disk, and ours would go for nothing.
            self.evict(lacks);
        }
        let fits = self.used_bytes() <= self.config.budget
            && self.free_bytes() >= size.saturating_add(SPARE);
        if !fits && let Some(flight) = self.state.lock().growing.get_mut(digest) {
            flight.reserved = 0;
        }
        fits
    }

    /// Returns what the file system has left; all, if it does not say.
    fn free_bytes(&self) -> u64 {
        let free = nix::sys::statvfs::statvfs(&self.dir);
        free.map_or(u64::MAX, |free| {
            free.blocks_available().saturating_mul(free.fragment_size())
        })
    }

    /// Removes the least valuable blobs until `need` bytes are free, and returns what it removed.
    pub fn evict(&self, need: u64) -> Evicted {
        if need == 0 {
            return Evicted::default();
        }
        let victims = {
            let mut state = self.state.lock();
            let tenants = self.tenants(&state);
            state.order.victims(tenants, need)
        };
        self.remove(&victims)
    }

    /// Removes beginnings that nobody goes on with, and blobs that no known image needs and nobody
    /// asked for within `idle`.
    pub fn collect(&self, idle: Duration) -> Evicted {
        let before = seconds(SystemTime::now()).saturating_sub(idle.as_secs());
        let mut tenants = self.tenants(&self.state.lock());
        tenants
            .retain(|tenant| tenant.is_part || (tenant.references == 0 && tenant.used <= before));
        self.remove(&tenants)
    }

    fn tenants(&self, state: &State) -> Vec<Tenant> {
        let listed = self.list_of(state).into_iter();
        let idle = listed.filter(|blob| blob.state != "growing");
        let tenants = idle.map(|blob| Tenant {
            digest: blob.digest,
            bytes: blob.bytes,
            is_part: blob.state == "part",
            references: blob.references,
            used: blob.used,
        });
        tenants.collect()
    }

    fn remove(&self, victims: &[Tenant]) -> Evicted {
        let mut removed = Evicted::default();
        for victim in victims {
            let known = {
                let mut state = self.state.lock();
                let known = match victim.is_part {
                    true => state.parts.remove(&victim.digest).is_some(),
                    false => state.forget(&victim.digest),
                };
                if known {
                    state.evicted.blobs += 1;
                    state.evicted.bytes += victim.bytes;
                }
                known
            };
            if !known {
                continue;
            }
            removed.blobs += 1;
            removed.bytes += victim.bytes;
            match victim.is_part {
                true => {
                    if let Ok(part) = part::Part::open(&self.parts_dir(), &victim.digest) {
                        part.remove();
                    }
                }
                false => part::forget(&self.whole_path(&victim.digest)),
            }
        }
        removed
    }
}

impl State {
    /// Keeps a blob that became whole.
    fn keep(&mut self, digest: &BlobDigest, stored: Stored) {
        self.whole.insert(digest.clone(), stored);
        self.order.insert(digest, stored.bytes, stored.used);
    }

    /// Forgets a whole blob, and returns whether it was here.
    fn forget(&mut self, digest: &BlobDigest) -> bool {
        self.order.remove(digest);
        self.whole.remove(digest).is_some()
    }

    fn used_bytes(&self) -> u64 {
        let whole = self.whole.values().map(|stored| stored.bytes);
        let growing = self.growing.values().map(|flight| flight.reserved);
        whole
            .chain(self.parts.values().copied())
            .chain(growing)
            .sum()
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

#[cfg(test)]
mod tests;
