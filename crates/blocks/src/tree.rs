//! The metadata of a source: every inode and every name, immutable.
//!
//! A tree consists of five flat tables, so that a boot image can store it as it is: inodes, directory
//! entries (grouped by directory, sorted by name), extended attributes (grouped by inode), and
//! one string of bytes that holds names, link targets and attribute values. [`TreeParts`] is
//! these tables as they are read or built; [`Tree`] has passed every check, so that later code
//! need not check again.

mod check;
mod codec;
mod paths;

use std::ops::{ControlFlow, Range};

pub use self::check::{NAME_MAX, PATH_LIMIT, TARGET_MAX, TreeError};
pub use self::codec::DecodeTreeError;
pub use self::paths::Paths;

use crate::{
    ACCESS_LIST, Attr, EntryRef, FileId, FileKey, LINKS_MAX, Lifetime, Namespace, NodeKind,
    SourceError, SourceErrorKind,
};

/// A run of elements of one of the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Index of the first.
    pub start: u32,
    /// How many.
    pub len: u32,
}

impl Span {
    const fn range(self) -> Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }
}

/// What an inode has besides attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeData {
    /// Nothing: a regular file, a device, a pipe or a socket.
    None,
    /// A directory's names.
    Dir {
        /// Run of [`TreeParts::entries`].
        entries: Span,
    },
    /// A symbolic link's target.
    Symlink {
        /// Run of [`TreeParts::bytes`].
        target: Span,
    },
}

/// One file of the source, however many names it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Its attributes.
    pub attr: Attr,
    /// What else there is, by kind.
    pub data: NodeData,
    /// Its extended attributes: a run of [`TreeParts::xattrs`].
    pub xattrs: Span,
}

/// One name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Run of [`TreeParts::bytes`].
    pub name: Span,
    /// Its file.
    pub file: FileId,
}

/// One extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xattr {
    /// Run of [`TreeParts::bytes`], with its prefix (`user.`, `trusted.`, ...).
    pub name: Span,
    /// Run of [`TreeParts::bytes`].
    pub value: Span,
}

/// The tables of a tree, not yet checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeParts {
    /// All inodes; the first is the root directory.
    pub inodes: Vec<Inode>,
    /// All names: those of one directory lie together, in strictly ascending order of bytes.
    pub entries: Vec<DirEntry>,
    /// All extended attributes: those of one inode lie together, in strictly ascending order.
    pub xattrs: Vec<Xattr>,
    /// Names, targets and values.
    pub bytes: Vec<u8>,
}

/// The metadata of a source, checked.
///
/// Invariants, which [`Tree::new`] establishes: inode 0 is a directory; every run is in its
/// table, and no two runs share an element; names are strictly ascending within a
/// directory; every directory but the root has exactly one name, and following parents from any of
/// them ends at the root; no path is longer than [`PATH_LIMIT`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    parts: TreeParts,
    /// By inode: the entry that first names it; [`NO_ENTRY`] for the root and for inodes that no
    /// directory names.
    first_entry: Vec<u32>,
    /// By inode: the directory that holds its first entry; the root's is the root.
    parent: Vec<FileId>,
    /// Names of files that have more than one, but for the first, sorted by file.
    further: Vec<Link>,
}

/// One of the names of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    file: FileId,
    entry: u32,
    dir: FileId,
}

const NO_ENTRY: u32 = u32::MAX;

impl Tree {
    /// Checks the tables and returns the tree they describe.
    ///
    /// # Errors
    /// The first rule that the tables break. Hostile tables cost time and memory in proportion to
    /// their size, no more.
    pub fn new(parts: TreeParts) -> Result<Self, TreeError> {
        if parts.inodes.len().max(parts.entries.len()) >= NO_ENTRY as usize {
            return Err(TreeError::TooMany);
        }
        if !matches!(parts.inodes.first(), Some(root) if root.attr.kind == NodeKind::Dir) {
            return Err(TreeError::Root);
        }
        let mut tree = Self {
            first_entry: vec![NO_ENTRY; parts.inodes.len()],
            parent: vec![FileId::ROOT; parts.inodes.len()],
            further: Vec::new(),
            parts,
        };
        tree.check()?;
        tree.further
            .sort_unstable_by_key(|link| (link.file, link.entry));
        Ok(tree)
    }

