//! The cache of blobs on the mirror's disk: complete and verified, or being downloaded.
//!
//! A missing blob is downloaded once, however many clients ask for it: the first becomes the *lead*,
//! and all read the growing file. Readers and the download share only its progress, so that a slow
//! reader slows no other, and one that disconnects stops nothing.
//!
//! ```text
//! DIR/blobs/sha256/HEX      complete: hashed, synced, then renamed to here
//! DIR/parts/sha256-HEX      incomplete
//! DIR/parts/sha256-HEX.json what is needed to resume its download after a restart
//! DIR/apart/REALM/...       the same, for a registry that is not open to all ([`Realm`])
//! ```

mod digest;
mod eviction;
mod growing;
mod here;
mod key;
mod lead;
mod part;
mod room;
mod separate_ranges;
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
use rawio::regular::{self, Links};

pub(crate) use digest::Hasher;
pub use digest::{Algorithm, BlobDigest, ParseBlobDigestError};
use eviction::Eviction;
pub use growing::{End, FillError, Growing, Progress};
pub use key::{BlobKey, Realm};
pub use lead::Lead;
pub(crate) use lead::Verdict;
pub(crate) use part::Part;
use room::{Order, Tenant};
pub(crate) use separate_ranges::{RangeSource, SeparateRange};
pub use verify::VerifiedBlobs;
pub use whole::Whole;

/// How often the time of a blob's last use is written to the disk.
const TOUCH_EVERY: u64 = 60;

/// Free bytes that are left in the file system, for others that write there.
const SPARE: u64 = 16 << 20;

/// The configuration of a cache.
#[derive(Clone, Copy, Debug)]
pub struct BlobConfig {
    /// The limit of bytes of all blobs, complete and incomplete.
    pub budget: u64,
    /// Bytes at the end of a blob that are not sent before the whole blob is verified.
    pub hold_back: u64,
    /// The eviction policy for blobs that images need.
    pub policy: PolicyKind,
}

/// Returns how many known manifests need a blob, and when one of these was last requested.
pub type Worth = dyn Fn(&BlobDigest) -> (usize, u64) + Send + Sync;

/// A cache of blobs in a directory, which one process uses at a time.
pub struct BlobCache {
    dir: PathBuf,
    config: BlobConfig,
    _lock: File,
    state: Arc<Mutex<CacheState>>,
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
struct CacheState {
    whole: HashMap<BlobKey, Stored>,
    /// The order in which these are evicted.
    order: Order,
    /// Incomplete blobs without a download in progress, with their lengths.
    parts: HashMap<BlobKey, u64>,
    growing: HashMap<BlobKey, Fill>,
    evicted: Evicted,
    /// The serial number of the blob that became complete last.
    serial: u64,
}

#[derive(Clone, Copy, Debug)]
struct Stored {
    bytes: u64,
    used: u64,
    noted: u64,
    /// Which of the files that this blob had since the cache was opened: the same digest is downloaded again after its
    /// removal.
    serial: u64,
}

impl Stored {
    /// Returns one that gets its serial number when it is kept.
    const fn new(bytes: u64, used: u64, noted: u64) -> Self {
        Self {
            bytes,
            used,
            noted,
            serial: 0,
        }
    }
}

#[derive(Debug)]
struct Fill {
    growing: Arc<Growing>,
    /// Bytes that are reserved for it.
    reserved: u64,
}

/// Blobs that were evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Blobs, complete and incomplete.
    pub blobs: u64,
    /// Their bytes on the disk.
    pub bytes: u64,
}

/// The state of a blob in the cache.
#[derive(Debug)]
pub enum BlobState {
    /// It is complete.
    Whole(Whole),
    /// It is being downloaded.
    Growing(Arc<Growing>),
    /// It is missing: the caller downloads it.
    Lead(Lead),
}

/// A blob in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its digest and realm.
    pub key: BlobKey,
    /// Bytes on disk.
    pub bytes: u64,
    /// `whole`, `part` or `growing`.
    pub state: &'static str,
    /// Manifests that need it.
    pub references: usize,
    /// Seconds since 1970 of the last request for it, or for an image that needs it.
    pub used: u64,
}

