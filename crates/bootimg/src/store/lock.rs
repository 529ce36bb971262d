//! One process at a time changes a store.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use rawio::file_lock::{FileLock, LockError, Purpose};

use crate::StoreError;

const PURPOSE: Purpose = Purpose {
    holder: "is changing the store",
    advice: "try again when it has ended",
};

/// Held while the store is changed; the kernel releases it when the process dies.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "held for its lock")] FileLock);

impl Lock {
    /// Takes the lock, or gives up after `timeout`.
    pub(super) fn take(path: &Path, timeout: Duration) -> Result<Self, StoreError> {
        FileLock::take(path, timeout, PURPOSE)
            .map(Self)
            .map_err(failed)
    }

    /// Does the same without creating the file; `None` if it does not exist.
    pub(super) fn take_present(path: &Path, timeout: Duration) -> Result<Option<Self>, StoreError> {
        match File::open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io(path, "locking", error)),
            Ok(file) => FileLock::of(file, path, timeout, PURPOSE)
                .map(|lock| Some(Self(lock)))
                .map_err(failed),
        }
    }
}

fn failed(error: LockError) -> StoreError {
    match error {
        LockError::Busy(busy) => StoreError::Locked(busy),
        LockError::Io { path, source } => StoreError::io(&path, "locking", source),
    }
}
