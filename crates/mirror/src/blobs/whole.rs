//! A complete blob that is being read.

use std::fs::File;
use std::sync::Arc;

use parking_lot::Mutex;

use super::CacheState;
use super::key::BlobKey;

/// A complete blob. It is not evicted while this lives, unless all others are.
#[derive(Clone, Debug)]
pub struct Whole {
    /// Its file, which stays readable if the blob is evicted.
    pub file: Arc<File>,
    /// Its length in bytes.
    pub size: u64,
    _in_use: Arc<InUse>,
}

impl Whole {
    pub(super) fn new(
        file: Arc<File>,
        size: u64,
        state: &Arc<Mutex<CacheState>>,
        key: &BlobKey,
    ) -> Self {
        let in_use = InUse::new(state, key);
        Self {
            file,
            size,
            _in_use: Arc::new(in_use),
        }
    }
}

/// Pins a blob while it is read.
struct InUse {
    state: Arc<Mutex<CacheState>>,
    key: BlobKey,
}

impl InUse {
    fn new(state: &Arc<Mutex<CacheState>>, key: &BlobKey) -> Self {
        state.lock().order.pin(key);
        Self {
            state: Arc::clone(state),
            key: key.clone(),
        }
    }
}

impl std::fmt::Debug for InUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("InUse").field(&self.key).finish()
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.state.lock().order.unpin(&self.key);
    }
}
