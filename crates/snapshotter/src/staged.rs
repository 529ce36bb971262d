//! Layers that another process unpacks, in our directories: `<base>/staged/<name>/fs`.
//!
//! A program that pulls an image with several layers in parallel unpacks each as it arrives, before the layers
//! below are complete. When these are, it prepares a snapshot, and names the staged directory in a label
//! ([`STAGED_LABEL`]): that directory becomes the snapshot's, by a rename. Until then a lock marks it as in
//! use; a directory without a lock is garbage.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg, OFlag};
use rawio::file_lock::is_still;

use crate::directories::{Directories, keep, make_work, mount_points};
use crate::error::{Result, SnapshotError};
use crate::snapshot::Labels;

/// The label of a snapshot whose layer is unpacked already: the name of a staged directory.
pub const STAGED_LABEL: &str = "containerd.io/snapshot/yolofs.staged";

/// Letters of a name: as many bits as nobody guesses, and nobody draws twice.
const NAME_LEN: usize = 32;
/// Attempts to make a directory that nobody takes for garbage before it is locked.
const TRIES: usize = 16;
/// What containerd's own snapshotters give the root of an image, until a layer says otherwise.
const FS_MODE: u32 = 0o755;

/// The name of a staged directory: 32 hexadecimal digits, so that it leads nowhere else.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StagedName(String);

impl StagedName {
    /// Returns the name that a text is.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (text.len() == NAME_LEN && text.bytes().all(is_hex)).then(|| Self(text.to_owned()))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn random() -> io::Result<Self> {
        let mut bytes = [0; NAME_LEN / 2];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(bytes.map(|byte| format!("{byte:02x}")).concat()))
    }

    /// Returns which staged directory the labels of a new snapshot name; an error if the name is invalid.
    pub(crate) fn of(labels: &Labels) -> Result<Option<Self>> {
        let named = labels.get(STAGED_LABEL);
        let name = |text: &String| Self::parse(text).ok_or_else(|| not_staged(text));
        named.map(name).transpose()
    }
}

/// A directory that a layer is unpacked into. It goes when this is dropped, unless a snapshot has it.
#[derive(Debug)]
pub struct Staged {
    dir: PathBuf,
    name: StagedName,
    /// Dropping it leaves the directory to be deleted.
    _held: Flock<File>,
}

impl Staged {
    /// Creates a directory in `staging`, which the snapshotter returned.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn make(staging: &Path) -> Result<Self> {
        for _ in 0..TRIES {
            let name = StagedName::random().map_err(SnapshotError::io("name", staging))?;
            let dir = staging.join(name.as_str());
            let made = DirBuilder::new().mode(0o700).create(&dir);
            made.map_err(SnapshotError::io("make", &dir))?;
            // Who cleans up at this moment may be faster: then it is gone, or about to be.
            let held = match lock(&dir) {
                Ok(Some(held)) if is_still(&held, fs::symlink_metadata(&dir)) => held,
                Err(error) if !error.is_not_found() => return Err(error),
                _ => continue,
            };
            let staged = Self {
                dir,
                name,
                _held: held,
            };
            let fs = staged.fs();
            DirBuilder::new()
                .mode(FS_MODE)
                .create(&fs)
                .and_then(|()| fs::set_permissions(&fs, Permissions::from_mode(FS_MODE)))
                .map_err(SnapshotError::io("make", &fs))?;
            return Ok(staged);
        }
        let busy = io::Error::from(ErrorKind::ResourceBusy);
        Err(SnapshotError::io("make a directory in", staging)(busy))
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &StagedName {
        &self.name
    }

    /// Returns where the layer goes.
    #[must_use]
    pub fn fs(&self) -> PathBuf {
        self.dir.join("fs")
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // It is still locked. Of one that a snapshot has there is nothing by this name.
        if let Err(error) = fs::remove_dir_all(&self.dir)
            && error.kind() != ErrorKind::NotFound
        {
            log::warn!("cannot delete {}: {error}", self.dir.display());
        }
    }
}

/// The parent directory of staged directories.
pub(crate) fn staging(base: &Directories) -> PathBuf {
    base.base().join("staged")
}

/// Makes the place for staged directories.
pub(crate) fn open(base: &Directories) -> Result<()> {
    keep(&staging(base))
}

/// Returns the path of a staged directory, prepared to become a snapshot's; `None` if it is not here.
///
/// # Errors
/// If it is not locked, or is invalid.
pub(crate) fn find(base: &Directories, name: &StagedName) -> Result<Option<PathBuf>> {
    let dir = staging(base).join(name.as_str());
    let is_dir = |path: &Path| fs::symlink_metadata(path).is_ok_and(|of| of.is_dir());
    if !is_dir(&dir) {
        return Ok(None);
    }
    if !is_dir(&dir.join("fs")) || lock(&dir)?.is_some() {
        return Err(not_staged(name.as_str()));
    }
    make_work(&dir)?;
    Ok(Some(dir))
}

pub(crate) fn not_staged(name: &str) -> SnapshotError {
    SnapshotError::NotStaged {
        name: name.chars().take(2 * NAME_LEN).collect(),
    }
}

/// Deletes directories without a lock, and returns the names that remain. Entries with another kind of
/// name are ignored.
pub(crate) fn sweep(base: &Directories) -> Result<Vec<StagedName>> {
    let staging = staging(base);
    let Ok(entries) = fs::read_dir(&staging) else {
        return Ok(Vec::new());
    };
    let mut held = Vec::new();
    for entry in entries {
        let file_name = entry
            .map_err(SnapshotError::io("list", &staging))?
            .file_name();
        let Some(name) = file_name.to_str().and_then(StagedName::parse) else {
            log::warn!(
                "{}: {file_name:?} is not staged; left alone",
                staging.display()
            );
            continue;
        };
        let dir = staging.join(name.as_str());
        match lock(&dir) {
            Ok(None) => held.push(name),
            Ok(Some(_locked)) => delete(&dir)?,
            // It was adopted, or deleted by who had it.
            Err(error) if error.is_not_found() => {}
            Err(error) => log::warn!("{error}; it is tried again later"),
        }
    }
    Ok(held)
}

fn delete(dir: &Path) -> Result<()> {
    if mount_points()?.iter().any(|point| point.starts_with(dir)) {
        let dir = dir.display();
        log::warn!("{dir} has no owner, but something is mounted in it; left alone");
        return Ok(());
    }
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            log::warn!(
                "cannot delete {}: {error}; it is tried again later",
                dir.display()
            );
        }
        _ => log::debug!("{} was nobody's", dir.display()),
    }
    Ok(())
}

/// Takes the lock of a staged directory; `None` if somebody has it.
fn lock(dir: &Path) -> Result<Option<Flock<File>>> {
    let failed = |error: io::Error| SnapshotError::io("lock", dir)(error);
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(dir);
    match Flock::lock(opened.map_err(failed)?, FlockArg::LockExclusiveNonblock) {
        Ok(held) => Ok(Some(held)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, error)) => Err(failed(error.into())),
    }
}
