//! One keeper at a time: a lock file.

use std::path::Path;
use std::time::Duration;

use rawio::file_lock::{FileLock, LockError, Purpose};

use crate::{Result, StoreError};

const PURPOSE: Purpose = Purpose {
    holder: "is the keeper",
    advice: "end it first",
};

/// The right to be the keeper, until it is dropped or the process ends.
#[derive(Debug)]
pub(super) struct Claim(#[expect(dead_code, reason = "held for its lock")] FileLock);

impl Claim {
    /// Takes the lock, and writes the owner to it. Waits up to `patience` for another keeper that may
    /// be about to end.
    pub(super) fn take(path: &Path, patience: Duration) -> Result<Self> {
        let step = || StoreError::step::<std::io::Error>("locking what one keeper has at a time");
        let mut lock = FileLock::take(path, patience, PURPOSE).map_err(|error| match error {
            LockError::Busy(busy) => StoreError::Taken {
                process: busy.process,
            },
            LockError::Io { source, .. } => step()(source),
        })?;
        lock.sign().map_err(step())?;
        Ok(Self(lock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_one_process_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join("keeper.lock");
        let claim = Claim::take(&lock, Duration::ZERO).unwrap();
        let taken = Claim::take(&lock, Duration::from_millis(10)).unwrap_err();
        assert!(
            matches!(taken, StoreError::Taken { process } if process == Some(std::process::id())),
            "{taken}"
        );
        drop(claim);
        Claim::take(&lock, Duration::ZERO).unwrap();
    }
}
