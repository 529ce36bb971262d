//! Where a recording mounts its source: `<run-dir>/record-<number>/`, with the directories `mnt` for
//! the recorded mount and `scratch` for the sandbox.
//!
//! A recorder that is killed leaves its mount behind, which does not respond. While it lives it holds a
//! lock on the directory, so that the next recorder can tell dead ones from those in use, in whatever
//! PID namespace they are, and clears them.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::machine::SOCKETS;
use host::mount_table::MOUNT_KIND;
use host::mount_table::{clear, kind_at};
use host::own_dir::OwnDir;
use host::run_dir::{RunDir, has_ended};

const PREFIX: &str = "record-";

/// The directories of one run; removed when it is over.
#[derive(Debug)]
pub(crate) struct Scratch {
    dir: PathBuf,
    /// Where the recorded mount goes.
    pub(crate) mountpoint: PathBuf,
    /// An empty directory.
    pub(crate) scratch: PathBuf,
    /// Proves that its owner lives; `None` for the directory of a dead one that took no lock.
    own: Option<OwnDir>,
}

impl Scratch {
    /// Makes the directories of this process.
    ///
    /// # Errors
    /// If they cannot be made.
    pub(crate) fn new(run_dir: &RunDir) -> anyhow::Result<Self> {
        let own = OwnDir::make(run_dir.path(), PREFIX)?;
        let place = Self::at(own.path().to_owned(), Some(own));
        if let Some(own) = &place.own {
            own.make_dir(Path::new("mnt"))?;
            own.make_dir(Path::new("scratch"))?;
        }
        Ok(place)
    }

    fn at(dir: PathBuf, own: Option<OwnDir>) -> Self {
        Self {
            mountpoint: dir.join("mnt"),
            scratch: dir.join("scratch"),
            dir,
            own,
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for socket in SOCKETS {
            // Mostly there is none.
            let _none = std::fs::remove_file(self.scratch.join(socket));
        }
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

/// Unmounts and removes what dead recorders left. Failures are logged, and the next recorder tries
/// again.
///
/// # Errors
/// If the run directory cannot be read.
pub(crate) fn clear_dead(run_dir: &RunDir) -> anyhow::Result<()> {
    let locked = OwnDir::of_the_dead(run_dir.path(), PREFIX)?.into_iter();
    let locked = locked.map(|own| Scratch::at(own.path().to_owned(), Some(own)));
    let doing = || format!("reading {}", run_dir.path().display());
    let mut dead: Vec<Scratch> = locked.collect();
    for entry in std::fs::read_dir(run_dir.path()).with_context(doing)? {
        let path = entry.with_context(doing)?.path();
        if is_of_dead_process(&path) {
            dead.push(Scratch::at(path, None));
        }
    }
    for left in dead {
        if let Err(error) = clear_mount(&left.mountpoint) {
            log::warn!("{}: {error:#}", left.mountpoint.display());
        }
        drop(left); // removes the directories
    }
    Ok(())
}

fn clear_mount(mountpoint: &Path) -> anyhow::Result<()> {
    if kind_at(mountpoint)?.as_deref() == Some(MOUNT_KIND) {
        clear(mountpoint)?;
    }
    Ok(())
}

/// Returns whether a directory was made by an earlier release, which named it by its process and when that
/// started, and that process is dead.
fn is_of_dead_process(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let process = name.and_then(|name| name.strip_prefix(PREFIX)?.split_once('-'));
    let process = process.and_then(|(pid, start)| Some((pid.parse().ok()?, start.parse().ok()?)));
    process.is_some_and(|(pid, start): (u32, u64)| has_ended(pid, start))
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
            host::run_dir::process_start(std::process::id()).unwrap(),
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
