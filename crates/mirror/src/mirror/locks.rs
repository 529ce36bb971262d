//! A lock for each name: one task at a time does the work, and the others find it done (singleflight).

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// A lock for each name that is locked or waited for.
#[derive(Debug, Default)]
pub(super) struct KeyedLocks(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl KeyedLocks {
    /// Locks a name until the guard is dropped.
    pub(super) async fn lock(&self, name: String) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock();
            locks.retain(|_, lock| lock.strong_count() > 0);
            let lock = locks.get(&name).and_then(Weak::upgrade).unwrap_or_default();
            locks.insert(name, Arc::downgrade(&lock));
            lock
        };
        lock.lock_owned().await
    }
}
