//! The run directory: what is mounted, by which process, and where that process listens.
//!
//! `<run-dir>/<id>.json` describes a mount, `<run-dir>/<id>.sock` is its daemon's control socket and
//! `<run-dir>/<id>.log` its log; the id is derived from the mount point. A description without a living daemon is what
//! a crash leaves behind, and what `yolofs umount` clears.

use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use blocks::ContentId;
use nix::unistd::geteuid;
use rawio::file_lock::{FileLock, Purpose};
use serde::{Deserialize, Serialize};

use crate::mount_table::{MOUNT_KIND, kind_at};

/// The variable that names the run directory.
pub const RUN_DIR_ENV: &str = "YOLOFS_RUN_DIR";

/// The default run directory.
pub const DEFAULT_RUN_DIR: &str = "/run/yolofs";

/// How long to wait for another process that mounts or unmounts. Its steps under the lock take milliseconds; one
/// that clears a dead mount or is short of memory may take seconds.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);
const CHANGES: Purpose = Purpose {
    holder: "mounts or unmounts (`yolofs mount`, `umount`, `docker attach` or the node)",
    advice: "try again; if it hangs, end that process",
};

/// The record of one mount, written by its daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountRecord {
    /// The name of its files in the run directory.
    pub id: String,
    /// The process id of the daemon.
    pub pid: u32,
    /// Start time of the daemon in clock ticks since boot: distinguishes it from a later process with
    /// the same process id.
    pub pid_started: u64,
    /// The source.
    pub source: PathBuf,
    /// The mount point.
    pub mountpoint: PathBuf,
    /// The id of the boot image in use, if any.
    pub boot_image: Option<String>,
}

/// The run directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir(PathBuf);

/// The lock of the records in the run directory, until it is dropped.
#[derive(Debug)]
pub struct RunDirLock(#[expect(dead_code, reason = "held for its lock")] FileLock);

impl RunDir {
    /// Opens the directory, and creates it if it is missing.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn open(dir: &Path) -> anyhow::Result<Self> {
        // Nobody else has anything to look for there.
        let mut owners = fs::DirBuilder::new();
        owners.recursive(true).mode(0o700);
        owners.create(dir).with_context(|| {
            format!(
                "making the run directory {} (`run_dir` names another)",
                dir.display()
            )
        })?;
        let dir = dir
            .canonicalize()
            .with_context(|| format!("opening {}", dir.display()))?;
        check_ours(&dir)?;
        Ok(Self(dir))
    }

    /// Locks the run directory: waits until no other process is about to mount or to unmount. Two
    /// daemons that find a place free must not both take it.
    ///
    /// # Errors
    /// If another process still holds the lock after 30 s, or the system refuses it.
    pub fn lock(&self) -> anyhow::Result<RunDirLock> {
        self.lock_within(LOCK_PATIENCE)
    }

    fn lock_within(&self, patience: Duration) -> anyhow::Result<RunDirLock> {
        let doing = || format!("locking the run directory {}", self.0.display());
        let dir = fs::File::open(&self.0).with_context(doing)?;
        let lock = FileLock::of(dir, &self.0, patience, CHANGES).with_context(doing)?;
        Ok(RunDirLock(lock))
    }

    /// Returns the id of the mount at `mountpoint`, which must be absolute.
    #[must_use]
    pub fn id_of(mountpoint: &Path) -> String {
        ContentId::of(mountpoint.as_os_str().as_bytes()).short()
    }

    /// Returns the directory's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns where the daemon of a mount listens.
    #[must_use]
    pub fn socket(&self, id: &str) -> PathBuf {
        self.0.join(format!("{id}.sock"))
    }

    /// Returns the path of the log of a mount's daemon.
    #[must_use]
    pub fn log(&self, id: &str) -> PathBuf {
        self.0.join(format!("{id}.log"))
    }

    fn description(&self, id: &str) -> PathBuf {
        self.0.join(format!("{id}.json"))
    }

    /// Returns where the worker with this number listens.
    #[must_use]
    pub fn worker_socket(run_dir: &Path, pid: u32) -> PathBuf {
        run_dir.join("workers").join(format!("{pid}.sock"))
    }

    /// Writes the record of a mount atomically.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn write(&self, record: &MountRecord) -> anyhow::Result<()> {
        let path = self.description(&record.id);
        let aside = self
            .0
            .join(format!(".{}.{}", record.id, std::process::id()));
        let written = fs::File::create(&aside)
            .and_then(|mut file| file.write_all(&serde_json::to_vec_pretty(record)?))
            .and_then(|()| fs::rename(&aside, &path));
        written.with_context(|| format!("writing {}", path.display()))
    }

    /// Removes the record of a mount, unless it is gone already or another daemon has written its own
    /// since. The lock keeps a successor from writing between the check and the
    /// removal.
    pub fn remove(&self, record: &MountRecord, _lock: &RunDirLock) {
        let current = fs::read(self.description(&record.id)).ok();
        let current: Option<MountRecord> =
            current.and_then(|text| serde_json::from_slice(&text).ok());
        if current.as_ref() != Some(record) {
            return;
        }
        let id = &record.id;
        for path in [self.description(id), self.socket(id), self.log(id)] {
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                log::warn!("cannot remove {}: {error}", path.display());
            }
        }
    }

    /// Returns every described mount, by mount point. Files that are not descriptions are
    /// skipped with a warning.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn list(&self) -> anyhow::Result<Vec<MountRecord>> {
        let mut records = Vec::new();
        let dir = fs::read_dir(&self.0).with_context(|| format!("reading {}", self.0.display()))?;
        for entry in dir {
            let path = entry.context("reading the run directory")?.path();
            let hidden = path
                .file_name()
                .is_some_and(|name| name.as_bytes().starts_with(b"."));
            if hidden || path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let text = match fs::read(&path) {
                // Its daemon took it away since we read the directory.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                text => text,
            };
            let record = text
                .map_err(anyhow::Error::from)
                .and_then(|text| Ok(serde_json::from_slice::<MountRecord>(&text)?));
            match record {
                Ok(record) => records.push(record),
                Err(error) => log::warn!("{} does not describe a mount: {error:#}", path.display()),
            }
        }
        records.sort_by(|a, b| a.mountpoint.cmp(&b.mountpoint));
        Ok(records)
    }

    /// Returns the mount at `mountpoint`, if one is described.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn find(&self, mountpoint: &Path) -> anyhow::Result<Option<MountRecord>> {
        Ok(self
            .list()?
            .into_iter()
            .find(|record| record.mountpoint == mountpoint))
    }
}

