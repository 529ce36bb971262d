//! Temporary directories that belong to one process: `<parent>/<prefix><number>/`.
//!
//! The parent may be writable by all, such as `/var/tmp`, so names are random, and a directory with
//! such a name is used only if it is ours alone. A process holds a lock on its directory while it
//! lives, so that a later one can tell directories of dead processes from those in use, in whatever
//! PID namespace these are, and take them over.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use nix::fcntl::ResolveFlag;
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::geteuid;
use rawio::file_lock;
use rawio::trusted::{self, open_at};

use crate::mount_table::{clear_if_dead, mounts_below};
use crate::names::{is_number, random_name};

/// Who else may write to a directory.
const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITE: u32 = 0o020;

/// A directory of this process, or one of a dead process that it took over. Dropping this does not remove it.
#[derive(Debug)]
pub struct OwnDir {
    path: PathBuf,
    /// The directory, open and locked.
    dir: File,
}

impl OwnDir {
    /// Makes one in `parent`, which must exist.
    ///
    /// # Errors
    /// If it cannot be made, or another user may replace it.
    pub fn make(parent: &Path, prefix: &str) -> anyhow::Result<Self> {
        let (parent, opened) = open_parent(parent)?;
        loop {
            let name = random_name(prefix)?;
            let path = parent.join(&name);
            let making = || format!("making {}", path.display());
            mkdirat(&opened, name.as_str(), Mode::S_IRWXU).with_context(making)?;
            // Who takes over what the dead left may have taken it for one of theirs.
            let Some(dir) = open_own(&opened, &name).with_context(making)? else {
                continue;
            };
            if dir.try_lock().is_ok() && is_there(&opened, &name, &dir) {
                return Ok(Self { path, dir });
            }
        }
    }

    /// Takes over those in `parent` whose processes are dead. One that belongs to or is writable by
    /// another user, or is a link, only has a similar name, and is ignored.
    ///
    /// # Errors
    /// If the parent cannot be read, or another user may replace what is in it.
    pub fn of_the_dead(parent: &Path, prefix: &str) -> anyhow::Result<Vec<Self>> {
        let (parent, opened) = open_parent(parent)?;
        let reading = || format!("reading {}", parent.display());
        let mut found = Vec::new();
        for entry in fs::read_dir(&parent).with_context(reading)? {
            let name = entry.with_context(reading)?.file_name();
            let Some(name) = name.to_str().filter(|name| is_named(name, prefix)) else {
                continue;
            };
            let path = parent.join(name);
            let Some(dir) = open_own(&opened, name).ok().flatten() else {
                log::debug!("{} is not ours", path.display());
                continue;
            };
            match dir.try_lock() {
                Ok(()) if is_there(&opened, name, &dir) => found.push(Self { path, dir }),
                Ok(()) | Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => {
                    log::warn!("cannot lock {}: {error}", path.display());
                }
            }
        }
        Ok(found)
    }

    /// Removes the directories of dead processes in `parent`. One that cannot be removed is logged, and
    /// the next process tries again.
    pub fn sweep(parent: &Path, prefix: &str) {
        let dead = match Self::of_the_dead(parent, prefix) {
            Ok(dead) => dead,
            Err(error) => return log::warn!("cannot clean up after dead processes: {error:#}"),
        };
        for dir in dead {
            let path = dir.path.clone();
            match dir.remove() {
                Ok(()) => log::info!("removed {}, left by a dead process", path.display()),
                Err(error) => log::warn!("{error:#}"),
            }
        }
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a directory in it, whose parent must exist, and returns its path. All users can read it
    /// who can reach it, as any directory of a container.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn make_dir(&self, name: &Path) -> anyhow::Result<PathBuf> {
        const PLAIN: Mode = Mode::from_bits_truncate(0o755);
        let path = self.path.join(name);
        let inside = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
        let made = mkdirat(&self.dir, name, PLAIN)
            .map_err(io::Error::from)
            .and_then(|()| open_at(&self.dir, name, inside))
            .and_then(|made| Ok(fchmod(made, PLAIN)?));
        made.with_context(|| format!("making {}", path.display()))?;
        Ok(path)
    }

