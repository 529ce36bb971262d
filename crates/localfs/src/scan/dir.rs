//! Reading one directory: its names, and their files.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use blocks::{FileId, NAME_MAX, NodeKind, PATH_LIMIT, TARGET_MAX};
use nix::errno::Errno;
use nix::fcntl::readlinkat;
use nix::unistd::{Whence, lseek};
use rawio::dents::Lister;
use rawio::stat::{Stat, stat_at};

use super::report::Reason;
use super::tables::{Tables, identity};
use super::xattrs;
use crate::LocalError;
use crate::attr::attr_of;
use crate::timed::CallProgress;

/// How often a directory is read that changes under the reader.
const ATTEMPTS: usize = 4;

/// Reads directories, one after the other, with the same buffers.
pub(super) struct DirReader {
    mount: Option<u64>,
    lister: Lister,
    /// All names of the directory, one after the other.
    names: Vec<u8>,
    found: Vec<Found>,
    /// See [`DirRead::notes`].
    notes: Vec<(Vec<u8>, Reason)>,
    /// Bytes that the directory's path puts before each of its names.
    prefix: usize,
}

/// A directory that was read.
pub(super) struct DirRead {
    /// Its entries in the tables.
    pub(super) entries: Range<usize>,
    /// The notes, by name; about the directory itself if the name is empty.
    pub(super) notes: Vec<(Vec<u8>, Reason)>,
}

/// One name of the directory.
struct Found {
    name: Range<usize>,
    inode: u64,
    stat: Option<Stat>,
}

impl DirReader {
    /// Returns a reader that leaves out files that are not on `mount`.
    pub(super) fn new(mount: Option<u64>) -> Self {
        Self {
            mount,
            lister: Lister::new(),
            names: Vec::new(),
            found: Vec::new(),
            notes: Vec::new(),
            prefix: 0,
        }
    }

    /// Adds the entries of the directory to the tables, in the order of names, and updates its own
    /// attributes. Its path, with a slash behind it, has `prefix` bytes.
    ///
    /// Reads again when the directory changed meanwhile. One that cannot be read has no entries.
    pub(super) fn read(
        &mut self,
        tables: &mut Tables,
        (dir, prefix): (FileId, usize),
        fd: &OwnedFd,
        call_progress: &CallProgress,
    ) -> Result<DirRead, LocalError> {
        self.prefix = prefix;
        let mark = tables.mark();
        let start = tables.parts.entries.len();
        let mut attempts = 0..ATTEMPTS;
        loop {
            let last = attempts.next().is_none();
            match self.read_once(tables, dir, fd, call_progress)? {
                Ok(true) => break,
                Ok(false) if !last => tables.roll_back(mark),
                Ok(false) => {
                    self.notes.push((Vec::new(), Reason::Changed));
                    break;
                }
                Err(error) => {
                    tables.roll_back(mark);
                    self.notes.clear();
                    self.notes.push((Vec::new(), Reason::of(&error)));
                    break;
                }
            }
        }
        tables.close_dir(dir, start)?;
        let entries = start..tables.parts.entries.len();
        let notes = std::mem::take(&mut self.notes);
        Ok(DirRead { entries, notes })
    }

    /// Returns whether the directory stood still, or why it cannot be read. The outer result is
    /// about the scan as a whole.
    fn read_once(
        &mut self,
        tables: &mut Tables,
        dir: FileId,
        fd: &OwnedFd,
        call_progress: &CallProgress,
    ) -> Result<io::Result<bool>, LocalError> {
        self.notes.clear();
        let before = match stat_at(fd, "").and_then(|stat| self.list(fd).map(|()| stat)) {
            Ok(before) => before,
            Err(error) => return Ok(Err(error)),
        };
        call_progress.step();
        self.stat_all(fd, call_progress);
        let found = std::mem::take(&mut self.found);
        for one in &found {
            self.add(tables, fd, one)?;
            call_progress.step();
        }
        self.found = found;
        let after = match stat_at(fd, "") {
            Ok(after) => after,
            Err(error) => return Ok(Err(error)),
        };
        if let Some(attr) = attr_of(&after) {
            tables.set_attr(dir, attr);
        }
        Ok(Ok(
            (before.mtime, before.ctime) == (after.mtime, after.ctime)
        ))
    }

