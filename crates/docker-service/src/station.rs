//! Where the daemon for one Docker is found: its files in the run directory, and its mounts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use rawio::file_lock::FileLock;
use rawio::private;

use host::mount_table::MOUNT_KIND;
use host::mount_table::{clear, labelled, top_at};
use host::run_dir::RunDir;
use node_records::left::living_mounts;

/// What the names of all its files, and the labels of all its mounts, begin with.
const PREFIX: &str = "docker-";
/// The ending of the file that a worker holds locked for as long as it serves.
const LOCK: &str = "lock";

/// How often the lock is tried; there is no event for its release.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The place of the daemon for one Docker directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Station {
    run_dir: RunDir,
    id: String,
}

/// Lock of the serving worker; the kernel releases it when the worker dies.
#[derive(Debug)]
pub struct Duty(#[expect(dead_code, reason = "held for its lock")] FileLock);

impl Station {
    /// Returns the directory for the Docker whose directory is `data_root`.
    pub fn of(run_dir: &RunDir, data_root: &Path) -> Self {
        Self {
            run_dir: run_dir.clone(),
            id: format!("{PREFIX}{}", RunDir::id_of(data_root)),
        }
    }

    /// Returns all directories that workers have used in the run directory.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn all(run_dir: &RunDir) -> anyhow::Result<Vec<Self>> {
        let dir = run_dir.path();
        let reading = || format!("reading {}", dir.display());
        let entries = std::fs::read_dir(dir).with_context(reading)?;
        let names = entries.flatten().map(|entry| entry.file_name());
        let ids = names.filter_map(|name| {
            let id = name.to_str()?.strip_suffix(LOCK)?.strip_suffix('.')?;
            id.starts_with(PREFIX).then(|| id.to_owned())
        });
        let station = |id| Self {
            run_dir: run_dir.clone(),
            id,
        };
        Ok(ids.map(station).collect())
    }

    fn file(&self, ending: &str) -> PathBuf {
        self.run_dir.path().join(format!("{}.{ending}", self.id))
    }

    /// Returns the run directory.
    pub const fn run_dir(&self) -> &RunDir {
        &self.run_dir
    }

    /// Returns where the worker listens.
    pub fn socket(&self) -> PathBuf {
        self.file("sock")
    }

    /// Returns the path of the log of a daemon in the background.
    pub fn log(&self) -> PathBuf {
        self.file("log")
    }

    /// Returns where it is kept which images are wanted.
    pub fn wanted(&self) -> PathBuf {
        self.file("wanted")
    }

    /// Returns what the mount table shows as the source of its mounts.
    pub fn label(&self) -> String {
        self.id.clone()
    }

    /// Takes the lock to serve, or returns `None` if another process holds it.
    ///
    /// # Errors
    /// If the run directory cannot be used.
    pub fn take_duty(&self) -> anyhow::Result<Option<Duty>> {
        self.await_duty(Duration::ZERO)
    }

    /// Waits for the lock to serve; `None` if another process still holds it after `patience`.
    /// A process that only looks for dead mounts holds it for a moment.
    ///
    /// # Errors
    /// If the run directory cannot be used.
    pub fn await_duty(&self, patience: Duration) -> anyhow::Result<Option<Duty>> {
        let path = self.file(LOCK);
        let locking = || format!("locking {}", path.display());
        let file = private::open_or_create(&path).with_context(locking)?;
        let lock = FileLock::unless(file, patience, || false).with_context(locking)?;
        Ok(lock.map(Duty))
    }

    /// Unmounts the mounts that are not served, as the lock proves, and returns their
    /// number.
    ///
    /// # Errors
    /// If the mount table cannot be read, or the system refuses to unmount.
    pub fn clear_dead(&self, _nobody_serves: &Duty) -> anyhow::Result<usize> {
        let dead = self.unserved()?;
        for mountpoint in &dead {
            // What lies over it, such as a recorder, is not ours; the recorder clears what it finds.
            if top_at(mountpoint)?.is_some_and(|top| top.is_ours(&self.label())) {
                clear(mountpoint)
                    .with_context(|| format!("unmounting {}", mountpoint.display()))?;
            }
        }
        Ok(dead.len())
    }

    /// Returns the mount points that no process serves.
    ///
    /// # Errors
    /// If the mount table cannot be read.
    pub fn dead(&self) -> anyhow::Result<Vec<PathBuf>> {
        match self.take_duty()? {
            Some(_nobody_serves) => self.unserved(),
            None => Ok(Vec::new()),
        }
    }

    /// Returns the mount points of its mounts, dead or alive.
    ///
    /// # Errors
    /// If the mount table cannot be read.
    pub fn mounts(&self) -> anyhow::Result<Vec<PathBuf>> {
        labelled(MOUNT_KIND, &self.label())
    }

    /// Returns where its mounts lie that neither the node serves nor, as the duty tells, a worker.
    fn unserved(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut mounts = self.mounts()?;
        if !mounts.is_empty() {
            let living = living_mounts(&self.run_dir)?;
            mounts.retain(|mountpoint| !living.contains(mountpoint));
        }
        Ok(mounts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_the_duty_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::open(dir.path()).unwrap();
        let station = Station::of(&run_dir, Path::new("/var/lib/docker"));
        assert_eq!(Station::all(&run_dir).unwrap(), []);
        let duty = station.take_duty().unwrap();
        assert!(duty.is_some() && station.take_duty().unwrap().is_none());
        assert_eq!(Station::all(&run_dir).unwrap().len(), 1);
        assert_ne!(station, Station::of(&run_dir, Path::new("/srv/docker")));
        drop(duty);
        assert!(station.take_duty().unwrap().is_some());
    }
}
