//! What the tables of a tree must satisfy, checked in one pass and one walk from the root.

use super::{Inode, NO_ENTRY, NodeData, NodeKind, Span, Tree, narrow};
use crate::FileId;

/// Longest name in a directory and of an extended attribute, in bytes (Linux's NAME_MAX and
/// XATTR_NAME_MAX).
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes (Linux's PATH_MAX, less the NUL).
pub const TARGET_MAX: usize = 4095;

/// What is wrong with the tables of a tree.
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
    #[error("inode {0} has a name, a target or an attribute that cannot be")]
    Name(u32),
    /// Names or attributes are out of order or appear twice.
    #[error("inode {0} has entries out of order")]
    Order(u32),
    /// Inodes have entries or attributes in common.
    #[error("inode {0}, or one before it, shares entries or attributes with another")]
    Shared(u32),
    /// An inode's data are of another kind than its attributes.
    #[error("inode {0} has the data of another kind of file")]
    Kind(u32),
    /// A directory has no parent, two parents, or is its own ancestor.
    #[error("directory {0} does not hang on the root by exactly one name")]
    Shape(u32),
    /// More inodes than [`FileId`] can count.
    #[error("too many inodes")]
    TooMany,
}

impl Span {
    fn fits(self, len: usize) -> bool {
        self.start as u64 + self.len as u64 <= len as u64
    }
}

impl Tree {
    /// Checks the tables, and notes by which entry each file is first named.
    pub(super) fn check(&mut self) -> Result<(), TreeError> {
        // Runs of different inodes may not overlap, or n of them could each be the whole table.
        // Where they did, their lengths would add up to more than the table has.
        let mut left = (self.parts.entries.len(), self.parts.xattrs.len());
        for index in 0..self.parts.inodes.len() {
            let file = FileId(narrow(index));
            self.claim_runs(file, &mut left)?;
            self.check_inode(file)?;
        }
        self.check_shape()
    }

    /// Takes the lengths of an inode's runs from what is `left` of both tables.
    fn claim_runs(&self, file: FileId, left: &mut (usize, usize)) -> Result<(), TreeError> {
        let Inode { data, xattrs, .. } = self.parts.inodes[file.index()];
        let entries = match data {
            NodeData::Dir { entries } => entries,
            NodeData::Symlink { .. } | NodeData::None => Span::default(),
        };
        if !entries.fits(self.parts.entries.len()) || !xattrs.fits(self.parts.xattrs.len()) {
            return Err(TreeError::OutOfBounds(file.0));
        }
        let claim = |left: usize, run: Span| left.checked_sub(run.len as usize);
        match (claim(left.0, entries), claim(left.1, xattrs)) {
            (Some(entries), Some(xattrs)) => *left = (entries, xattrs),
            _ => return Err(TreeError::Shared(file.0)),
        }
        Ok(())
    }

    fn check_inode(&mut self, file: FileId) -> Result<(), TreeError> {
        let inode = self.parts.inodes[file.index()];
        self.check_xattrs(file, inode.xattrs)?;
        match (inode.attr.kind, inode.data) {
            (NodeKind::Dir, NodeData::Dir { entries }) => self.check_entries(file, entries),
            (NodeKind::Symlink, NodeData::Symlink { target }) => {
                let target = self.checked(file, target)?;
                if target.is_empty() || target.len() > TARGET_MAX || target.contains(&0) {
                    return Err(TreeError::Name(file.0));
                }
                Ok(())
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

    fn check_xattrs(&self, file: FileId, span: Span) -> Result<(), TreeError> {
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
            last = name;
        }
        Ok(())
    }

    fn check_entries(&mut self, dir: FileId, span: Span) -> Result<(), TreeError> {
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
            last = entry.name;
            let Some(child) = self.parts.inodes.get(entry.file.index()) else {
                return Err(TreeError::OutOfBounds(dir.0));
            };
            let named = self.first_entry[entry.file.index()] != NO_ENTRY;
            if entry.file == FileId::ROOT || (named && child.attr.kind == NodeKind::Dir) {
                return Err(TreeError::Shape(entry.file.0));
            }
            if !named {
                self.first_entry[entry.file.index()] = narrow(index);
                self.parent[entry.file.index()] = dir;
            }
        }
        Ok(())
    }

    /// Every directory has at most one name by now; what is left is to see that it hangs on the
    /// root: walk down from the root and count.
    fn check_shape(&self) -> Result<(), TreeError> {
        let mut seen = vec![false; self.parts.inodes.len()];
        let mut waiting = vec![FileId::ROOT];
        while let Some(dir) = waiting.pop() {
            if std::mem::replace(&mut seen[dir.index()], true) {
                return Err(TreeError::Shape(dir.0));
            }
            let below = self.entry_span(dir).iter().map(|entry| entry.file);
            waiting.extend(below.filter(|file| self.is_dir(*file)));
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
