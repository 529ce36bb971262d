//! The eviction of a blob: a download of the same blob must not begin before its files are gone.

use std::sync::Arc;

use parking_lot::Mutex;

use super::growing::{End, FillError, Growing};
use super::key::BlobKey;
use super::room::Tenant;
use super::{CacheState, Fill};

/// A blob whose files are being removed. Meanwhile it is found as a download, which fails when the
/// files are gone: whoever joined it then asks again. So no download writes to files that are
/// removed, and no lock is held while they are.
#[derive(Debug)]
pub(super) struct Eviction {
    state: Arc<Mutex<CacheState>>,
    key: BlobKey,
    growing: Arc<Growing>,
}

impl Eviction {
    /// Takes a blob out of the cache; `None` if it is no longer what it was when it was chosen.
    pub(super) fn begin(
        cache: &Arc<Mutex<CacheState>>,
        victim: &Tenant,
        hold_back: u64,
    ) -> Option<Self> {
        let key = victim.key.clone();
        let mut state = cache.lock();
        let known = match victim.is_part {
            true => state.parts.remove(&key).is_some(),
            false => state.forget(&key),
        };
        known.then_some(())?;
        state.evicted.blobs += 1;
        state.evicted.bytes += victim.bytes;
        Some(Self::of(cache, &mut state, key, hold_back))
    }

    /// Takes a complete blob out of the cache whose file is not right; `None` if it is not the one with
    /// this serial number any more.
    pub(super) fn of_broken(
        cache: &Arc<Mutex<CacheState>>,
        key: &BlobKey,
        serial: u64,
        hold_back: u64,
    ) -> Option<Self> {
        let mut state = cache.lock();
        let stored = state.whole.get(key);
        stored.filter(|stored| stored.serial == serial)?;
        state.forget(key);
        Some(Self::of(cache, &mut state, key.clone(), hold_back))
    }

    fn of(
        cache: &Arc<Mutex<CacheState>>,
        state: &mut CacheState,
        key: BlobKey,
        hold_back: u64,
    ) -> Self {
        let growing = Arc::new(Growing::new(key.clone(), hold_back));
        let fill = Fill {
            growing: Arc::clone(&growing),
            // Counted as gone, as it was chosen to be.
            reserved: 0,
        };
        state.growing.insert(key.clone(), fill);
        Self {
            state: Arc::clone(cache),
            key,
            growing,
        }
    }
}

impl Drop for Eviction {
    fn drop(&mut self) {
        self.state.lock().growing.remove(&self.key);
        // After the index, as for a download.
        let end = End::Failed(Arc::new(FillError::GivenUp));
        self.growing.end(end);
    }
}
