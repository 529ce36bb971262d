//! The tables of a tree while they grow.

use std::collections::HashMap;

use blocks::{Attr, DirEntry, FileId, Inode, NodeData, NodeKind, Span, TreeParts, Xattr};
use rawio::stat::Stat;

use crate::LocalError;

/// What makes two names the same file: device and inode number.
pub(super) type Identity = ((u32, u32), u64);

pub(super) const fn identity(stat: &Stat) -> Identity {
    (stat.device, stat.inode)
}

#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) parts: TreeParts,
    /// Files with several names that were met so far.
    linked: HashMap<Identity, FileId>,
}

/// How full the tables were at some point.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    inodes: usize,
    entries: usize,
    xattrs: usize,
    bytes: usize,
}

impl Tables {
    pub(super) fn mark(&self) -> Mark {
        Mark {
            inodes: self.parts.inodes.len(),
            entries: self.parts.entries.len(),
            xattrs: self.parts.xattrs.len(),
            bytes: self.parts.bytes.len(),
        }
    }

    /// Forgets all that was added since `mark`.
    pub(super) fn roll_back(&mut self, mark: Mark) {
        self.parts.inodes.truncate(mark.inodes);
        self.parts.entries.truncate(mark.entries);
        self.parts.xattrs.truncate(mark.xattrs);
        self.parts.bytes.truncate(mark.bytes);
        self.linked.retain(|_, file| file.index() < mark.inodes);
    }

    /// Returns the file that another name of the same inode has.
    pub(super) fn linked(&self, identity: Identity) -> Option<FileId> {
        self.linked.get(&identity).copied()
    }

    /// Adds a file; `target` is that of a symbolic link.
    pub(super) fn add_inode(
        &mut self,
        attr: Attr,
        identity: Identity,
        target: &[u8],
        xattrs: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<FileId, LocalError> {
        let file = FileId(narrow(self.parts.inodes.len())?);
        let data = match attr.kind {
            NodeKind::Dir => NodeData::Dir {
                entries: Span::default(),
            },
            NodeKind::Symlink => NodeData::Symlink {
                target: self.add_bytes(target)?,
            },
            _ => NodeData::None,
        };
        let xattrs = self.add_xattrs(xattrs)?;
        self.parts.inodes.push(Inode { attr, data, xattrs });
        if attr.nlink > 1 && attr.kind != NodeKind::Dir {
            self.linked.insert(identity, file);
        }
        Ok(file)
    }

    pub(super) fn add_entry(&mut self, name: &[u8], file: FileId) -> Result<(), LocalError> {
        let name = self.add_bytes(name)?;
        self.parts.entries.push(DirEntry { name, file });
        Ok(())
    }

    /// Assigns the entries that were added since `start` to a directory.
    pub(super) fn close_dir(&mut self, dir: FileId, start: usize) -> Result<(), LocalError> {
        let entries = span(start, self.parts.entries.len())?;
        if let Some(inode) = self.parts.inodes.get_mut(dir.index()) {
            inode.data = NodeData::Dir { entries };
        }
        Ok(())
    }

    pub(super) fn set_attr(&mut self, file: FileId, attr: Attr) {
        if let Some(inode) = self.parts.inodes.get_mut(file.index()) {
            inode.attr = attr;
        }
    }

    pub(super) fn is_dir(&self, file: FileId) -> bool {
        let inode = self.parts.inodes.get(file.index());
        inode.is_some_and(|inode| inode.attr.kind == NodeKind::Dir)
    }

    pub(super) fn name(&self, entry: usize) -> &[u8] {
        let Some(entry) = self.parts.entries.get(entry) else {
            return &[];
        };
        let start = entry.name.start as usize;
        &self.parts.bytes[start..start + entry.name.len as usize]
    }

    fn add_xattrs(&mut self, xattrs: &[(Vec<u8>, Vec<u8>)]) -> Result<Span, LocalError> {
        let start = self.parts.xattrs.len();
        for (name, value) in xattrs {
            let name = self.add_bytes(name)?;
            let value = self.add_bytes(value)?;
            self.parts.xattrs.push(Xattr { name, value });
        }
        span(start, self.parts.xattrs.len())
    }

    fn add_bytes(&mut self, bytes: &[u8]) -> Result<Span, LocalError> {
        let start = self.parts.bytes.len();
        let span = span(start, start + bytes.len())?;
        self.parts.bytes.extend_from_slice(bytes);
        Ok(span)
    }
}

fn span(start: usize, end: usize) -> Result<Span, LocalError> {
    narrow(end)?;
    Ok(Span {
        start: narrow(start)?,
        len: narrow(end - start)?,
    })
}

fn narrow(index: usize) -> Result<u32, LocalError> {
    u32::try_from(index).map_err(|_| LocalError::TooLarge)
}