    /// Removes it and all that is in it.
    ///
    /// # Errors
    /// If a mount in it is being served, or it cannot be removed.
    pub fn remove(self) -> anyhow::Result<()> {
        let path = &self.path;
        for mount in mounts_below(path)? {
            let is_clear = clear_if_dead(&mount)?;
            ensure!(is_clear, "{} is mounted: left alone", mount.display());
        }
        // Without following links, whatever is in it.
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("removing {}", path.display()))
            }
            _ => Ok(()),
        }
    }
}

/// Returns whether a name is one that [`OwnDir::make`] gives.
fn is_named(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(is_number)
}

/// Opens the directory that others are made in, which no other user may replace.
fn open_parent(parent: &Path) -> anyhow::Result<(PathBuf, OwnedFd)> {
    trusted::open_dir(parent).with_context(|| format!("opening {}", parent.display()))
}

/// Opens a directory by its name in another; `None` if it is not there any more.
fn open_own(parent: &OwnedFd, name: &str) -> anyhow::Result<Option<File>> {
    let inside = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_XDEV;
    let dir = match open_at(parent, Path::new(name), inside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        dir => File::from(dir?),
    };
    let of = dir.metadata()?;
    let is_ours = of.uid() == geteuid().as_raw() && of.mode() & (OTHERS_WRITE | GROUP_WRITE) == 0;
    ensure!(is_ours, "it belongs to another user");
    Ok(Some(dir))
}

fn is_there(parent: &OwnedFd, name: &str, dir: &File) -> bool {
    let named = open_own(parent, name).ok().flatten();
    named.is_some_and(|named| file_lock::is_still(dir, named.metadata()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    const PREFIX: &str = "some-";

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn it_is_ours_alone_and_goes_when_its_process_is_dead() {
        let dir = tempfile::tempdir().unwrap();
        chmod(dir.path(), 0o1777);
        let (alive, dead) = (
            OwnDir::make(dir.path(), PREFIX).unwrap(),
            OwnDir::make(dir.path(), PREFIX).unwrap(),
        );
        assert_eq!(mode(alive.path()), 0o700);
        let layers = alive.make_dir(Path::new("layers")).unwrap();
        let layer = alive.make_dir(Path::new("layers/0")).unwrap();
        assert_eq!((mode(&layer), layer.parent()), (0o755, Some(&*layers)));
        assert!(alive.make_dir(Path::new("../out")).is_err());
        fs::write(dead.path().join("file"), "x").unwrap();
        let gone = dead.path().to_owned();
        drop(dead); // and so is its lock
        OwnDir::sweep(dir.path(), PREFIX);
        assert!(alive.path().is_dir() && !gone.exists());
        let path = alive.path().to_owned();
        alive.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn what_only_has_such_a_name_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = dir.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("passwd"), "root").unwrap();
        let number = "0123456789abcdef".repeat(2);
        symlink(&elsewhere, dir.path().join(format!("{PREFIX}{number}"))).unwrap();
        let shared = dir.path().join(format!("{PREFIX}{}", "1".repeat(32)));
        fs::create_dir(&shared).unwrap();
        chmod(&shared, 0o777);
        fs::create_dir(dir.path().join(format!("{PREFIX}notes"))).unwrap();
        let dead = OwnDir::of_the_dead(dir.path(), PREFIX).unwrap();
        assert!(dead.is_empty(), "{dead:?}");
        OwnDir::sweep(dir.path(), PREFIX);
        assert!(elsewhere.join("passwd").exists() && shared.exists());
    }

    #[test]
    fn nothing_is_made_where_others_may_exchange_it() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o777, 0o757] {
            chmod(dir.path(), mode);
            let why = format!("{:#}", OwnDir::make(dir.path(), PREFIX).unwrap_err());
            assert!(why.contains("others may rename"), "{why}");
        }
        // Above it, too.
        let below = dir.path().join("below");
        fs::create_dir(&below).unwrap();
        assert!(OwnDir::make(&below, PREFIX).is_err());
        chmod(dir.path(), 0o700);
        assert!(OwnDir::make(&below, PREFIX).is_ok());
    }
}
