//! Locks on files and directories between processes (`flock(2)`), taken with a deadline.
//!
//! The kernel releases such a lock when the process that holds it dies. It cannot wait with a deadline, so the
//! lock is tried again after pauses. When it is not released in time, the error says what its holder may be
//! doing, which process that is if the system tells, and what to try.

mod holder;

use std::fmt;
use std::fs::{File, Metadata, TryLockError};
use std::io::{self, Seek as _, Write as _};
use std::ops::Deref;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::private;

/// The first pause between two attempts. Each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause: what a lock that is free may stay unused.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// What a lock is for, as far as somebody needs to know who waited for it in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purpose {
    /// What its holder does: "changes the store".
    pub holder: &'static str,
    /// What to do about it: "try again when it has ended".
    pub advice: &'static str,
}

/// The reason why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// The system refuses it, or the file cannot be opened.
    #[error("locking {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Another process held a lock until the deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Busy {
    /// The locked file or directory.
    pub path: PathBuf,
    /// What the lock is for.
    pub purpose: Purpose,
    /// The process that holds it, if the system or the file tells.
    pub process: Option<u32>,
    /// How long it was waited for.
    pub waited: Duration,
}

impl std::error::Error for Busy {}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another process")?;
        if let Some(process) = self.process {
            write!(f, " ({process})")?;
        }
        let Purpose { holder, advice } = self.purpose;
        write!(f, " {holder}, and holds the lock {}", self.path.display())?;
        if !self.waited.is_zero() {
            write!(f, " for longer than {:?}", self.waited)?;
        }
        write!(f, ": {advice}")
    }
}

/// An exclusive lock on a file or directory, until it is dropped or the process dies.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Locks a file, which is created with the access of its directory if it is missing. Gives up after
    /// `patience`.
    ///
    /// # Errors
    /// If another process still holds the lock then, or the file cannot be opened, created or locked.
    pub fn take(path: &Path, patience: Duration, purpose: Purpose) -> Result<Self, LockError> {
        let file = private::open_or_create(path).map_err(|source| LockError::Io {
            path: path.to_owned(),
            source,
        })?;
        Self::of(file, path, patience, purpose)
    }

    /// Locks an open file or directory. `path` is for errors.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn of(
        file: File,
        path: &Path,
        patience: Duration,
        purpose: Purpose,
    ) -> Result<Self, LockError> {
        match wait(|| file.try_lock(), patience, || false) {
            Ok(true) => Ok(Self(file)),
            Ok(false) => Err(LockError::Busy(Busy {
                path: path.to_owned(),
                purpose,
                process: holder::of(&file),
                waited: patience,
            })),
            Err(source) => Err(LockError::Io {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// Locks an open file. Returns `None` if another process still holds the lock after `patience`, or as soon
    /// as `gives_up` returns true, which is asked after each attempt.
    ///
    /// # Errors
    /// If the system refuses the lock.
    pub fn unless(
        file: File,
        patience: Duration,
        gives_up: impl FnMut() -> bool,
    ) -> io::Result<Option<Self>> {
        Ok(wait(|| file.try_lock(), patience, gives_up)?.then_some(Self(file)))
    }

    /// Writes the number of this process to the file, so that others can say who holds the lock where the system
    /// does not tell.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn sign(&mut self) -> io::Result<()> {
        self.0.set_len(0)?;
        self.0.rewind()?;
        self.0.write_all(std::process::id().to_string().as_bytes())
    }
}

impl Deref for FileLock {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for FileLock {
    /// Releases the lock even if a child that was forked just now has the descriptor yet.
    fn drop(&mut self) {
        // It fails for no lock that was taken, and closing releases it as well.
        let _released = self.0.unlock();
    }
}

/// Takes a shared lock on an open file, which is released when the file is closed: nobody can lock it
/// exclusively until then. Returns whether it was possible within `patience`.
///
/// # Errors
/// If the system refuses the lock.
pub fn share(file: &File, patience: Duration) -> io::Result<bool> {
    wait(|| file.try_lock_shared(), patience, || false)
}

/// Returns whether what a name leads to, which was examined after `file` was locked, is still that file: another
/// process may have removed or replaced it between the opening and the locking, and then the lock keeps nobody
/// away.
#[must_use]
pub fn is_still(file: &File, named: io::Result<Metadata>) -> bool {
    let place = |of: Metadata| (of.dev(), of.ino());
    match (file.metadata().map(place), named.map(place)) {
        (Ok(locked), Ok(named)) => locked == named,
        _ => false,
    }
}

/// Tries until it succeeds, the time is over or `gives_up` returns true.
fn wait(
    attempt: impl Fn() -> Result<(), TryLockError>,
    patience: Duration,
    mut gives_up: impl FnMut() -> bool,
) -> io::Result<bool> {
    let started = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        match attempt() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let left = patience.saturating_sub(started.elapsed());
        if left.is_zero() || gives_up() {
            return Ok(false);
        }
        sleep(pause.min(left));
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests;
