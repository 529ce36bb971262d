//! Finding files by their known names, and checking that they are the same files.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use blocks::{ACCESS_LIST, Attr, FileId, NodeKind, SourceError, SourceErrorKind};
use nix::errno::Errno;
use nix::fcntl::{OFlag, ResolveFlag};
use rawio::stat::{Stat, stat_at};
use rawio::xattr;

use super::LiveTree;
use super::ids::Identity;
use crate::attr::attr_of;
use crate::disk_inode::DiskInode;
use crate::open::{gone, open_beneath, open_to_read};
use crate::scan;
use crate::shown::{absent, stat_shown};

/// How often a file is asked again that was replaced between two halves of one question.
const ATTEMPTS: usize = 4;

/// A file at one of its names.
pub(super) struct Found {
    /// The directory that holds it; for the root, the root itself.
    pub(super) dir: OwnedFd,
    /// Its name there; empty for the root.
    pub(super) name: Vec<u8>,
    stat: Stat,
    pub(super) attr: Attr,
}

impl LiveTree {
    /// Finds a file by one of its known names. It is [`Stale`](SourceErrorKind::Stale) if
    /// a user has fewer rights on it now than under this id.
    pub(super) fn find(&self, file: FileId, doing: &'static str) -> Result<Found, SourceError> {
        let gone = || SourceError::new(SourceErrorKind::NotFound, doing).about(file);
        let failed = |error| SourceError::from_io(doing, error).about(file);
        if file == FileId::ROOT {
            return self.find_root().map_err(failed);
        }
        let places = self.ids.lock().places(file);
        for (dir, name) in places {
            let Some(path) = self.ids.lock().path(dir) else {
                continue;
            };
            let Some(found) = self.find_at(&path, &name).map_err(failed)? else {
                continue;
            };
            let identity = self.ids.lock().identify(file, &found.stat, dir, &name);
            let allowed = match identity {
                Identity::Other => continue,
                Identity::Revoked => false,
                Identity::Same => self
                    .has_list_told(file, &found.dir, &name, &found.attr)
                    .map_err(failed)?,
            };
            if !allowed {
                let now = found.attr.version();
                return Err(SourceError::new(SourceErrorKind::Stale { now }, doing).about(file));
            }
            return Ok(found);
        }
        Err(gone())
    }

    /// Returns whether a file has the access list that was reported for it, if any was.
    fn has_list_told(
        &self,
        file: FileId,
        dir: impl AsFd,
        name: &[u8],
        attr: &Attr,
    ) -> io::Result<bool> {
        if attr.kind != NodeKind::File || !self.ids.lock().may_have_another_list(file, attr.ctime) {
            return Ok(true);
        }
        let list = xattr::get_at(dir, name, ACCESS_LIST)?;
        let mut ids = self.ids.lock();
        Ok(ids.has_list(file, list.as_deref(), attr.ctime))
    }

    fn find_root(&self) -> io::Result<Found> {
        let dir = open_beneath(&*self.root, b"", OFlag::O_PATH, ResolveFlag::empty())?;
        let stat = stat_at(&dir, "")?;
        let attr = match self.root.disk_files() {
            Some(files) => scan::disk_root(&dir, files)?,
            None => attr_of(&stat).ok_or(Errno::ENOTDIR)?,
        };
        Ok(Found {
            dir,
            name: Vec::new(),
            stat,
            attr,
        })
    }

    /// Finds what `name` is in the directory at `path`; nothing if there is no such thing, or
    /// none that is shown.
    fn find_at(&self, path: &[u8], name: &[u8]) -> io::Result<Option<Found>> {
        let way = OFlag::O_PATH | OFlag::O_DIRECTORY;
        let dir = match open_beneath(&*self.root, path, way, ResolveFlag::RESOLVE_NO_XDEV) {
            Ok(dir) => dir,
            Err(error) => return absent(error),
        };
        let Some((stat, attr)) = stat_shown(&dir, name, self.mount)? else {
            return Ok(None);
        };
        Ok(Some(Found {
            dir,
            name: name.to_vec(),
            stat,
            attr,
        }))
    }

