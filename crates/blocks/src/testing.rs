//! Memory and faulty implementations of the seam traits, for tests of every crate.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

mod device;
mod written;

pub use device::MemDevice;
pub use written::MemFile;

use crate::{
    AllAttrs, Attr, AttrSource, BLOCK_SIZE, BlockCache, BlockIndex, BlockRange, BlockSource,
    Caller, DirEntry, Event, FileId, FileKey, Inode, Lookup, NodeData, NodeKind, Observer,
    SourceError, SourceErrorKind, Span, Tree, TreeError, TreeParts, Version, Xattr,
};

/// Files in memory: a source that is always right.
#[derive(Debug, Default)]
pub struct MemSource {
    files: HashMap<FileId, (Version, Vec<u8>)>,
    reads: AtomicU64,
}

impl MemSource {
    /// Adds a file in one version; an earlier one is replaced.
    pub fn insert(&mut self, key: FileKey, data: Vec<u8>) {
        self.files.insert(key.file, (key.version, data));
    }

    /// Returns how many reads were requested.
    pub fn reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }
}

impl BlockSource for MemSource {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        self.reads.fetch_add(1, Relaxed);
        let doing = "reading from memory";
        let Some((version, data)) = self.files.get(&file.file) else {
            return Err(SourceError::new(SourceErrorKind::NotFound, doing).about(file.file));
        };
        if *version != file.version {
            let stale = SourceErrorKind::Stale { now: *version };
            return Err(SourceError::new(stale, doing).about(file.file));
        }
        let start = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(data.len());
        let len = buf.len().min(data.len() - start);
        buf[..len].copy_from_slice(&data[start..start + len]);
        Ok(len)
    }
}

/// Attributes in memory: what the files of a source are at the moment.
#[derive(Debug, Default)]
pub struct MemAttrs(Mutex<HashMap<FileId, AllAttrs>>);

impl MemAttrs {
    /// Returns the attributes of all files of a tree.
    #[must_use]
    pub fn of(tree: &Tree) -> Self {
        let files = tree.files().map(|(file, inode)| {
            let xattrs = tree.xattrs(file);
            let xattrs = xattrs.map(|(name, value)| (name.to_vec(), value.to_vec()));
            let all = AllAttrs {
                attr: inode.attr,
                xattrs: xattrs.collect(),
            };
            (file, all)
        });
        Self(Mutex::new(files.collect()))
    }

    /// Changes the attributes of a file.
    pub fn change(&self, file: FileId, change: impl FnOnce(&mut AllAttrs)) {
        if let Ok(mut files) = self.0.lock()
            && let Some(all) = files.get_mut(&file)
        {
            change(all);
        }
    }

    /// Gives a file another version, and leaves it as it is but for that.
    pub fn set_version(&self, file: FileId, version: Version) {
        self.change(file, |all| {
            all.attr.size = version.size;
            all.attr.mtime = version.mtime;
            all.attr.ctime = version.ctime;
            all.attr.source_inode = version.inode;
        });
    }
}

impl AttrSource for MemAttrs {
    fn all_attrs(&self, file: FileId) -> Result<AllAttrs, SourceError> {
        let files = self.0.lock().ok();
        let found = files.and_then(|files| files.get(&file).cloned());
        found.ok_or_else(|| {
            SourceError::new(SourceErrorKind::NotFound, "remembering attributes").about(file)
        })
    }
}

/// Blocks in memory: a cache with given content.
#[derive(Debug, Default)]
pub struct MemCache {
    blocks: Mutex<HashMap<(FileKey, BlockIndex), Vec<u8>>>,
}

impl BlockCache for MemCache {
    fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        let Ok(cached) = self.blocks.lock() else {
            return Lookup::Throttled;
        };
        let here = range
            .iter()
            .take_while(|block| cached.contains_key(&(*file, *block)))
            .count();
        if here == 0 {
            let absent = range
                .iter()
                .take_while(|b| !cached.contains_key(&(*file, *b)))
                .count();
            return Lookup::Miss {
                blocks: absent as u64,
            };
        }
        for (block, chunk) in range
            .iter()
            .take(here)
            .zip(out.chunks_exact_mut(BLOCK_SIZE))
        {
            chunk.copy_from_slice(&cached[&(*file, block)]);
        }
        Lookup::Hit {
            blocks: here as u64,
        }
    }

    fn put(&self, file: &FileKey, range: BlockRange, data: &[u8]) {
        let Ok(mut cached) = self.blocks.lock() else {
            return;
        };
        for (block, chunk) in range.iter().zip(data.chunks_exact(BLOCK_SIZE)) {
            cached.insert((*file, block), chunk.to_vec());
        }
    }
}

/// What a [`Faulty`] does when its patience is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A source fails; a cache misses everything.
    Fail,
    /// A source times out; a cache declines.
    Busy,
}

/// Works like the wrapped object for a number of calls, then every call fails.
#[derive(Debug)]
pub struct Faulty<T> {
    inner: T,
    fault: Fault,
    calls_left: AtomicU64,
}

impl<T> Faulty<T> {
    /// Returns `inner` as something that fails after `calls` calls.
    pub const fn new(inner: T, fault: Fault, calls: u64) -> Self {
        Self {
            inner,
            fault,
            calls_left: AtomicU64::new(calls),
        }
    }

    fn works(&self) -> bool {
        self.calls_left
            .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1))
            .is_ok()
    }
}

