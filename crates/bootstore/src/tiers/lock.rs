//! Locks on files, taken with a deadline.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// How often to try: `flock(2)` cannot wait with a deadline.
const RETRY: Duration = Duration::from_millis(10);

/// Takes a lock, whose file is created if missing, or gives up after `patience`. It is held
/// until the returned value is dropped, or the process dies. `doing` is what other holders of this
/// lock do, for errors.
///
/// # Errors
/// If other processes hold it all the time, or the file cannot be created.
pub(super) fn take(path: &Path, patience: Duration, doing: &str) -> anyhow::Result<Flock<File>> {
    let file = rawio::private::open_or_create(path);
    let mut file = file.with_context(|| format!("opening the lock {}", path.display()))?;
    let deadline = Instant::now() + patience;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) if Instant::now() < deadline => {
                file = back;
                sleep(RETRY);
            }
            Err((_, Errno::EWOULDBLOCK)) => bail!(
                "another process {doing} for longer than {} s: try again later",
                patience.as_secs()
            ),
            Err((_, errno)) => {
                return Err(errno).with_context(|| format!("locking {}", path.display()));
            }
        }
    }
}

/// The result of locking a copy.
#[derive(Debug)]
pub(super) enum Hold {
    /// It is not open; it cannot be opened as long as this is held.
    Ours(#[expect(dead_code, reason = "held, not looked at")] Flock<File>),
    /// It is open.
    Open,
    /// It does not exist.
    Gone,
}

/// Locks a copy exclusively, unless it is open.
pub(super) fn hold_alone(path: &Path) -> Hold {
    hold_alone_within(path, Duration::ZERO)
}

/// As [`hold_alone`], for copies that may be locked for a moment by a process that checks or reads them.
/// One that is still locked after `patience` counts as open.
pub(super) fn hold_alone_within(path: &Path, patience: Duration) -> Hold {
    let Ok(mut file) = File::open(path) else {
        return Hold::Gone;
    };
    let deadline = Instant::now() + patience;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Hold::Ours(lock),
            Err((back, _)) if Instant::now() < deadline => {
                file = back;
                sleep(RETRY);
            }
            Err(_) => return Hold::Open,
        }
    }
}

/// Prevents the removal of a copy as long as `file` is open; returns whether no other process locked it
/// exclusively, or only for shorter than `patience`.
pub(super) fn share_within(file: &File, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        match file.try_lock_shared() {
            Ok(()) => return true,
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => sleep(RETRY),
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_waited_for_and_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = take(&path, Duration::ZERO, "moves objects").unwrap();
        let error = take(&path, Duration::from_millis(30), "moves objects");
        let error = error.unwrap_err().to_string();
        assert!(error.contains("another process moves objects"), "{error}");
        drop(held);
        take(&path, Duration::from_secs(60), "moves objects").unwrap();
    }

    #[test]
    fn who_has_a_copy_open_keeps_it_and_who_holds_it_keeps_others_from_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("copy");
        assert!(matches!(hold_alone(&path), Hold::Gone));
        let file = File::create(&path).unwrap();
        file.try_lock_shared().unwrap();
        assert!(matches!(hold_alone(&path), Hold::Open));
        drop(file);
        let held = hold_alone(&path);
        assert!(matches!(held, Hold::Ours(_)));
        let late = File::open(&path).unwrap();
        assert!(!share_within(&late, Duration::ZERO));
        // Who holds it for a moment has it not open.
        let moment = std::thread::spawn(move || {
            sleep(RETRY);
            drop(held);
        });
        let soon = hold_alone_within(&path, Duration::from_secs(60));
        assert!(matches!(soon, Hold::Ours(_)));
        moment.join().unwrap();
        let moment = std::thread::spawn(move || {
            sleep(RETRY);
            drop(soon);
        });
        assert!(share_within(&late, Duration::from_secs(60)));
        moment.join().unwrap();
    }
}
