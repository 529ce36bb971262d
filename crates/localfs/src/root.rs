//! The opened source.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use blocks::SourceId;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, fstat};
use nix::sys::statvfs::{Statvfs, fstatvfs};
use rawio::mount::{DetachedMount, mount_id};

use crate::qcow2;
use crate::timed::while_it_moves;
use crate::{DiskFormat, LocalError};

/// The kind of a source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SourceKind {
    /// A directory with all that is in it.
    Tree,
    /// A disk image, with the images that it is based on.
    Disk {
        /// Its name in the directory that is served.
        name: OsString,
        /// Its format, by its first bytes.
        format: DiskFormat,
    },
}

/// An opened source: a directory tree, or a disk image.
#[derive(Debug)]
pub struct SourceRoot {
    dir: OwnedFd,
    path: PathBuf,
    kind: SourceKind,
    /// The files of a disk image's chain, sorted.
    files: Vec<Vec<u8>>,
    /// What was found at their beginnings, if they are a chain of qcow2.
    heads: Vec<Vec<u8>>,
    warnings: Vec<String>,
}

impl SourceRoot {
    /// How much of the beginning of an image is checked for names of other files.
    pub const HEAD: usize = qcow2::HEAD;

    /// Opens a directory, or a disk image in a regular file.
    ///
    /// A qcow2 image may be based on others. Those in the same directory are served with it;
    /// one with an absolute path is not, and is a warning: QEMU reads it outside of the mount. Any
    /// other place is an error, since QEMU would not find it from the mount.
    ///
    /// # Errors
    /// If it cannot be opened, is another kind of file, or is a chain of images that cannot be served.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LocalError> {
        let given = path.as_ref();
        let failed = |source| LocalError::Open {
            path: given.to_path_buf(),
            source,
        };
        let path = fs::canonicalize(given).map_err(failed)?;
        let kind = fs::symlink_metadata(&path).map_err(failed)?.file_type();
        if kind.is_dir() {
            return Ok(Self {
                dir: open_dir(&path).map_err(failed)?,
                path,
                kind: SourceKind::Tree,
                files: Vec::new(),
                heads: Vec::new(),
                warnings: Vec::new(),
            });
        }
        let (Some(parent), Some(name), true) = (path.parent(), path.file_name(), kind.is_file())
        else {
            let path = given.to_path_buf();
            return Err(LocalError::NotASource { path });
        };
        let dir = open_dir(parent).map_err(failed)?;
        let chain = qcow2::chain(&dir, name.as_bytes())?;
        let kind = SourceKind::Disk {
            name: name.to_os_string(),
            format: chain.format,
        };
        Ok(Self {
            dir,
            kind,
            files: chain.files,
            heads: chain.heads,
            warnings: chain.warnings,
            path,
        })
    }

    /// Does what [`open`](Self::open) does, but does not wait longer than `patience` for a source
    /// that does not respond.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`LocalError::NoAnswer`].
    pub fn open_within(path: impl AsRef<Path>, patience: Duration) -> Result<Self, LocalError> {
        let (path, asked) = (path.as_ref(), path.as_ref().to_path_buf());
        within(path, patience, move || Self::open(asked))
    }

    /// Does what [`open_plain`](Self::open_plain) does, as [`open_within`](Self::open_within).
    ///
    /// # Errors
    /// As there.
    pub fn open_plain_within(
        path: impl AsRef<Path>,
        patience: Duration,
    ) -> Result<Self, LocalError> {
        let (path, asked) = (path.as_ref(), path.as_ref().to_path_buf());
        within(path, patience, move || Self::open_plain(asked))
    }

    /// Opens a directory tree as [`open`](Self::open) does, but below whatever is mounted over its
    /// root: a directory that is served in place is a source as well.
    ///
    /// # Errors
    /// If it cannot be opened or is no directory; if it is mounted over and the process
    /// may not mount.
    pub fn open_plain(path: impl AsRef<Path>) -> Result<Self, LocalError> {
        let given = path.as_ref();
        let open = || {
            // Not asked of the directory itself: a mount whose daemon died answers nothing.
            let no_root = || io::Error::other("not a directory in another one");
            let parent = given.parent().ok_or_else(no_root)?.canonicalize()?;
            let name = given.file_name().ok_or_else(no_root)?;
            let around = open_dir(&parent)?;
            let dir = match open_in(&around, name) {
                Ok(dir) if mount_id(dir.as_fd())? == mount_id(around.as_fd())? => dir,
                // It lives on without the copy of the mount that it was opened in.
                _ => open_in(&DetachedMount::copy_of(around.as_fd())?, name)?,
            };
            Ok((parent.join(name), dir))
        };
        let (path, dir) = open().map_err(|source| LocalError::Open {
            path: given.to_path_buf(),
            source,
        })?;
        Ok(Self {
            dir,
            path,
            kind: SourceKind::Tree,
            files: Vec::new(),
            heads: Vec::new(),
            warnings: Vec::new(),
        })
    }

    /// Returns a source that was opened earlier, by this process or another: `dir` is its
    /// descriptor ([`AsFd`]), `label` its label.
    ///
    /// # Errors
    /// If the label is invalid, or the disk image cannot be served any more.
    pub fn resume(dir: OwnedFd, label: &[u8]) -> Result<Self, LocalError> {
        let not_one = || LocalError::NotASource {
            path: OsStr::from_bytes(label).into(),
        };
        let (prefix, path) = label
            .iter()
            .position(|byte| *byte == b':')
            .map(|colon| {
                (
                    &label[..=colon],
                    Path::new(OsStr::from_bytes(&label[colon + 1..])),
                )
            })
            .ok_or_else(not_one)?;
        let (kind, files, heads, warnings) = match prefix {
            b"dir:" => (SourceKind::Tree, Vec::new(), Vec::new(), Vec::new()),
            b"disk:" => {
                let name = path.file_name().ok_or_else(not_one)?.to_os_string();
                let chain = qcow2::chain(&dir, name.as_bytes())?;
                let format = chain.format;
                let kind = SourceKind::Disk { name, format };
                (kind, chain.files, chain.heads, chain.warnings)
            }
            _ => return Err(not_one()),
        };
        Ok(Self {
            dir,
            path: path.to_path_buf(),
            kind,
            files,
            heads,
            warnings,
        })
    }

    /// Does what [`resume`](Self::resume) does, as [`open_within`](Self::open_within).
    ///
    /// # Errors
    /// As there.
    pub fn resume_within(
        dir: OwnedFd,
        label: &[u8],
        patience: Duration,
    ) -> Result<Self, LocalError> {
        let (shown, label) = (Path::new(OsStr::from_bytes(label)), label.to_vec());
        within(shown, patience, move || Self::resume(dir, &label))
    }

    /// Returns the number of its directory's inode, as [`open_within`](Self::open_within).
    ///
    /// # Errors
    /// If it does not respond within `patience`.
    pub fn inode_within(&self, patience: Duration) -> Result<u64, LocalError> {
        let open = |source| LocalError::Open {
            path: self.path.clone(),
            source,
        };
        let (dir, failed) = (self.dir.try_clone().map_err(open)?, self.path.clone());
        within(&self.path, patience, move || {
            let stat = fstat(dir).map_err(|errno| LocalError::Open {
                path: failed,
                source: errno.into(),
            })?;
            Ok(stat.st_ino)
        })
    }

    /// Returns the label of a source of which only the descriptor and the canonical path are
    /// known. Nothing is looked up by that path: the source may be covered by its own mount.
    ///
    /// # Errors
    /// If the descriptor is that of another place.
    pub fn label_of(dir: BorrowedFd<'_>, path: &Path) -> Result<OsString, LocalError> {
        let link = format!("/proc/self/fd/{}", dir.as_raw_fd());
        let place = fs::read_link(link).map_err(|source| LocalError::Open {
            path: path.to_path_buf(),
            source,
        })?;
        let prefix = if place == path {
            "dir:"
        } else if path.parent() == Some(place.as_path()) {
            "disk:"
        } else {
            let path = path.to_path_buf();
            return Err(LocalError::Elsewhere { path, place });
        };
        let mut label = OsString::from(prefix);
        label.push(path);
        Ok(label)
    }

    /// Returns the canonical path it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the canonical path of the directory that is served: for a disk image that of its
    /// directory.
    #[must_use]
    pub fn dir_path(&self) -> &Path {
        match self.kind {
            SourceKind::Tree => &self.path,
            SourceKind::Disk { .. } => self.path.parent().unwrap_or(&self.path),
        }
    }

    /// Returns its kind.
    #[must_use]
    pub const fn kind(&self) -> &SourceKind {
        &self.kind
    }

    /// Returns warnings for the user; mostly none.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns its name for people and boot images: `dir:/srv/root` or `disk:/images/base.raw`.
    #[must_use]
    pub fn label(&self) -> OsString {
        let prefix = match self.kind {
            SourceKind::Tree => "dir:",
            SourceKind::Disk { .. } => "disk:",
        };
        let mut label = OsString::from(prefix);
        label.push(&self.path);
        label
    }

    /// Returns the id that boot images know it by: the hash of its label.
    #[must_use]
    pub fn id(&self) -> SourceId {
        SourceId::of_label(&self.label().into_vec())
    }

    /// Returns how large and how full the file system it lies on is.
    ///
    /// # Errors
    /// If the file system does not report it.
    pub fn statfs(&self) -> io::Result<Statvfs> {
        Ok(fstatvfs(&self.dir)?)
    }

    /// Returns the paths of a disk image and of all that it is based on beside it; none for a tree.
    pub fn disk_paths(&self) -> impl Iterator<Item = PathBuf> {
        let names = self.files.iter().map(|name| OsStr::from_bytes(name));
        names.map(|name| self.dir_path().join(name))
    }

    /// Returns what the first [`HEAD`](Self::HEAD) bytes of a file of a qcow2 image's chain were when it was followed; `None` for a
    /// file that cannot name others.
    #[must_use]
    pub fn checked_head(&self, name: &[u8]) -> Option<&[u8]> {
        let at = self.files.iter().position(|file| file == name)?;
        self.heads.get(at).map(Vec::as_slice)
    }

    /// Returns the names of a disk image's files, sorted, or `None` for a tree.
    pub(crate) fn disk_files(&self) -> Option<&[Vec<u8>]> {
        match self.kind {
            SourceKind::Tree => None,
            SourceKind::Disk { .. } => Some(&self.files),
        }
    }

    pub(crate) fn scan_failed(&self, source: io::Error) -> LocalError {
        LocalError::Scan {
            path: self.path.clone(),
            source,
        }
    }
}

impl AsFd for SourceRoot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// Returns the canonical path of a place, but does not wait longer than `patience` for a file system
/// that does not respond.
///
/// # Errors
/// If there is nothing, or no response.
pub fn canonical_within(path: &Path, patience: Duration) -> io::Result<PathBuf> {
    let asked = path.to_path_buf();
    let found = while_it_moves(patience, move |_| fs::canonicalize(asked), |_| ());
    found.unwrap_or_else(|why| Err(io::Error::other(LocalError::no_answer(why, path, patience))))
}

/// Has a thread look at the source at `path`, and does not wait longer for it than `patience`.
fn within<T: Send + 'static>(
    path: &Path,
    patience: Duration,
    look: impl FnOnce() -> Result<T, LocalError> + Send + 'static,
) -> Result<T, LocalError> {
    let seen = while_it_moves(patience, move |_| look(), |_| ());
    seen.unwrap_or_else(|why| Err(LocalError::no_answer(why, path, patience)))
}

/// Opens a directory in another one, as [`open_dir`] does. No symbolic link is followed.
fn open_in(around: &impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    Ok(openat(around, name, flags, Mode::empty())?)
}

/// A descriptor that only refers to the directory: it reads nothing and outlives every mount.
fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}