    /// Calls `question` for a file, again if it was replaced under its name meanwhile.
    pub(super) fn ask<T>(
        &self,
        file: FileId,
        doing: &'static str,
        question: impl Fn(&Found) -> io::Result<T>,
    ) -> Result<T, SourceError> {
        for _ in 0..ATTEMPTS {
            let found = self.find(file, doing)?;
            let answer = question(&found);
            let now = stat_at(&found.dir, found.name.as_slice());
            if now.is_ok_and(|now| DiskInode::of(&now) == DiskInode::of(&found.stat)) {
                return answer.map_err(|error| SourceError::from_io(doing, error).about(file));
            }
        }
        Err(SourceError::new(SourceErrorKind::NotFound, doing).about(file))
    }

    /// Opens a directory; `None` if another file system is mounted there, which is not entered.
    pub(super) fn open_dir(
        &self,
        dir: FileId,
        flags: OFlag,
        doing: &'static str,
    ) -> Result<Option<OwnedFd>, SourceError> {
        let found = self.find(dir, doing)?;
        if found.stat.mount != self.mount {
            return Ok(None);
        }
        // To be asked about names, or to be listed: the latter must not leave a trace.
        let open = if flags.contains(OFlag::O_PATH) {
            open_beneath
        } else {
            open_to_read
        };
        let opened = open(
            &found.dir,
            &found.name,
            flags | OFlag::O_DIRECTORY,
            ResolveFlag::RESOLVE_NO_XDEV,
        );
        let opened = opened.and_then(|fd| Ok((stat_at(&fd, "")?, fd)));
        let (stat, fd) = match opened {
            Ok(opened) => opened,
            Err(error) => return Err(SourceError::from_io(doing, gone(error)).about(dir)),
        };
        if DiskInode::of(&stat) == DiskInode::of(&found.stat) {
            Ok(Some(fd))
        } else {
            Err(SourceError::new(SourceErrorKind::NotFound, doing).about(dir))
        }
    }

    /// Returns the id of the file found as `name` in `dir`, which is open as `fd`: a new one if it is
    /// unknown, or if a user has fewer rights on it than under its old id.
    pub(super) fn meet(
        &self,
        fd: &OwnedFd,
        (stat, attr): (&Stat, &Attr),
        dir: FileId,
        name: &[u8],
    ) -> Result<FileId, SourceError> {
        let doing = "giving out one more id";
        for _ in 0..ATTEMPTS {
            let (id, forgettable) = {
                let mut ids = self.ids.lock();
                (ids.meet(stat, dir, name), ids.take_forgettable())
            };
            self.forget_gone(&forgettable);
            let id = id.ok_or_else(|| SourceError::new(SourceErrorKind::Io, doing))?;
            let allowed = self.has_list_told(id, fd, name, attr);
            // Of a new one no list was told: mostly the second turn is the last.
            if allowed.map_err(|error| SourceError::from_io(doing, gone(error)).about(id))? {
                return Ok(id);
            }
        }
        Err(SourceError::new(SourceErrorKind::NotFound, doing).about(dir))
    }

    /// Forgets those files that are at none of the names they were met by, and ids that were revoked.
    fn forget_gone(&self, files: &[FileId]) {
        if files.is_empty() {
            return;
        }
        let is_gone = |file: &FileId| {
            let found = self.find(*file, "looking again");
            let gone = |error: SourceError| {
                use SourceErrorKind::{NotFound, Stale};
                matches!(error.kind(), NotFound | Stale { .. })
            };
            found.is_err_and(gone)
        };
        let gone: Vec<FileId> = files.iter().copied().filter(is_gone).collect();
        self.ids.lock().forget(&gone);
    }
}
