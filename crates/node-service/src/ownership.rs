//! The lock that makes sure that a run directory has one node.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use rawio::file_lock::{FileLock, LockError, Purpose};

use host::run_dir::RunDir;

/// How long a node waits for the right: somebody who only looks whether it is taken has it for a
/// moment, and so has a node that was killed.
const PATIENCE: Duration = Duration::from_secs(2);
const PURPOSE: Purpose = Purpose {
    holder: "is a node",
    advice: "use that one, or end it first",
};

/// The right to own the mounts of a run directory, or the list of those that are wanted, until it is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct Ownership(#[expect(dead_code, reason = "held for its lock")] FileLock);

impl Ownership {
    /// Takes the lock of a run directory.
    ///
    /// # Errors
    /// If another node holds it; the error names that node.
    pub(crate) fn take(run_dir: &RunDir) -> anyhow::Result<Self> {
        Self::of(&path(run_dir), |owner| taken(run_dir, owner))
    }

    /// Takes the lock of the list of desired mounts: two nodes would make the same mounts after a
    /// reboot, and each would remove those of the other.
    ///
    /// # Errors
    /// If another node holds it; the error names that node.
    pub(crate) fn take_state(dir: &Path) -> anyhow::Result<Self> {
        Self::of(&state_path(dir), |owner| state_taken(dir, owner))
    }

    fn of(path: &Path, taken: impl Fn(Option<u32>) -> anyhow::Error) -> anyhow::Result<Self> {
        let mut lock = lock(path, PATIENCE, taken)?;
        lock.sign().context("recording the owner of the mounts")?;
        Ok(Self(lock))
    }

    /// Makes sure that no node has it now.
    ///
    /// # Errors
    /// If one has, which is named.
    pub(crate) fn is_free(run_dir: &RunDir) -> anyhow::Result<()> {
        // Without the directory there was no node yet.
        if !path(run_dir).parent().is_some_and(Path::exists) {
            return Ok(());
        }
        lock(&path(run_dir), Duration::ZERO, |owner| {
            taken(run_dir, owner)
        })
        .map(drop)
    }

    /// Makes sure that no node keeps its mounts in a state directory now.
    ///
    /// # Errors
    /// If one does, which is named.
    pub(super) fn is_free_state(dir: &Path) -> anyhow::Result<()> {
        if !dir.exists() {
            return Ok(());
        }
        lock(&state_path(dir), Duration::ZERO, |owner| {
            state_taken(dir, owner)
        })
        .map(drop)
    }
}

/// Returns the error for a process that needs a lock that the process `owner` holds, if that is
/// known.
pub(crate) fn taken(run_dir: &RunDir, owner: Option<u32>) -> anyhow::Error {
    let owner = owner.map_or_else(String::new, |pid| format!(" (process {pid})"));
    anyhow!(
        "another node{owner} owns the mounts of {}: use that one (yolofs node status), end it \
         first, or give this one a run directory and a state directory of its own",
        run_dir.path().display()
    )
}

fn state_taken(dir: &Path, owner: Option<u32>) -> anyhow::Error {
    let owner = owner.map_or_else(String::new, |pid| format!(" (process {pid})"));
    anyhow!(
        "another node{owner}, of another run directory, keeps its mounts in {}: give this one a \
         state directory of its own",
        dir.display()
    )
}

fn state_path(dir: &Path) -> std::path::PathBuf {
    dir.join("lock")
}

fn path(run_dir: &RunDir) -> std::path::PathBuf {
    run_dir.path().join("node/lock")
}

/// Takes the lock within `patience`; `taken` makes the error from the process that has it, if that is known.
fn lock(
    path: &Path,
    patience: Duration,
    taken: impl Fn(Option<u32>) -> anyhow::Error,
) -> anyhow::Result<FileLock> {
    FileLock::take(path, patience, PURPOSE).map_err(|error| match error {
        LockError::Busy(busy) => taken(busy.process),
        error @ LockError::Io { .. } => error.into(),
    })
}
