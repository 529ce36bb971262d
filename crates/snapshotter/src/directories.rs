//! The directories of snapshots: `<base>/snapshots/<number>/{fs,work}`.
//!
//! A directory is made before its record and deleted after it, and numbers are never used twice.
//! So a crash leaves at worst a directory without a record, and that is garbage: nothing is ever
//! half a snapshot.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use crate::error::{Result, SnapshotError};
use crate::snapshot::{Kind, SnapshotId};

/// The records of all snapshots, in the root.
pub(crate) const CATALOG: &str = "metadata.redb";
/// The root of every image is what its bottom layer says, until it says something: then 0755, as
/// containerd's own snapshotters have it.
const FS_MODE: u32 = 0o755;
/// Users need not list what overlayfs keeps in there.
const WORK_MODE: u32 = 0o711;

/// The directories under one base: the root, or a tier.
#[derive(Clone, Debug)]
pub(crate) struct Directories {
    base: PathBuf,
}

impl Directories {
    /// Creates `<base>/snapshots` if it is missing.
    pub(crate) fn open(base: &Path) -> Result<Self> {
        keep(&base.join("snapshots"))?;
        Ok(Self::at(base))
    }

    /// Fails if there are snapshots without records: directories without a record are deleted, and these
    /// belong to another snapshotter.
    pub(crate) fn check_records(&self) -> Result<()> {
        let has_records = self.base.join(CATALOG).exists();
        if has_records || self.list()?.is_empty() {
            return Ok(());
        }
        Err(SnapshotError::NotOurs {
            root: self.base.clone(),
        })
    }

    /// The same, of a base that need not exist any more.
    pub(crate) fn at(base: &Path) -> Self {
        Self {
            base: base.to_owned(),
        }
    }

    pub(crate) fn base(&self) -> &Path {
        &self.base
    }

    /// The directory that holds both.
    pub(crate) fn of(&self, id: SnapshotId) -> PathBuf {
        self.base.join("snapshots").join(id.to_string())
    }

    /// What the snapshot holds; an overlay's upper directory, or one of its lower ones.
    pub(crate) fn fs(&self, id: SnapshotId) -> PathBuf {
        self.of(id).join("fs")
    }

    /// What overlayfs needs beside an upper directory.
    pub(crate) fn work(&self, id: SnapshotId) -> PathBuf {
        self.of(id).join("work")
    }

    /// Creates the directories of a new snapshot. `wanted` is the owner of its root, if not this process's user: the
    /// root of an overlay is the upper directory, and that of an image may belong to another user.
    pub(crate) fn create(
        &self,
        id: SnapshotId,
        kind: Kind,
        wanted: Option<(u32, u32)>,
    ) -> Result<()> {
        make(&self.of(id), 0o700)?;
        let fs = self.fs(id);
        make(&fs, FS_MODE)?;
        if kind == Kind::Active {
            make(&self.work(id), WORK_MODE)?;
        }
        if let Some(wanted) = wanted.filter(|wanted| owner(&fs).ok() != Some(*wanted)) {
            let changed = chown(&fs, Some(wanted.0), Some(wanted.1));
            changed.map_err(SnapshotError::io("change the owner of", &fs))?;
        }
        Ok(())
    }

    /// Deletes the directories of a snapshot that has no record here.
    pub(crate) fn delete(&self, id: SnapshotId) -> Result<()> {
        let dir = self.of(id);
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(SnapshotError::io("delete", &dir)(error))
            }
            _ => Ok(()),
        }
    }

    /// Returns the numbers that have a directory. Entries whose name is not a number are
    /// ignored.
    pub(crate) fn list(&self) -> Result<Vec<SnapshotId>> {
        let dir = self.base.join("snapshots");
        let mut found = Vec::new();
        for entry in fs::read_dir(&dir).map_err(SnapshotError::io("list", &dir))? {
            let name = entry.map_err(SnapshotError::io("list", &dir))?.file_name();
            match name.to_str().map(str::parse) {
                Some(Ok(id)) => found.push(SnapshotId(id)),
                _ => log::warn!("{}: {name:?} is not a snapshot; left alone", dir.display()),
            }
        }
        Ok(found)
    }
}

