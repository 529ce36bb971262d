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
//! DIR/apart/REALM/...       the same, of what a registry does not give to all ([`Realm`])
//! ```

mod digest;
mod growing;
mod here;
mod key;
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

use chunks::PolicyKind;

pub(crate) use digest::Hasher;
pub use digest::{Algorithm, BlobDigest, ParseBlobDigestError};
pub use growing::{End, FillError, Growing, Progress};
pub use key::{BlobKey, Realm};
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
    whole: HashMap<BlobKey, Stored>,
    /// The same blobs, in the order in which they would go.
    order: Order,
    /// Beginnings of blobs that nobody fills at the moment, with their lengths.
    parts: HashMap<BlobKey, u64>,
    growing: HashMap<BlobKey, Flight>,
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
    /// Which, and whose.
    pub key: BlobKey,
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
    /// Opens the cache in a directory, and makes it and the parts of it for these realms if they are
    /// not there. `worth` says what known images think of a blob.
    ///
    /// # Errors
    /// If the directory cannot be made or read, or another process has it.
    pub fn open(
        dir: &Path,
        config: BlobConfig,
        realms: &[Realm],
        worth: Box<Worth>,
    ) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let lock = File::create(dir.join("lock"))?;
        lock.try_lock()
            .map_err(|error| io::Error::new(io::ErrorKind::ResourceBusy, error))?;
        let (mut whole, mut parts) = (Vec::new(), HashMap::new());
        for realm in here::realms(dir, realms)? {
            here::blobs(dir, realm, &mut whole)?;
            let left = part::list(&realm.dir(dir).join("parts"))?.into_iter();
            parts.extend(left.map(|(digest, bytes)| (BlobKey { realm, digest }, bytes)));
        }
        whole.sort_by_key(|(_, stored)| stored.used);
        let mut order = Order::new(config.policy, config.budget);
        for (key, stored) in &whole {
            order.insert(key, stored.bytes, stored.used);
        }
        let state = State {
            whole: whole.into_iter().collect(),
            order,
            parts,
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
    pub fn find(self: &Arc<Self>, key: &BlobKey) -> io::Result<Place> {
        if let Some(whole) = self.open_whole(key)? {
            return Ok(Place::Whole(whole));
        }
        let mut state = self.state.lock();
        if let Some(flight) = state.growing.get(key) {
            return Ok(Place::Growing(Arc::clone(&flight.growing)));
        }
        // It may have become whole since we looked.
        if state.whole.contains_key(key) {
            drop(state);
            let whole = self.open_whole(key)?;
            return whole
                .map(Place::Whole)
                .ok_or_else(|| io::Error::other("removed meanwhile"));
        }
        let growing = Arc::new(Growing::new(key.clone(), self.config.hold_back));
        let reserved = state.parts.remove(key).unwrap_or(0);
        let flight = Flight {
            growing: Arc::clone(&growing),
            reserved,
        };
        state.growing.insert(key.clone(), flight);
        Ok(Place::Lead(Lead::new(Arc::clone(self), growing)))
    }

    /// Returns a blob if it is whole or on its way.
    ///
    /// # Errors
    /// If a whole blob cannot be opened.
    pub fn peek(&self, key: &BlobKey) -> io::Result<Option<Place>> {
        if let Some(whole) = self.open_whole(key)? {
            return Ok(Some(Place::Whole(whole)));
        }
        let state = self.state.lock();
        let flight = state.growing.get(key);
        Ok(flight.map(|flight| Place::Growing(Arc::clone(&flight.growing))))
    }

    /// Returns whether a blob is whole or on its way, as far as it is known without a look at the disk.
    #[must_use]
    pub fn is_here(&self, key: &BlobKey) -> bool {
        let state = self.state.lock();
        state.whole.contains_key(key) || state.growing.contains_key(key)
    }

    fn open_whole(&self, key: &BlobKey) -> io::Result<Option<Whole>> {
        let now = seconds(SystemTime::now());
        let note = {
            let mut state = self.state.lock();
            let Some(stored) = state.whole.get_mut(key) else {
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
        let file = match File::open(self.whole_path(key)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.state.lock().forget(key);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if file.metadata()?.len() != size {
            log::error!("{key} has changed its length on disk: removed");
            self.remove_whole(key);
            return Ok(None);
        }
        if note {
            // A convenience: without it the blob looks older after a restart.
            let _noted = file.set_modified(SystemTime::now());
        }
        let file = Arc::new(file);
        Ok(Some(Whole::new(file, size, &self.state, key)))
    }

    fn remove_whole(&self, key: &BlobKey) {
        self.state.lock().forget(key);
        part::forget(&self.whole_path(key));
    }

    fn whole_path(&self, BlobKey { realm, digest }: &BlobKey) -> PathBuf {
        here::blobs_dir(&self.dir, *realm, digest.algorithm()).join(digest.hex())
    }

    /// Returns the file of a blob that is whole. It may be removed at any time.
    #[must_use]
    pub fn whole_file(&self, key: &BlobKey) -> Option<PathBuf> {
        let known = self.state.lock().whole.contains_key(key);
        known.then(|| self.whole_path(key))
    }

    pub(crate) fn parts_dir(&self, realm: Realm) -> PathBuf {
        realm.dir(&self.dir).join("parts")
    }

    /// Removes all blobs of a realm, and beginnings of them, and returns what that was.
    pub(crate) fn clear(&self, realm: Realm) -> Evicted {
        let mut tenants = self.tenants(&self.state.lock());
        tenants.retain(|tenant| tenant.key.realm == realm);
        self.remove(&tenants)
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
        let list = |key: &BlobKey, bytes, state, used: u64| {
            let (references, wanted) = (self.worth)(&key.digest);
            Listed {
                key: key.clone(),
                bytes,
                state,
                references,
                used: used.max(wanted),
            }
        };
        let whole = state.whole.iter();
        let whole = whole.map(|(key, stored)| list(key, stored.bytes, "whole", stored.used));
        let parts = state.parts.iter();
        let parts = parts.map(|(key, bytes)| list(key, *bytes, "part", 0));
        let growing = state.growing.iter();
        let growing = growing.map(|(key, flight)| list(key, flight.reserved, "growing", 0));
        whole.chain(parts).chain(growing).collect()
    }

    /// Sets bytes aside for a blob that grows; the least valuable blobs go. `false` if there is no
    /// room whoever goes.
    pub(crate) fn reserve(&self, key: &BlobKey, size: u64) -> bool {
        if size > self.config.budget {
            return false;
        }
        let over = {
            let mut state = self.state.lock();
            if let Some(flight) = state.growing.get_mut(key) {
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
        if !fits && let Some(flight) = self.state.lock().growing.get_mut(key) {
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
            key: blob.key,
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
                    true => state.parts.remove(&victim.key).is_some(),
                    false => state.forget(&victim.key),
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
                    let BlobKey { realm, digest } = &victim.key;
                    if let Ok(part) = part::Part::open(&self.parts_dir(*realm), digest) {
                        part.remove();
                    }
                }
                false => part::forget(&self.whole_path(&victim.key)),
            }
        }
        removed
    }
}

impl State {
    /// Keeps a blob that became whole.
    fn keep(&mut self, key: &BlobKey, stored: Stored) {
        self.whole.insert(key.clone(), stored);
        self.order.insert(key, stored.bytes, stored.used);
    }

    /// Forgets a whole blob, and returns whether it was here.
    fn forget(&mut self, key: &BlobKey) -> bool {
        self.order.remove(key);
        self.whole.remove(key).is_some()
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
