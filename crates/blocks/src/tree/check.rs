//! What the tables of a tree must satisfy, checked in one pass and one walk from the root.

use std::ops::Range;

use super::{Inode, Link, NO_ENTRY, NodeData, NodeKind, Span, Tree, narrow};
use crate::FileId;

/// Longest name in a directory and of an extended attribute, in bytes (Linux's NAME_MAX and
/// XATTR_NAME_MAX).
pub const NAME_MAX: usize = 255;
/// Longest path of a file, in bytes, as in traces. Linux's PATH_MAX (4096) bounds what one call can
/// name, and not how deep a directory can lie; this bounds what a forged tree can make of a few
/// bytes, and how deep anything can nest.
pub const PATH_LIMIT: usize = 65_535;
/// Longest target of a symbolic link, in bytes (Linux's PATH_MAX, less the NUL).
pub const TARGET_MAX: usize = 4095;

/// The error in the tables of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// There is no inode 0, or it is not a directory.
    #[error("the root is missing or not a directory")]
    Root,
    /// A run reaches past the end of its table.
    #[error("inode {0} refers past the end of a table")]
    OutOfBounds(u32),
    /// A name, target or attribute is too long, empty, or has bytes it may not have.
    #[error("inode {0} has an invalid name, target or attribute")]
    Name(u32),
    /// Names or attributes are out of order or appear twice.
    #[error("inode {0} has entries out of order")]
    Order(u32),
    /// Inodes have entries, attributes, or the bytes of names, targets or attributes in common.
    #[error("inode {0}, or one before it, shares entries, attributes or bytes with another")]
    Shared(u32),
    /// An inode's data are of another kind than its attributes.
    #[error("inode {0} has data that its kind of file cannot have")]
    Kind(u32),
    /// A directory has no parent, two parents, or is its own ancestor.
    #[error("directory {0} is not reachable from the root by exactly one name")]
    Shape(u32),
    /// A directory has a name whose path is longer than [`PATH_LIMIT`].
    #[error("directory {0} has a path that is too long")]
    Path(u32),
    /// More inodes than [`FileId`] can count.
    #[error("too many inodes")]
    TooMany,
}

impl Span {
    fn fits(self, len: usize) -> bool {
        self.start as u64 + self.len as u64 <= len as u64
    }
}

/// Which elements of a table belong to a run already. No two runs may have one in common, or n of
/// them could each be the whole table: a small file would describe a tree without measure.
struct Taken(Vec<u64>);

impl Taken {
    fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    /// Takes a run that lies in the table. Returns whether all of it was free.
    fn take(&mut self, run: Span) -> bool {
        let Range { mut start, end } = run.range();
        while start < end {
            let (word, bit) = (start / 64, start % 64);
            let count = (64 - bit).min(end - start);
            let mask = (u64::MAX >> (64 - count)) << bit;
            if self.0[word] & mask != 0 {
                return false;
            }
            self.0[word] |= mask;
            start += count;
        }
        true
    }
}

/// The same for all tables that have runs.
struct AllTaken {
    entries: Taken,
    xattrs: Taken,
    bytes: Taken,
}

impl Tree {
    /// Checks the tables, and records the first entry of each file.
    pub(super) fn check(&mut self) -> Result<(), TreeError> {
        let mut taken = AllTaken {
            entries: Taken::new(self.parts.entries.len()),
            xattrs: Taken::new(self.parts.xattrs.len()),
            bytes: Taken::new(self.parts.bytes.len()),
        };
        for index in 0..self.parts.inodes.len() {
            let file = FileId(narrow(index));
            self.take_runs(file, &mut taken)?;
            self.check_inode(file, &mut taken.bytes)?;
        }
        self.check_shape()
    }

    /// Takes an inode's runs of entries and of attributes.
    fn take_runs(&self, file: FileId, taken: &mut AllTaken) -> Result<(), TreeError> {
        let Inode { data, xattrs, .. } = self.parts.inodes[file.index()];
        let entries = match data {
            NodeData::Dir { entries } => entries,
            NodeData::Symlink { .. } | NodeData::None => Span::default(),
        };
        if !entries.fits(self.parts.entries.len()) || !xattrs.fits(self.parts.xattrs.len()) {
            return Err(TreeError::OutOfBounds(file.0));
        }
        if taken.entries.take(entries) && taken.xattrs.take(xattrs) {
            Ok(())
        } else {
            Err(TreeError::Shared(file.0))
        }
    }

