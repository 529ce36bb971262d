//! One process at a time changes a store, and one of its threads.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rawio::file_lock::{Busy, FileLock, LockError, Purpose};

use crate::StoreError;
use crate::reader::open_regular;

const PURPOSE: Purpose = Purpose {
    holder: "is changing the store",
    advice: "try again when it has ended",
};

/// The threads of this process that want the lock, one after the other: one that tries again later would wait for
/// longer than most changes take.
pub(super) type Turns = Mutex<()>;

/// Held while the store is changed; the kernel releases it when the process dies.
#[derive(Debug)]
pub(super) struct Lock<'a> {
    // Released before the next thread has its turn.
    _lock: FileLock,
    _turn: MutexGuard<'a, ()>,
}

impl<'a> Lock<'a> {
    /// Takes the lock, or gives up after `timeout`.
    pub(super) fn take(
        path: &Path,
        timeout: Duration,
        turns: &'a Turns,
    ) -> Result<Self, StoreError> {
        let file = rawio::private::open_or_create(path);
        let file = file.map_err(|error| StoreError::io(path, "locking", error))?;
        Self::of(file, path, timeout, turns)
    }

    /// Does the same without creating the file; `None` if it does not exist.
    pub(super) fn take_present(
        path: &Path,
        timeout: Duration,
        turns: &'a Turns,
    ) -> Result<Option<Self>, StoreError> {
        match open_regular(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io(path, "locking", error)),
            Ok(file) => Self::of(file, path, timeout, turns).map(Some),
        }
    }

    fn of(
        file: File,
        path: &Path,
        timeout: Duration,
        turns: &'a Turns,
    ) -> Result<Self, StoreError> {
        let deadline = Instant::now() + timeout;
        let busy = || Busy {
            path: path.to_owned(),
            purpose: PURPOSE,
            process: Some(std::process::id()),
            waited: timeout,
        };
        let turn = turns.try_lock_until(deadline);
        let turn = turn.ok_or_else(|| StoreError::Locked(busy()))?;
        let left = deadline.saturating_duration_since(Instant::now());
        match FileLock::of(file, path, left, PURPOSE) {
            Ok(lock) => Ok(Self {
                _lock: lock,
                _turn: turn,
            }),
            Err(LockError::Busy(busy)) => Err(StoreError::Locked(Busy {
                waited: timeout,
                ..busy
            })),
            Err(LockError::Io { path, source }) => Err(StoreError::io(&path, "locking", source)),
        }
    }
}
