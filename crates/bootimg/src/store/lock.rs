//! One process at a time changes a store.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::StoreError;

/// How often to try: `flock(2)` cannot wait with a deadline.
const RETRY: Duration = Duration::from_millis(10);

/// The threads of this process that want the lock, one after the other: one that tries again later would wait for
/// longer than most changes take.
pub(super) type Turns = Mutex<()>;

/// Held while the store is changed; the kernel releases it when the process dies.
#[derive(Debug)]
pub(super) struct Lock<'a> {
    // Released before the next thread has its turn.
    _file: File,
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
        match File::open(path) {
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
        let failed = |error| StoreError::io(path, "locking", error);
        let locked = || StoreError::Locked {
            path: crate::durable::parent(path).to_owned(),
        };
        let deadline = Instant::now() + timeout;
        let turn = turns.try_lock_until(deadline).ok_or_else(locked)?;
        loop {
            match file.try_lock() {
                Ok(()) => {
                    return Ok(Self {
                        _file: file,
                        _turn: turn,
                    });
                }
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(RETRY);
                }
                Err(TryLockError::WouldBlock) => return Err(locked()),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
    }
}