    /// Returns the tables.
    #[must_use]
    pub const fn parts(&self) -> &TreeParts {
        &self.parts
    }

    /// Returns the number of inodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.inodes.len()
    }

    /// Returns whether there is no inode, which never happens: there is a root.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.inodes.is_empty()
    }

    /// Returns every file, in order.
    pub fn files(&self) -> impl Iterator<Item = (FileId, &Inode)> {
        self.parts
            .inodes
            .iter()
            .enumerate()
            .map(|(i, inode)| (FileId(narrow(i)), inode))
    }

    /// Returns an inode.
    #[must_use]
    pub fn inode(&self, file: FileId) -> Option<&Inode> {
        self.parts.inodes.get(file.index())
    }

    /// Returns the file with the version it had when the tree was made.
    #[must_use]
    pub fn key(&self, file: FileId) -> Option<FileKey> {
        self.inode(file).map(|inode| FileKey {
            file,
            version: inode.attr.version(),
        })
    }

    /// Returns the names in a directory, sorted; nothing for other files.
    pub fn entries(&self, dir: FileId) -> impl ExactSizeIterator<Item = (&[u8], FileId)> {
        self.entry_span(dir)
            .iter()
            .map(|entry| (self.bytes(entry.name), entry.file))
    }

    /// Returns what `name` is in `dir`.
    #[must_use]
    pub fn child(&self, dir: FileId, name: &[u8]) -> Option<FileId> {
        let entries = self.entry_span(dir);
        let found = entries
            .binary_search_by(|entry| self.bytes(entry.name).cmp(name))
            .ok()?;
        Some(entries[found].file)
    }

    /// Returns the file that a path of names separated by `/` leads to from the root; symbolic
    /// links are not followed.
    #[must_use]
    pub fn resolve(&self, path: &[u8]) -> Option<FileId> {
        path.split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty())
            .try_fold(FileId::ROOT, |dir, name| self.child(dir, name))
    }

    /// Returns the target of a symbolic link.
    #[must_use]
    pub fn link_target(&self, link: FileId) -> Option<&[u8]> {
        match self.inode(link)?.data {
            NodeData::Symlink { target } => Some(self.bytes(target)),
            NodeData::Dir { .. } | NodeData::None => None,
        }
    }

    /// Returns the extended attributes of a file: names and values, sorted by name.
    pub fn xattrs(&self, file: FileId) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        let span = self
            .inode(file)
            .map_or(Span::default(), |inode| inode.xattrs);
        self.parts.xattrs[span.range()]
            .iter()
            .map(|xattr| (self.bytes(xattr.name), self.bytes(xattr.value)))
    }

    /// Returns one path of a file from the root, without a leading `/`: empty for the root, and
    /// `None` for an inode that no directory names. A file with several names has one path here.
    #[must_use]
    pub fn path(&self, file: FileId) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        let mut at = file;
        while at != FileId::ROOT {
            let (name, dir) = self.named(at)?;
            names.push(name);
            at = dir;
        }
        names.reverse();
        Some(names.join(&b'/'))
    }

    /// Returns the paths of all names of a file, the result of [`path`](Self::path) first, or `None`
    /// if there are more than [`LINKS_MAX`].
    #[must_use]
    pub fn paths(&self, file: FileId) -> Option<Vec<Vec<u8>>> {
        let start = self.further.partition_point(|link| link.file < file);
        let further = self.further[start..].iter();
        let further = further.take_while(|link| link.file == file).take(LINKS_MAX);
        let further = further.filter_map(|link| {
            let name = self.bytes(self.parts.entries.get(link.entry as usize)?.name);
            Some(match link.dir {
                FileId::ROOT => name.to_vec(),
                dir => [&*self.path(dir)?, name].join(&b'/'),
            })
        });
        let paths: Vec<_> = self.path(file).into_iter().chain(further).collect();
        (paths.len() <= LINKS_MAX).then_some(paths)
    }

    /// Returns an object that returns paths of files one after the other, in `budget` bytes for all of them
    /// together: the paths of a forged tree may add up to a million times its size.
    #[must_use]
    pub const fn paths_within(&self, budget: usize) -> Paths<'_> {
        Paths { tree: self, budget }
    }

    /// Returns the first name of a file, and the directory that has it.
    fn named(&self, file: FileId) -> Option<(&[u8], FileId)> {
        let entry = *self.first_entry.get(file.index())? as usize;
        let entry = self.parts.entries.get(entry)?;
        Some((self.bytes(entry.name), self.parent[file.index()]))
    }

    fn bytes(&self, span: Span) -> &[u8] {
        &self.parts.bytes[span.range()]
    }

    fn entry_span(&self, dir: FileId) -> &[DirEntry] {
        match self.inode(dir).map(|inode| inode.data) {
            Some(NodeData::Dir { entries }) => &self.parts.entries[entries.range()],
            _ => &[],
        }
    }

    fn wanted(&self, doing: &'static str, file: FileId) -> Result<&Inode, SourceError> {
        self.inode(file)
            .ok_or_else(|| SourceError::new(SourceErrorKind::NotFound, doing).about(file))
    }
}

