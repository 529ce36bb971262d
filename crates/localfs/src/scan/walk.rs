//! The walk: an explicit stack of directories, a bounded number of them held open.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use blocks::{FileId, TreeParts};
use nix::errno::Errno;
use nix::fcntl::{OFlag, ResolveFlag, openat};
use nix::sys::stat::Mode;
use rawio::stat::stat_at;

use super::dir::{DirRead, DirReader};
use super::report::{Reason, ScanReport};
use super::tables::{Identity, Tables, identity};
use super::{Progress, xattrs};
use crate::attr::attr_of;
use crate::open::{is_shortage, open_to_read};
use crate::timed::CallProgress;
use crate::{LocalError, SourceRoot};

/// Directories on the way down that are kept open. Real trees are hardly ever deeper, and a
/// process may have 1024 descriptors by default. From further below, the way back up is by `..`,
/// and checked.
const HELD: usize = 64;

pub(super) struct Walk<'a> {
    root: &'a SourceRoot,
    progress: &'a mut dyn FnMut(Progress),
    call_progress: &'a CallProgress,
    reader: DirReader,
    tables: Tables,
    report: ScanReport,
    stack: Vec<Frame>,
}

/// A directory whose subdirectories are being visited.
struct Frame {
    /// Its entry; `None` for the root.
    named: Option<usize>,
    identity: Identity,
    /// Bytes of its path with a slash behind it: 0 for the root.
    prefix: usize,
    /// `None` while too many below it are open, or if it cannot be found again.
    fd: Option<OwnedFd>,
    /// Entries that were not looked at yet.
    entries: Range<usize>,
}

impl<'a> Walk<'a> {
    pub(super) fn run(
        root: &'a SourceRoot,
        progress: &'a mut dyn FnMut(Progress),
        call_progress: &'a CallProgress,
    ) -> Result<(TreeParts, ScanReport), LocalError> {
        let failed = |source| root.scan_failed(source);
        let fd = open_to_read(root, b"", OFlag::O_DIRECTORY, ResolveFlag::empty());
        let fd = fd.map_err(failed)?;
        let stat = stat_at(&fd, "").map_err(failed)?;
        let mut walk = Self {
            root,
            progress,
            call_progress,
            reader: DirReader::new(stat.mount),
            tables: Tables::default(),
            report: ScanReport::default(),
            stack: Vec::new(),
        };
        let attr = attr_of(&stat).ok_or_else(|| failed(Errno::ENOTDIR.into()))?;
        let attributes = xattrs::read(&fd, b"").map_err(failed)?;
        let top = identity(&stat);
        let file = walk.tables.add_inode(attr, top, b"", &attributes)?;
        walk.read(file, None, top, fd)?;
        walk.descend()?;
        Ok((walk.tables.parts, walk.report))
    }

    fn descend(&mut self) -> Result<(), LocalError> {
        while let Some(frame) = self.stack.last_mut() {
            let Some(entry) = frame.entries.next() else {
                self.leave();
                continue;
            };
            let file = self.tables.parts.entries[entry].file;
            if self.tables.is_dir(file) {
                self.enter(file, entry)?;
            }
        }
        Ok(())
    }

    /// Goes down into a subdirectory of the directory on top of the stack.
    fn enter(&mut self, dir: FileId, entry: usize) -> Result<(), LocalError> {
        match self.open(dir, entry) {
            Ok((fd, identity)) => self.read(dir, Some(entry), identity, fd),
            // No property of the directory: to go on would show a source that is empty from there on.
            Err(error) if is_shortage(&error) => Err(self.root.scan_failed(error)),
            Err(error) => {
                let path = self.path(self.tables.name(entry));
                self.report.add(path, Reason::of(&error));
                Ok(())
            }
        }
    }

    fn open(&self, dir: FileId, entry: usize) -> io::Result<(OwnedFd, Identity)> {
        let gone = || io::Error::from(Errno::ENOENT);
        let parent = self.stack.last().and_then(|frame| frame.fd.as_ref());
        let fd = open_to_read(
            parent.ok_or_else(gone)?,
            self.tables.name(entry),
            OFlag::O_DIRECTORY,
            ResolveFlag::RESOLVE_NO_XDEV,
        )?;
        let stat = stat_at(&fd, "")?;
        let known = self.tables.parts.inodes[dir.index()].attr.source_inode;
        if stat.inode == known {
            Ok((fd, identity(&stat)))
        } else {
            Err(gone())
        }
    }

    fn read(
        &mut self,
        dir: FileId,
        named: Option<usize>,
        identity: Identity,
        fd: OwnedFd,
    ) -> Result<(), LocalError> {
        if self.call_progress.is_given_up() {
            return Err(self.root.scan_failed(Errno::ETIMEDOUT.into()));
        }
        let above = self.stack.last().map_or(0, |frame| frame.prefix);
        let prefix = named.map_or(0, |entry| above + self.tables.name(entry).len() + 1);
        let read = self
            .reader
            .read(&mut self.tables, (dir, prefix), &fd, self.call_progress);
        let DirRead { entries, notes } = read?;
        self.stack.push(Frame {
            named,
            identity,
            prefix,
            fd: Some(fd),
            entries,
        });
        for (name, reason) in notes {
            let path = self.path(&name);
            self.report.add(path, reason);
        }
        if let Some(above) = self.stack.len().checked_sub(HELD + 1) {
            self.stack[above].fd = None;
        }
        (self.progress)(Progress {
            files: self.tables.parts.inodes.len() as u64,
        });
        Ok(())
    }

    /// Goes back up to the directory that holds the one on top of the stack.
    fn leave(&mut self) {
        let left = self.stack.pop().and_then(|frame| frame.fd);
        let Some(parent) = self.stack.last().filter(|parent| parent.fd.is_none()) else {
            return;
        };
        let same =
            |fd: &OwnedFd| stat_at(fd, "").is_ok_and(|stat| identity(&stat) == parent.identity);
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let up = left.and_then(|fd| openat(&fd, "..", flags, Mode::empty()).ok());
        // If the directory just left was moved elsewhere meanwhile, the way back is by name.
        let found = up.filter(same).or_else(|| {
            let path = self.path(b"");
            let by_name = open_to_read(
                self.root,
                &path,
                OFlag::O_DIRECTORY,
                ResolveFlag::RESOLVE_NO_XDEV,
            );
            by_name.ok().filter(same)
        });
        if let Some(parent) = self.stack.last_mut() {
            parent.fd = found;
        }
    }

    /// Returns the path of `name` in the directory on top of the stack.
    fn path(&self, name: &[u8]) -> Vec<u8> {
        let named = self.stack.iter().filter_map(|frame| frame.named);
        let mut names: Vec<&[u8]> = named.map(|entry| self.tables.name(entry)).collect();
        if !name.is_empty() {
            names.push(name);
        }
        names.join(&b'/')
    }
}