impl<S: BlockSource> BlockSource for Faulty<S> {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        if self.works() {
            return self.inner.read_at(file, offset, buf);
        }
        // What a failed read leaves in the buffer must never be used: make it show.
        buf.fill(0xEE);
        let kind = match self.fault {
            Fault::Fail => SourceErrorKind::Io,
            Fault::Busy => SourceErrorKind::TimedOut,
        };
        Err(SourceError::new(kind, "reading on purpose in vain").about(file.file))
    }
}

impl<C: BlockCache> BlockCache for Faulty<C> {
    fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        if self.works() {
            return self.inner.get(file, range, out);
        }
        out.fill(0xEE);
        match self.fault {
            Fault::Fail => Lookup::Miss {
                blocks: range.len(),
            },
            Fault::Busy => Lookup::Throttled,
        }
    }

    fn put(&self, file: &FileKey, range: BlockRange, data: &[u8]) {
        if self.works() {
            self.inner.put(file, range, data);
        }
    }
}

/// Remembers every event in order.
#[derive(Debug, Default)]
pub struct MemObserver {
    events: Mutex<Vec<(Caller, Event)>>,
}

impl MemObserver {
    /// Removes and returns the recorded events.
    pub fn take(&self) -> Vec<(Caller, Event)> {
        self.events
            .lock()
            .map(|mut events| std::mem::take(&mut *events))
            .unwrap_or_default()
    }
}

impl Observer for MemObserver {
    fn note(&self, caller: Caller, event: Event, _took: Duration) {
        if let Ok(mut events) = self.events.lock() {
            events.push((caller, event));
        }
    }
}

/// A file to put in a tree with [`tree`].
#[derive(Clone, Debug)]
pub struct Node {
    /// Attributes; `kind` decides what the rest means.
    pub attr: Attr,
    /// The names in a directory, in any order, with their files (indices of the list given to
    /// [`tree`]).
    pub names: Vec<(Vec<u8>, u32)>,
    /// The target of a symbolic link.
    pub target: Vec<u8>,
    /// Extended attributes, in any order.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Node {
    /// Returns a node of `kind` with plain attributes.
    #[must_use]
    pub fn new(kind: NodeKind) -> Self {
        Self {
            attr: attr(kind),
            names: Vec::new(),
            target: Vec::new(),
            xattrs: Vec::new(),
        }
    }

    /// Returns a regular file of `size` bytes.
    #[must_use]
    pub fn file(size: u64) -> Self {
        let mut node = Self::new(NodeKind::File);
        node.attr.size = size;
        node.attr.blocks = size.div_ceil(512);
        node
    }

    /// Returns a directory with these names.
    #[must_use]
    pub fn dir(names: &[(&str, u32)]) -> Self {
        let mut node = Self::new(NodeKind::Dir);
        node.names = names
            .iter()
            .map(|(name, file)| (name.as_bytes().to_vec(), *file))
            .collect();
        node
    }

    /// Returns a symbolic link.
    #[must_use]
    pub fn symlink(target: &str) -> Self {
        let mut node = Self::new(NodeKind::Symlink);
        node.target = target.as_bytes().to_vec();
        node.attr.size = target.len() as u64;
        node
    }
}

/// Returns plain attributes for a file of `kind`.
#[must_use]
pub fn attr(kind: NodeKind) -> Attr {
    Attr {
        kind,
        perm: if kind == NodeKind::Dir { 0o755 } else { 0o644 },
        uid: 0,
        gid: 0,
        nlink: 1,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: crate::Timestamp::default(),
        mtime: crate::Timestamp::default(),
        ctime: crate::Timestamp::default(),
        source_inode: 0,
    }
}

/// Makes a tree of nodes; the first is the root.
///
/// # Errors
/// If the nodes do not make a tree.
pub fn tree(nodes: &[Node]) -> Result<Tree, TreeError> {
    let mut parts = TreeParts::default();
    for (index, node) in nodes.iter().enumerate() {
        let data = match node.attr.kind {
            NodeKind::Dir => NodeData::Dir {
                entries: push_names(&mut parts, &node.names),
            },
            NodeKind::Symlink => NodeData::Symlink {
                target: push_bytes(&mut parts.bytes, &node.target),
            },
            _ => NodeData::None,
        };
        let xattrs = push_xattrs(&mut parts, &node.xattrs);
        let mut attr = node.attr;
        if attr.source_inode == 0 {
            attr.source_inode = 1000 + index as u64;
        }
        parts.inodes.push(Inode { attr, data, xattrs });
    }
    Tree::new(parts)
}

fn push_names(parts: &mut TreeParts, names: &[(Vec<u8>, u32)]) -> Span {
    let mut names = names.to_vec();
    names.sort();
    let start = parts.entries.len();
    for (name, file) in names {
        let name = push_bytes(&mut parts.bytes, &name);
        parts.entries.push(DirEntry {
            name,
            file: FileId(file),
        });
    }
    span(start, parts.entries.len())
}

fn push_xattrs(parts: &mut TreeParts, xattrs: &[(Vec<u8>, Vec<u8>)]) -> Span {
    let mut xattrs = xattrs.to_vec();
    xattrs.sort();
    let start = parts.xattrs.len();
    for (name, value) in xattrs {
        let name = push_bytes(&mut parts.bytes, &name);
        let value = push_bytes(&mut parts.bytes, &value);
        parts.xattrs.push(Xattr { name, value });
    }
    span(start, parts.xattrs.len())
}

fn push_bytes(bytes: &mut Vec<u8>, more: &[u8]) -> Span {
    let start = bytes.len();
    bytes.extend_from_slice(more);
    span(start, bytes.len())
}

#[expect(clippy::cast_possible_truncation, reason = "trees of tests are small")]
const fn span(start: usize, end: usize) -> Span {
    Span {
        start: start as u32,
        len: (end - start) as u32,
    }
}