impl BlobCache {
    /// Opens the cache in a directory, which is created with parts for these realms if they do not
    /// exist. `worth` returns how many images need a blob.
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
        let lock = lock_file(&dir.join("lock"))?;
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
        let state = CacheState {
            whole: whole.into_iter().collect(),
            order,
            parts,
            growing: HashMap::new(),
            evicted: Evicted::default(),
            serial: 0,
        };
        Ok(Self {
            dir: dir.to_owned(),
            config,
            _lock: lock,
            state: Arc::new(Mutex::new(state)),
            worth,
        })
    }

    /// Returns the state of a blob, and makes the caller its lead if it is missing.
    ///
    /// # Errors
    /// If a whole blob cannot be opened.
    pub fn find(self: &Arc<Self>, key: &BlobKey) -> io::Result<BlobState> {
        if let Some(whole) = self.open_whole(key)? {
            return Ok(BlobState::Whole(whole));
        }
        let mut state = self.state.lock();
        if let Some(flight) = state.growing.get(key) {
            return Ok(BlobState::Growing(Arc::clone(&flight.growing)));
        }
        // It may have become whole since we looked.
        if state.whole.contains_key(key) {
            drop(state);
            let whole = self.open_whole(key)?;
            return whole
                .map(BlobState::Whole)
                .ok_or_else(|| io::Error::other("removed meanwhile"));
        }
        let growing = Arc::new(Growing::new(key.clone(), self.config.hold_back));
        let reserved = state.parts.remove(key).unwrap_or(0);
        let flight = Fill {
            growing: Arc::clone(&growing),
            reserved,
        };
        state.growing.insert(key.clone(), flight);
        Ok(BlobState::Lead(Lead::new(
            Arc::clone(self),
            growing,
            reserved,
        )))
    }

    /// Returns a blob if it is complete or being downloaded.
    ///
    /// # Errors
    /// If a whole blob cannot be opened.
    pub fn peek(&self, key: &BlobKey) -> io::Result<Option<BlobState>> {
        if let Some(whole) = self.open_whole(key)? {
            return Ok(Some(BlobState::Whole(whole)));
        }
        let state = self.state.lock();
        let flight = state.growing.get(key);
        Ok(flight.map(|flight| BlobState::Growing(Arc::clone(&flight.growing))))
    }

    /// Returns whether a blob is complete or being downloaded, without access to the disk.
    #[must_use]
    pub fn is_here(&self, key: &BlobKey) -> bool {
        let state = self.state.lock();
        state.whole.contains_key(key) || state.growing.contains_key(key)
    }

    fn open_whole(&self, key: &BlobKey) -> io::Result<Option<Whole>> {
        let now = seconds(SystemTime::now());
        // Again only if the blob was removed and downloaded anew meanwhile.
        loop {
            let (stored, note) = {
                let mut state = self.state.lock();
                let Some(stored) = state.whole.get_mut(key) else {
                    return Ok(None);
                };
                stored.used = now;
                let note = now.saturating_sub(stored.noted) >= TOUCH_EVERY;
                if note {
                    stored.noted = now;
                }
                (*stored, note)
            };
            let Some(file) = self.open_stored(key, &stored)? else {
                continue;
            };
            if note {
                // A convenience: without it the blob looks older after a restart.
                let _noted = file.set_modified(SystemTime::now());
            }
            let file = Arc::new(file);
            return Ok(Some(Whole::new(file, stored.bytes, &self.state, key)));
        }
    }

    /// Opens the file of a blob as it was found in the index. If that file is gone or has another length, it returns
    /// `None`, and the index does not have this file any more.
    fn open_stored(&self, key: &BlobKey, stored: &Stored) -> io::Result<Option<File>> {
        let path = self.whole_path(key);
        match regular::open(&path, Links::Followed) {
            Ok(file) if file.metadata()?.len() == stored.bytes => return Ok(Some(file)),
            Ok(_) => {}
            // It is gone, or something else is in its place.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::InvalidInput
                ) => {}
            Err(error) => return Err(error),
        }
        if self.remove_broken(key, stored) {
            log::error!("the file of {key} is gone or has the wrong length: removed");
        }
        Ok(None)
    }

    /// Removes a blob whose file is not right, and returns whether it did. Another reader may have found the same, and
    /// the blob may have been downloaded again since: that file stays.
    fn remove_broken(&self, key: &BlobKey, stored: &Stored) -> bool {
        let hold_back = self.config.hold_back;
        let removal = Eviction::of_broken(&self.state, key, stored.serial, hold_back);
        if removal.is_some() {
            part::forget(&self.whole_path(key));
        }
        removal.is_some()
    }

    fn whole_path(&self, BlobKey { realm, digest }: &BlobKey) -> PathBuf {
        here::blobs_dir(&self.dir, *realm, digest.algorithm()).join(digest.hex())
    }

    /// Returns the file of a complete blob. It may be evicted at any time.
    #[must_use]
    pub fn whole_file(&self, key: &BlobKey) -> Option<PathBuf> {
        let known = self.state.lock().whole.contains_key(key);
        known.then(|| self.whole_path(key))
    }

    pub(crate) fn parts_dir(&self, realm: Realm) -> PathBuf {
        realm.dir(&self.dir).join("parts")
    }

    /// Removes all blobs of a realm, and returns their number and bytes.
    pub(crate) fn clear(&self, realm: Realm) -> Evicted {
        let mut tenants = self.tenants(&self.state.lock());
        tenants.retain(|tenant| tenant.key.realm == realm);
        self.remove(&tenants)
    }

    /// Returns the bytes of all blobs, with those that are reserved.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().used_bytes()
    }

    /// Returns the limit of these bytes.
    #[must_use]
    pub const fn budget(&self) -> u64 {
        self.config.budget
    }

    /// Returns the number of complete blobs.
    #[must_use]
    pub fn whole_count(&self) -> usize {
        self.state.lock().whole.len()
    }

    /// Returns the number of blobs that are being downloaded.
    #[must_use]
    pub fn growing_count(&self) -> usize {
        self.state.lock().growing.len()
    }

    /// Returns the blobs that were evicted since the cache was opened.
    #[must_use]
    pub fn evicted(&self) -> Evicted {
        self.state.lock().evicted
    }

    /// Returns all blobs.
    #[must_use]
    pub fn list(&self) -> Vec<Listed> {
        self.list_of(&self.state.lock())
    }

    fn list_of(&self, state: &CacheState) -> Vec<Listed> {
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

    /// Reserves bytes for a download; the least valuable blobs are evicted. `false` if there is no
    /// room even so.
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

    /// Returns the free bytes of the file system; the maximum if it does not tell.
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

    /// Removes incomplete blobs without a download, and blobs that no known image needs and that
    /// were not requested within `idle`.
    pub fn collect(&self, idle: Duration) -> Evicted {
        let before = seconds(SystemTime::now()).saturating_sub(idle.as_secs());
        let mut tenants = self.tenants(&self.state.lock());
        tenants
            .retain(|tenant| tenant.is_part || (tenant.references == 0 && tenant.used <= before));
        self.remove(&tenants)
    }

    fn tenants(&self, state: &CacheState) -> Vec<Tenant> {
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
            let Some(eviction) = Eviction::begin(&self.state, victim, self.config.hold_back) else {
                continue;
            };
            removed.blobs += 1;
            removed.bytes += victim.bytes;
            match victim.is_part {
                true => part::discard(&self.parts_dir(victim.key.realm), &victim.key.digest),
                false => part::forget(&self.whole_path(&victim.key)),
            }
            drop(eviction);
        }
        removed
    }
}

impl CacheState {
    /// Adds a blob that became complete.
    fn keep(&mut self, key: &BlobKey, mut stored: Stored) {
        self.serial += 1;
        stored.serial = self.serial;
        self.whole.insert(key.clone(), stored);
        self.order.insert(key, stored.bytes, stored.used);
    }

    /// Removes a complete blob from the cache's state, and returns whether it was in it.
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

/// Opens the file that the process with the cache has locked. A file system that can only be read has one from before.
fn lock_file(path: &Path) -> io::Result<File> {
    match regular::open_to_write(path, Links::Followed, true) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            log::warn!("{} can only be read: nothing new is kept", path.display());
            regular::open(path, Links::Followed)
        }
        opened => opened,
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

#[cfg(test)]
mod tests;