    fn check_inode(&mut self, file: FileId, taken: &mut Taken) -> Result<(), TreeError> {
        let inode = self.parts.inodes[file.index()];
        self.check_xattrs(file, inode.xattrs, taken)?;
        match (inode.attr.kind, inode.data) {
            (NodeKind::Dir, NodeData::Dir { entries }) => self.check_entries(file, entries, taken),
            (NodeKind::Symlink, NodeData::Symlink { target }) => {
                let text = self.checked(file, target)?;
                if text.is_empty() || text.len() > TARGET_MAX || text.contains(&0) {
                    return Err(TreeError::Name(file.0));
                }
                claim(taken, file, target)
            }
            (NodeKind::Dir | NodeKind::Symlink, _) => Err(TreeError::Kind(file.0)),
            (_, NodeData::None) => Ok(()),
            (_, _) => Err(TreeError::Kind(file.0)),
        }
    }

    fn checked(&self, file: FileId, span: Span) -> Result<&[u8], TreeError> {
        if span.fits(self.parts.bytes.len()) {
            Ok(self.bytes(span))
        } else {
            Err(TreeError::OutOfBounds(file.0))
        }
    }

    fn check_xattrs(&self, file: FileId, span: Span, taken: &mut Taken) -> Result<(), TreeError> {
        let mut last: &[u8] = &[];
        for xattr in &self.parts.xattrs[span.range()] {
            let name = self.checked(file, xattr.name)?;
            self.checked(file, xattr.value)?;
            if name.is_empty() || name.len() > NAME_MAX || name.contains(&0) {
                return Err(TreeError::Name(file.0));
            }
            if name <= last {
                return Err(TreeError::Order(file.0));
            }
            claim(taken, file, xattr.name)?;
            claim(taken, file, xattr.value)?;
            last = name;
        }
        Ok(())
    }

    fn check_entries(
        &mut self,
        dir: FileId,
        span: Span,
        taken: &mut Taken,
    ) -> Result<(), TreeError> {
        let mut last = Span::default();
        for index in span.range() {
            let entry = self.parts.entries[index];
            let name = self.checked(dir, entry.name)?;
            let special = name == b"." || name == b"..";
            if name.is_empty()
                || name.len() > NAME_MAX
                || special
                || name.iter().any(|b| matches!(b, 0 | b'/'))
            {
                return Err(TreeError::Name(dir.0));
            }
            if name <= self.bytes(last) {
                return Err(TreeError::Order(dir.0));
            }
            claim(taken, dir, entry.name)?;
            last = entry.name;
            let Some(child) = self.parts.inodes.get(entry.file.index()) else {
                return Err(TreeError::OutOfBounds(dir.0));
            };
            let named = self.first_entry[entry.file.index()] != NO_ENTRY;
            if entry.file == FileId::ROOT || (named && child.attr.kind == NodeKind::Dir) {
                return Err(TreeError::Shape(entry.file.0));
            }
            if named {
                self.further.push(Link {
                    file: entry.file,
                    entry: narrow(index),
                    dir,
                });
            } else {
                self.first_entry[entry.file.index()] = narrow(index);
                self.parent[entry.file.index()] = dir;
            }
        }
        Ok(())
    }

    /// Every directory has at most one name by now; what is left is to see that it hangs on the
    /// root, not too deep: walk down from the root and count.
    fn check_shape(&self) -> Result<(), TreeError> {
        let mut seen = vec![false; self.parts.inodes.len()];
        let mut waiting = vec![(FileId::ROOT, 0)];
        while let Some((dir, path_len)) = waiting.pop() {
            if std::mem::replace(&mut seen[dir.index()], true) {
                return Err(TreeError::Shape(dir.0));
            }
            for entry in self.entry_span(dir) {
                let slash = usize::from(dir != FileId::ROOT);
                let path_len = path_len + slash + entry.name.len as usize;
                if path_len > PATH_LIMIT {
                    return Err(TreeError::Path(dir.0));
                }
                if self.is_dir(entry.file) {
                    waiting.push((entry.file, path_len));
                }
            }
        }
        let lost = self
            .files()
            .find(|(file, _)| self.is_dir(*file) && !seen[file.index()]);
        lost.map_or(Ok(()), |(file, _)| Err(TreeError::Shape(file.0)))
    }

    fn is_dir(&self, file: FileId) -> bool {
        self.inode(file)
            .is_some_and(|inode| inode.attr.kind == NodeKind::Dir)
    }
}

/// Takes the bytes of a name, a target or a value, which lie in the table.
fn claim(taken: &mut Taken, file: FileId, run: Span) -> Result<(), TreeError> {
    if taken.take(run) {
        Ok(())
    } else {
        Err(TreeError::Shared(file.0))
    }
}