    fn list(&mut self, fd: &OwnedFd) -> io::Result<()> {
        self.names.clear();
        self.found.clear();
        lseek(fd, 0, Whence::SeekSet)?;
        loop {
            let entries = self.lister.next(fd)?;
            if entries.is_empty() {
                return Ok(());
            }
            for entry in entries.filter(|entry| !matches!(entry.name, b"." | b"..")) {
                let start = self.names.len();
                self.names.extend_from_slice(entry.name);
                self.found.push(Found {
                    name: start..self.names.len(),
                    inode: entry.inode,
                    stat: None,
                });
            }
        }
    }

    /// Reads the attributes in the order of inode numbers, then sorts by name. What vanished has
    /// none: it is as if it had never been.
    fn stat_all(&mut self, fd: &OwnedFd, call_progress: &CallProgress) {
        let names = &self.names;
        self.found.sort_unstable_by_key(|found| found.inode);
        for found in &mut self.found {
            call_progress.step();
            match stat_at(fd, &names[found.name.clone()]) {
                Ok(stat) => found.stat = Some(stat),
                Err(error) if error.kind() == io::ErrorKind::NotFound => (),
                Err(error) => {
                    let name = names[found.name.clone()].to_vec();
                    self.notes.push((name, Reason::of(&error)));
                }
            }
        }
        self.found
            .sort_unstable_by(|a, b| names[a.name.clone()].cmp(&names[b.name.clone()]));
        // A directory that changes while it is listed may show a name twice.
        self.found
            .dedup_by(|a, b| names[a.name.clone()] == names[b.name.clone()]);
    }

    fn add(&mut self, tables: &mut Tables, fd: &OwnedFd, found: &Found) -> Result<(), LocalError> {
        let name = &self.names[found.name.clone()];
        let Some(stat) = &found.stat else {
            return Ok(());
        };
        let elsewhere = stat.mount != self.mount;
        let reason = match attr_of(stat) {
            _ if name.len() > NAME_MAX || self.prefix + name.len() > PATH_LIMIT => {
                Reason::NotServable
            }
            None => Reason::NotServable,
            Some(attr) if elsewhere && attr.kind != NodeKind::Dir => Reason::OtherMount,
            Some(_) => match add_node(tables, fd, name, stat)? {
                Ok((file, None)) => return tables.add_entry(name, file),
                Ok((file, Some(reason))) => {
                    tables.add_entry(name, file)?;
                    reason
                }
                Err(reason) => reason,
            },
        };
        self.notes.push((name.to_vec(), reason));
        Ok(())
    }
}

/// Adds the file of `name`, unless it was added already under another name. Returns
/// it with a reason for a note, or the reason why it cannot be served.
pub(super) fn add_node(
    tables: &mut Tables,
    fd: &OwnedFd,
    name: &[u8],
    stat: &Stat,
) -> Result<Result<(FileId, Option<Reason>), Reason>, LocalError> {
    let Some(attr) = attr_of(stat) else {
        return Ok(Err(Reason::NotServable));
    };
    if let Some(file) = tables.linked(identity(stat)) {
        return Ok(Ok((file, None)));
    }
    let mut target = Vec::new();
    if attr.kind == NodeKind::Symlink {
        match readlinkat(fd, name) {
            Ok(read) => target = std::os::unix::ffi::OsStringExt::into_vec(read),
            Err(Errno::ENOENT | Errno::EINVAL) => return Ok(Err(Reason::Changed)),
            Err(errno) => return Ok(Err(Reason::of(&errno.into()))),
        }
        if target.is_empty() || target.len() > TARGET_MAX {
            return Ok(Err(Reason::NotServable));
        }
    }
    let (attributes, reason) = match xattrs::read(fd, name) {
        Ok(attributes) => (attributes, None),
        Err(error) => (Vec::new(), Some(Reason::of(&error))),
    };
    let file = tables.add_inode(attr, identity(stat), &target, &attributes)?;
    Ok(Ok((file, reason)))
}
