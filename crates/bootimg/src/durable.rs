//! Files that appear whole or not at all: write to a temporary file, fsync, rename, fsync of the
//! directory. What can be made again may be made durable [later](Durability::Later): the file is whole or not there
//! for all processes, but may be in parts after a power cut.
//!
//! Every change to a directory or a file of ours goes through here, one [`Steps::take`] each, so
//! that tests can stop at step *n*, for all *n*, as a kill or a power cut would, or fail it as a
//! full disk would.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

/// What happens when the steps of a test are used up.
#[cfg_attr(not(test), expect(dead_code, reason = "only tests run out of steps"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Nothing more is done, not even cleaning up: the process was killed.
    Killed,
    /// That step fails as on a full disk, and those after it work.
    DiskFull,
}

/// Counts the changes that are made to the disk. By default there is no end to them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steps {
    end: Option<(End, Arc<AtomicU64>)>,
    /// Files that were written and not synced, under their present names; kept only if there is
    /// an end.
    unsynced: Arc<Mutex<Vec<PathBuf>>>,
    durability: Durability,
}

/// When changes are made durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Each before the next one.
    #[default]
    Each,
    /// When the kernel writes them out.
    Later,
}

impl Steps {
    /// Returns the same steps, with this durability.
    pub(crate) fn with(&self, durability: Durability) -> Self {
        Self {
            durability,
            ..self.clone()
        }
    }

    /// Returns steps that come to an `end` after `count` of them.
    #[cfg(test)]
    pub(crate) fn ending(end: End, count: u64) -> Self {
        Self {
            end: Some((end, Arc::new(AtomicU64::new(count)))),
            unsynced: Arc::default(),
            durability: Durability::Each,
        }
    }

    /// Returns whether the end was reached.
    #[cfg(test)]
    pub(crate) fn ended(&self) -> bool {
        let past = |left: u64| left == 0 || left > u64::MAX / 2;
        self.end
            .as_ref()
            .is_some_and(|(_, left)| past(left.load(Relaxed)))
    }

    /// Returns the files whose content is not durable.
    #[cfg(test)]
    pub(crate) fn unsynced(&self) -> std::collections::BTreeSet<PathBuf> {
        self.unsynced.lock().iter().cloned().collect()
    }

    /// Does what a power cut does: what was not made durable is lost, wholly or in part.
    #[cfg(test)]
    pub(crate) fn cut_power(&self) {
        for path in self.unsynced.lock().drain(..) {
            if let Ok(file) = File::options().write(true).open(&path) {
                let half = file.metadata().map_or(0, |meta| meta.len() / 2);
                file.set_len(half).unwrap();
            }
        }
    }

    /// Notes that a file has content that is not durable.
    fn written(&self, path: &Path) {
        if self.end.is_some() {
            self.unsynced.lock().push(path.to_owned());
        }
    }

    /// Makes the content of a file durable.
    fn sync(&self, file: &File, path: &Path) -> io::Result<()> {
        if self.durability == Durability::Later {
            return Ok(());
        }
        self.take()?;
        file.sync_all()?;
        self.unsynced.lock().retain(|unsynced| unsynced != path);
        Ok(())
    }

    fn take(&self) -> io::Result<()> {
        let Some((end, left)) = &self.end else {
            return Ok(());
        };
        match end {
            End::Killed => left
                .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1))
                .map(|_| ())
                .map_err(|_| io::ErrorKind::Interrupted.into()),
            // It wraps around after the one that fails.
            End::DiskFull if left.fetch_sub(1, Relaxed) == 0 => {
                Err(io::ErrorKind::StorageFull.into())
            }
            End::DiskFull => Ok(()),
        }
    }

    fn killed(&self) -> bool {
        matches!(&self.end, Some((End::Killed, left)) if left.load(Relaxed) == 0)
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.take()?;
        fs::rename(from, to)?;
        for path in self.unsynced.lock().iter_mut().filter(|path| *path == from) {
            to.clone_into(path);
        }
        Ok(())
    }

    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        self.take()?;
        fs::remove_file(path)
    }

    pub(crate) fn symlink(&self, target: &Path, path: &Path) -> io::Result<()> {
        self.take()?;
        std::os::unix::fs::symlink(target, path)
    }

    /// Makes the names in a directory durable.
    pub(crate) fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        if self.durability == Durability::Later {
            return Ok(());
        }
        self.take()?;
        File::open(dir)?.sync_all()
    }
}

/// A file that is removed again unless it is [kept](Self::keep).
#[derive(Debug)]
pub(crate) struct TempFile<'a> {
    file: File,
    path: PathBuf,
    steps: &'a Steps,
    kept: bool,
}

impl<'a> TempFile<'a> {
    /// Creates a temporary file beside `path`, or in `dir`, for those who may read that directory's
    /// files: it holds content of files that not everybody may read.
    pub(crate) fn create(path: &Path, dir: Option<&Path>, steps: &'a Steps) -> io::Result<Self> {
        // Two writers of one process need two names, and two processes as well.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let dir = dir.unwrap_or(parent(path));
        steps.take()?;
        loop {
            let serial = NEXT.fetch_add(1, Relaxed);
            let mut temp = name.to_owned();
            temp.push(format!(".{}.{serial}.tmp", std::process::id()));
            let path = dir.join(temp);
            match rawio::private::create_new(&path) {
                Ok(file) => {
                    return Ok(Self {
                        file,
                        path,
                        steps,
                        kept: false,
                    });
                }
                // Left over from a process that had our number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Appends.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.steps.take()?;
        self.steps.written(&self.path);
        self.file.write_all(bytes)
    }

    /// Overwrites from `offset` on.
    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.steps.take()?;
        self.steps.written(&self.path);
        self.file.write_all_at(bytes, offset)
    }

    /// Gives the file its final name, and makes it durable there if that is to be now.
    pub(crate) fn keep(mut self, path: &Path) -> io::Result<()> {
        self.steps.sync(&self.file, &self.path)?;
        self.steps.rename(&self.path, path)?;
        self.kept = true;
        self.steps.sync_dir(parent(path))
    }
}

impl Drop for TempFile<'_> {
    fn drop(&mut self) {
        if self.kept || self.steps.killed() {
            return;
        }
        if let Err(error) = fs::remove_file(&self.path) {
            log::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Returns the directory that a path is in.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}