/// Creates a directory that only root may enter, and restricts one that others may: it contains set-user-id
/// programs of images, and files that only root may read.
pub(crate) fn keep(dir: &Path) -> Result<()> {
    rawio::private::keep(dir).map_err(SnapshotError::io("keep for its owner", dir))
}

/// Makes a directory of exactly `mode`, whatever the process's umask says.
fn make(dir: &Path, mode: u32) -> Result<()> {
    let made = DirBuilder::new().mode(mode).create(dir);
    made.map_err(SnapshotError::io("make", dir))?;
    let set = fs::set_permissions(dir, Permissions::from_mode(mode));
    set.map_err(SnapshotError::io("set the permissions of", dir))
}

pub(crate) fn owner(dir: &Path) -> Result<(u32, u32)> {
    let of = fs::metadata(dir).map_err(SnapshotError::io("look at", dir))?;
    Ok((of.uid(), of.gid()))
}

/// Makes what overlayfs needs beside an upper directory, in the directory of a snapshot-to-be.
pub(crate) fn make_work(dir: &Path) -> Result<()> {
    let work = dir.join("work");
    match make(&work, WORK_MODE) {
        // Whoever tried before us came no farther.
        Err(SnapshotError::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
            Ok(())
        }
        made => made,
    }
}

/// Returns whether something is mounted at `dir` itself.
pub(crate) fn is_mount_point(dir: &Path) -> Result<bool> {
    let dir = fs::canonicalize(dir).map_err(SnapshotError::io("resolve", dir))?;
    Ok(mount_points()?.contains(&dir))
}

/// Returns all mount points. Deleting a directory above one would delete
/// the content of the mount.
pub(crate) fn mount_points() -> Result<Vec<PathBuf>> {
    let table = Path::new("/proc/self/mountinfo");
    let text = fs::read(table).map_err(SnapshotError::io("read", table))?;
    let lines = text.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(mount_point).collect())
}

/// Returns the fifth field of a line of mountinfo, without its octal escapes.
fn mount_point(line: &[u8]) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt as _;
    let field = line.split(|byte| *byte == b' ').nth(4)?;
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let escaped = (*first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        path.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[3..] } else { tail };
    }
    Some(PathBuf::from(std::ffi::OsString::from_vec(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_mount_points_with_blanks() {
        let line = br"36 35 98:0 / /a\040b/c rw - ext4 /dev/x rw";
        assert_eq!(mount_point(line), Some(PathBuf::from("/a b/c")));
        assert_eq!(mount_point(b""), None);
    }

    #[test]
    fn finds_mount_points() {
        assert!(is_mount_point(Path::new("/proc")).unwrap());
        assert!(!is_mount_point(Path::new("/proc/self")).unwrap());
    }

    #[test]
    fn lists_numbers_only() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Directories::open(dir.path()).unwrap();
        dirs.create(SnapshotId(12), Kind::Active, None).unwrap();
        fs::create_dir(dir.path().join("snapshots/lost+found")).unwrap();
        assert_eq!(dirs.list().unwrap(), [SnapshotId(12)]);
        dirs.delete(SnapshotId(12)).unwrap();
        dirs.delete(SnapshotId(12)).unwrap();
        assert_eq!(dirs.list().unwrap(), []);
    }

    #[test]
    fn snapshots_without_records_are_somebody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Directories::open(dir.path()).unwrap();
        dirs.check_records().unwrap();
        dirs.create(SnapshotId(1), Kind::Active, None).unwrap();
        let refused = dirs.check_records().unwrap_err();
        assert!(matches!(refused, SnapshotError::NotOurs { .. }));
        fs::write(dir.path().join(CATALOG), "").unwrap();
        dirs.check_records().unwrap();
    }
}
