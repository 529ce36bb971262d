//! Names and attributes of a source that are read on request.
//!
//! A [`scan`](crate::scan) reads all metadata, which on a cold disk can take ten times the reads
//! of the boot that is to be recorded. A [`LazyTree`] is the same tree filled in on demand: a
//! name that is found gets an id and its attributes are kept, and from then on its answers stay
//! the same. So a file that changes later is noticed where it is read, by its version, as
//! with a scanned tree. Access lists are kept as well, because the kernel checks opens by them. Missing
//! names, listings, links and other extended attributes are not kept: the disk is read
//! each time.
//!
//! Ids are assigned in the order of requests, so they are not valid elsewhere.
//! [`LazyTree::in_tree`] returns the file of a later scan for an id.
//!
//! Memory is bounded by the names of the source: missing names take
//! none.

mod known;
mod namespace;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use blocks::{FileId, NodeKind, SourceError, SourceErrorKind, Tree};
use nix::errno::Errno;
use nix::fcntl::{OFlag, ResolveFlag};
use parking_lot::Mutex;
use rawio::stat::{Stat, stat_at};

use self::known::Known;
use crate::attr::attr_of;
use crate::disk_inode::DiskInode;
use crate::open::{gone, open_beneath, open_to_read};
use crate::{LocalError, SourceRoot, scan};

/// The names and attributes of a source, as they were at their first request.
#[derive(Debug)]
pub struct LazyTree {
    root: Arc<SourceRoot>,
    /// The mount that the root is on; other mounts below are not shown.
    mount: Option<u64>,
    known: Mutex<Known>,
}

/// The directory that holds a file, and the file's name in it; the root itself and no name.
type ParentAndName = (OwnedFd, Vec<u8>);

impl LazyTree {
    /// Returns the names of `root`, of which only the root itself is read now.
    ///
    /// # Errors
    /// If the root cannot be read.
    pub fn new(root: Arc<SourceRoot>) -> Result<Self, LocalError> {
        let failed = |error| root.scan_failed(error);
        let stat = stat_at(&*root, "").map_err(failed)?;
        let attr = match root.disk_files() {
            Some(files) => scan::disk_root(&*root, files).map_err(failed)?,
            None => attr_of(&stat).ok_or_else(|| failed(Errno::ENOTDIR.into()))?,
        };
        Ok(Self {
            mount: stat.mount,
            known: Mutex::new(Known::new(attr)),
            root,
        })
    }

    /// Returns how many files were met so far, the root included.
    #[must_use]
    pub fn known_files(&self) -> usize {
        self.known.lock().len()
    }

    /// Returns the file of a later scan of the same source for an id; `None` if it does not exist any
    /// more, or has changed. Directories are identified by their path, whatever else is in
    /// them by now.
    #[must_use]
    pub fn in_tree(&self, file: FileId, tree: &Tree) -> Option<FileId> {
        let (path, met) = {
            let known = self.known.lock();
            (known.path(file)?, known.attr(file)?)
        };
        let found = tree.resolve(&path)?;
        let now = tree.inode(found)?.attr;
        let same =
            now.kind == met.kind && (met.kind == NodeKind::Dir || now.version() == met.version());
        same.then_some(found)
    }

    /// Opens a directory; `None` if another file system is mounted there, which is not entered.
    fn open_dir(
        &self,
        dir: FileId,
        flags: OFlag,
        doing: &'static str,
    ) -> Result<Option<OwnedFd>, SourceError> {
        let path = self.known_path(dir, doing)?;
        // To be asked about names, or to be listed: the latter must not leave a trace.
        let open = if flags.contains(OFlag::O_PATH) {
            open_beneath
        } else {
            open_to_read
        };
        let flags = flags | OFlag::O_DIRECTORY;
        match open(
            self.root.as_fd(),
            &path,
            flags,
            ResolveFlag::RESOLVE_NO_XDEV,
        ) {
            Ok(fd) => Ok(Some(fd)),
            Err(error) if error.raw_os_error() == Some(Errno::EXDEV as i32) => Ok(None),
            Err(error) => Err(SourceError::from_io(doing, gone(error)).about(dir)),
        }
    }

    /// Asks `question` about a file at the place where it was first met.
    fn ask<T>(
        &self,
        file: FileId,
        doing: &'static str,
        question: impl Fn(&ParentAndName) -> io::Result<T>,
    ) -> Result<T, SourceError> {
        let path = self.known_path(file, doing)?;
        let (dir, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b""[..], &path[..]),
        };
        let way = OFlag::O_PATH | OFlag::O_DIRECTORY;
        open_beneath(&*self.root, dir, way, ResolveFlag::RESOLVE_NO_XDEV)
            .and_then(|dir| question(&(dir, name.to_vec())))
            .map_err(|error| SourceError::from_io(doing, gone(error)).about(file))
    }

    /// Whether a file is still at the place where it was first met.
    fn is_still(&self, file: FileId, stat: &Stat) -> bool {
        let there = self.ask(file, "asking again", |(dir, name)| {
            stat_at(dir, name.as_slice())
        });
        there.is_ok_and(|there| DiskInode::of(&there) == DiskInode::of(stat))
    }

    fn known_path(&self, file: FileId, doing: &'static str) -> Result<Vec<u8>, SourceError> {
        let path = self.known.lock().path(file);
        path.ok_or_else(|| SourceError::new(SourceErrorKind::NotFound, doing).about(file))
    }

    fn meet(&self, dir: FileId, name: &[u8], stat: &Stat) -> Result<FileId, SourceError> {
        let linked = self.known.lock().linked(stat);
        // What was met under another name may have been replaced there since, and be followed as what
        // took its place.
        let linked = linked.filter(|file| self.is_still(*file, stat));
        let met = self.known.lock().meet(dir, name, stat, linked);
        met.ok_or_else(|| SourceError::new(SourceErrorKind::Io, "giving out one more id"))
    }
}
