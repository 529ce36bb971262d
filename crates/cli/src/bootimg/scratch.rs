//! Where a recording mounts its source: `<run-dir>/record-<number>/`, with the directories `mnt` for
//! the recorded mount and `scratch` for the sandbox.
//!
//! A recorder that is killed leaves its mount behind, which answers nobody. While it lives it holds a
//! lock on the directory, so that the next recorder knows the dead from its neighbours, in whatever
//! PID namespace they are, and clears them.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::mount_table::{clear, kind_at};
use crate::run_dir::{MOUNT_KIND, RunDir, process_start};
use crate::store::{is_at, is_number, random_name};

const PREFIX: &str = "record-";

/// The directories of one run; removed when it is over.
#[derive(Debug)]
pub(super) struct Scratch {
    dir: PathBuf,
    /// Where the recorded mount goes.
    pub(super) mountpoint: PathBuf,
    /// An empty directory.
    pub(super) scratch: PathBuf,
    /// Says that its owner lives; nothing for what a dead one left.
    _lock: Option<File>,
}

impl Scratch {
    /// Makes the directories of this process.
    ///
    /// # Errors
    /// If they cannot be made.
    pub(super) fn new(run_dir: &RunDir) -> anyhow::Result<Self> {
        let (dir, lock) = loop {
            let dir = run_dir.path().join(random_name(PREFIX)?);
            let making = || format!("making {}", dir.display());
            std::fs::create_dir(&dir).with_context(making)?;
            // Who clears the dead may have taken it for one of theirs, between the two steps.
            let Ok(lock) = File::open(&dir) else {
                continue;
            };
            if lock.try_lock().is_ok() && is_at(&lock, &dir) {
                break (dir, lock);
            }
        };
        let place = Self::at(dir, Some(lock));
        for path in [&place.mountpoint, &place.scratch] {
            std::fs::create_dir(path).with_context(|| format!("making {}", path.display()))?;
        }
        Ok(place)
    }

    fn at(dir: PathBuf, lock: Option<File>) -> Self {
        Self {
            mountpoint: dir.join("mnt"),
            scratch: dir.join("scratch"),
            dir,
            _lock: lock,
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Empty directories only: should the mount still be there, nothing of it is touched.
        for path in [&self.mountpoint, &self.scratch, &self.dir] {
            match std::fs::remove_dir(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    log::warn!("cannot remove {}: {error}", path.display());
                }
                _ => {}
            }
        }
    }
}

/// Unmounts and removes what recorders left behind that are not alive any more. What does not go
/// is in nobody's way: the log says so, and the next recorder tries again.
///
/// # Errors
/// If the run directory cannot be read.
pub(super) fn clear_dead(run_dir: &RunDir) -> anyhow::Result<()> {
    let doing = || format!("reading {}", run_dir.path().display());
    for entry in std::fs::read_dir(run_dir.path()).with_context(doing)? {
        let path = entry.with_context(doing)?.path();
        let dead = match owner(&path) {
            Owner::Nobody => None,
            Owner::Lock => lock_of_dead(&path),
            Owner::Process(pid, start) => {
                let alive = process_start(pid).is_ok_and(|started| started == start);
                (!alive).then(|| Scratch::at(path, None))
            }
        };
        if let Some(left) = dead {
            if let Err(error) = clear_mount(&left.mountpoint) {
                log::warn!("{}: {error:#}", left.mountpoint.display());
            }
            drop(left); // removes the directories
        }
    }
    Ok(())
}

fn clear_mount(mountpoint: &Path) -> anyhow::Result<()> {
    if kind_at(mountpoint)?.as_deref() == Some(MOUNT_KIND) {
        clear(mountpoint)?;
    }
    Ok(())
}

/// What tells whether the recorder is alive whose directory this is.
enum Owner {
    /// It is no recorder's.
    Nobody,
    /// The lock on the directory.
    Lock,
    /// An earlier release named it by its process and when that started.
    Process(u32, u64),
}

/// Returns whose directory `path` is, by its name.
fn owner(path: &Path) -> Owner {
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(rest) = name.and_then(|name| name.strip_prefix(PREFIX)) else {
        return Owner::Nobody;
    };
    if is_number(rest) {
        return Owner::Lock;
    }
    let process = rest.split_once('-');
    let process = process.and_then(|(pid, start)| Some((pid.parse().ok()?, start.parse().ok()?)));
    process.map_or(Owner::Nobody, |(pid, start)| Owner::Process(pid, start))
}

/// Takes over the directory of a recorder if that is dead.
fn lock_of_dead(path: &Path) -> Option<Scratch> {
    let lock = File::open(path).ok()?;
    match lock.try_lock() {
        Ok(()) => Some(Scratch::at(path.to_owned(), Some(lock))),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Error(error)) => {
            log::warn!("cannot lock {}: {error}", path.display());
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_dead_are_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::open(dir.path()).unwrap();
        let alive = Scratch::new(&run_dir).unwrap();
        let (pid, start) = (
            std::process::id(),
            process_start(std::process::id()).unwrap(),
        );
        let dead = Scratch::at(dir.path().join(format!("record-{pid}-{}", start + 1)), None);
        let gone = Scratch::at(dir.path().join(format!("record-{}-7", u32::MAX)), None);
        // Nobody holds the lock of this one.
        let killed = Scratch::at(dir.path().join(format!("record-{}", "0f".repeat(16))), None);
        let others = ["record-", "record-x-y", "record-7", "0123.json", "7-7"]
            .map(|name| dir.path().join(name));
        let left = [&dead.mountpoint, &dead.scratch, &gone.mountpoint];
        let left = left.into_iter().chain([&killed.mountpoint]);
        for path in left.chain(&others) {
            std::fs::create_dir_all(path).unwrap();
        }
        clear_dead(&run_dir).unwrap();
        assert!(!dead.dir.exists() && !gone.dir.exists() && !killed.dir.exists());
        assert!(alive.mountpoint.exists() && alive.scratch.exists());
        assert!(others.iter().all(|path| path.exists()));
        let place = alive.dir.clone();
        drop(alive);
        assert!(!place.exists());
    }
}
