//! One process at a time changes a store.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::StoreError;

/// How often to try: `flock(2)` cannot wait with a deadline.
const RETRY: Duration = Duration::from_millis(10);

/// Held while the store is changed; the kernel lets go of it when the process dies.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, or gives up after `timeout`.
    pub(super) fn take(path: &Path, timeout: Duration) -> Result<Self, StoreError> {
        let failed = |error| StoreError::io(path, "locking", error);
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .map_err(failed)?;
        let deadline = Instant::now() + timeout;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _file: file }),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(RETRY);
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(StoreError::Locked {
                        path: crate::durable::parent(path).to_owned(),
                    });
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
    }
}