/// Indices into a tree's tables fit 32 bits: [`Tree::new`] refuses larger tables.
#[expect(
    clippy::cast_possible_truncation,
    reason = "tables are bounded by Tree::new"
)]
const fn narrow(index: usize) -> u32 {
    index as u32
}

impl Namespace for Tree {
    fn lifetime(&self) -> Lifetime {
        Lifetime::Forever
    }

    fn lookup(&self, dir: FileId, name: &[u8]) -> Result<Option<FileId>, SourceError> {
        Ok(self.child(dir, name))
    }

    fn attr(&self, file: FileId) -> Result<Attr, SourceError> {
        Ok(self.wanted("reading the attributes", file)?.attr)
    }

    fn parent(&self, dir: FileId) -> Result<FileId, SourceError> {
        self.wanted("finding the parent", dir)?;
        Ok(self.parent[dir.index()])
    }

    fn path(&self, file: FileId) -> Option<Vec<u8>> {
        Self::path(self, file)
    }

    fn paths(&self, file: FileId) -> Option<Vec<Vec<u8>>> {
        Self::paths(self, file)
    }

    fn list(
        &self,
        dir: FileId,
        cursor: u64,
        visit: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<(), SourceError> {
        self.wanted("listing", dir)?;
        let entries = self.entry_span(dir);
        let from = usize::try_from(cursor)
            .unwrap_or(usize::MAX)
            .min(entries.len());
        for (index, entry) in entries.iter().enumerate().skip(from) {
            let kind = self.parts.inodes[entry.file.index()].attr.kind;
            let name = self.bytes(entry.name);
            let next = index as u64 + 1;
            if visit(EntryRef {
                name,
                file: entry.file,
                kind,
                next,
            })
            .is_break()
            {
                break;
            }
        }
        Ok(())
    }

    fn target(&self, link: FileId) -> Result<Vec<u8>, SourceError> {
        let doing = "reading the link";
        let missing = || SourceError::new(SourceErrorKind::NotFound, doing).about(link);
        self.link_target(link)
            .map(<[u8]>::to_vec)
            .ok_or_else(missing)
    }

    fn xattr(&self, file: FileId, name: &[u8]) -> Result<Option<Vec<u8>>, SourceError> {
        self.wanted("reading an attribute", file)?;
        Ok(self
            .xattrs(file)
            .find(|(n, _)| *n == name)
            .map(|(_, value)| value.to_vec()))
    }

    fn xattr_names(&self, file: FileId) -> Result<Vec<u8>, SourceError> {
        self.wanted("listing the attributes", file)?;
        let mut names = Vec::new();
        for (name, _) in self.xattrs(file) {
            names.extend_from_slice(name);
            names.push(0);
        }
        Ok(names)
    }

    fn generation(&self, file: FileId) -> Option<u32> {
        Some(self.inode(file)?.attr.generation())
    }

    fn has_xattrs(&self) -> bool {
        !self.parts.xattrs.is_empty()
    }

    fn has_access_lists(&self) -> bool {
        let mut names = self.parts.xattrs.iter().map(|xattr| self.bytes(xattr.name));
        names.any(|name| name == ACCESS_LIST)
    }
}
