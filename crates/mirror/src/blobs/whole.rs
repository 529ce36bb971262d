//! A blob that somebody reads.

use std::fs::File;
use std::sync::Arc;

use parking_lot::Mutex;

use super::State;
use super::key::BlobKey;

/// A blob that is whole. As long as somebody has it, others go first.
#[derive(Clone, Debug)]
pub struct Whole {
    /// Its bytes. They stay readable if the blob is removed.
    pub file: Arc<File>,
    /// How many.
    pub size: u64,
    _in_use: Arc<InUse>,
}

impl Whole {
    pub(super) fn new(
        file: Arc<File>,
        size: u64,
        state: &Arc<Mutex<State>>,
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

/// Somebody reads a blob.
struct InUse {
    state: Arc<Mutex<State>>,
    key: BlobKey,
}

impl InUse {
    fn new(state: &Arc<Mutex<State>>, key: &BlobKey) -> Self {
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