/// Refuses a directory in which somebody else may put what we would believe: sockets, and descriptions.
fn check_ours(dir: &Path) -> anyhow::Result<()> {
    let of = fs::metadata(dir).with_context(|| format!("looking at {}", dir.display()))?;
    let is_ours = of.uid() == 0 || of.uid() == geteuid().as_raw();
    ensure!(
        is_ours && of.mode() & 0o002 == 0,
        "the run directory {} belongs to another user, or everybody can write to it: choose another (`run_dir`)",
        dir.display()
    );
    Ok(())
}

impl MountRecord {
    /// Returns whether the mount exists and its daemon serves it.
    ///
    /// # Errors
    /// If the list of mounts cannot be read.
    pub fn is_mounted(&self) -> anyhow::Result<bool> {
        let ours = kind_at(&self.mountpoint)?.as_deref() == Some(MOUNT_KIND);
        Ok(ours && self.is_alive())
    }

    /// Returns whether the daemon that wrote this record still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !has_ended(self.pid, self.pid_started)
    }
}

/// Returns whether the process of this number that started then has ended. One that must not be looked at has not:
/// to a confined process, the others of the machine are like that.
#[must_use]
pub fn has_ended(pid: u32, started: u64) -> bool {
    match process_start(pid) {
        Ok(now) => now != started,
        Err(error) => {
            let cause = error.downcast_ref::<std::io::Error>();
            cause.is_none_or(|cause| cause.kind() != std::io::ErrorKind::PermissionDenied)
        }
    }
}

/// Returns when a living process started, in clock ticks since boot: field 22 of
/// `/proc/PID/stat`.
///
/// # Errors
/// If there is no such process, or it is a zombie.
pub fn process_start(pid: u32) -> anyhow::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("looking for process {pid}"))?;
    // The second field is the command in parentheses, and may hold spaces and parentheses.
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split_whitespace()
        .collect();
    match (
        fields.first(),
        fields.get(19).and_then(|field| field.parse().ok()),
    ) {
        // Z and X (proc_pid_stat(5)): ended, and nobody has asked for the exit code yet.
        (Some(&("Z" | "X")), _) => bail!("process {pid} has ended"),
        (Some(_), Some(started)) => Ok(started),
        _ => bail!("/proc/{pid}/stat is malformed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(mountpoint: &str) -> MountRecord {
        MountRecord {
            id: RunDir::id_of(Path::new(mountpoint)),
            pid: std::process::id(),
            pid_started: process_start(std::process::id()).unwrap(),
            source: "/srv".into(),
            mountpoint: mountpoint.into(),
            boot_image: None,
        }
    }

    #[test]
    fn finds_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::open(&dir.path().join("new")).unwrap();
        let (a, b) = (record("/mnt/a"), record("/mnt/b"));
        run.write(&b).unwrap();
        run.write(&a).unwrap();
        fs::write(run.path().join("broken.json"), "{").unwrap();
        assert_eq!(run.list().unwrap(), [a.clone(), b.clone()]);
        assert_eq!(run.find(Path::new("/mnt/b")).unwrap(), Some(b.clone()));
        let mut successor = b.clone();
        successor.pid += 1;
        run.write(&successor).unwrap();
        let lock = run.lock().unwrap();
        run.remove(&b, &lock);
        assert_eq!(
            run.find(Path::new("/mnt/b")).unwrap(),
            Some(successor.clone())
        );
        // A socket with no description is a successor's that has only begun.
        let socket = run.socket(&successor.id);
        run.remove(&successor, &lock);
        fs::write(&socket, "").unwrap();
        run.remove(&successor, &lock);
        assert!(socket.exists());
        assert_eq!(run.list().unwrap(), [a]);
    }

    /// It was waited for without an end: a process that hung under the lock held up all others.
    #[test]
    fn a_lock_that_is_not_released_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::open(dir.path()).unwrap();
        let held = run.lock().unwrap();
        let error = run.lock_within(Duration::from_millis(10)).unwrap_err();
        let text = format!("{error:#}");
        let path = run.path().display().to_string();
        for part in ["mounts or unmounts", &path, "longer than 10ms", "try again"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        drop(held);
        run.lock_within(Duration::ZERO).unwrap();
    }

    #[test]
    fn knows_the_living_from_the_dead() {
        let mut record = record("/mnt");
        assert!(record.is_alive());
        record.pid_started += 1;
        assert!(!record.is_alive());
        record.pid = u32::MAX;
        assert!(!record.is_alive());
    }
}
