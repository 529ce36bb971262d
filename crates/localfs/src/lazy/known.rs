//! The files found so far: ids, attributes, and their names.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use blocks::{Attr, FileId, LINKS_MAX, NodeKind};
use rawio::stat::Stat;

use crate::attr::attr_of;
use crate::disk_inode::DiskInode;

/// A file, and where it was first met.
struct Node {
    attr: Attr,
    /// The root is its own parent.
    dir: FileId,
    name: Arc<[u8]>,
    /// The access list, or that there is none, if it was requested: the kernel checked opens by it.
    list: Option<Option<Vec<u8>>>,
}

/// A name, and the directory that has it.
type Name = (FileId, Arc<[u8]>);

pub(super) struct Known {
    /// By id. Nothing is ever forgotten: an id that the kernel has must stay good.
    nodes: Vec<Node>,
    names: HashMap<FileId, HashMap<Arc<[u8]>, FileId>>,
    /// Files with several names.
    linked: HashMap<DiskInode, FileId>,
    /// The names of these, and the directories that have them, but for the first that was met.
    further: HashMap<FileId, Vec<Name>>,
}

impl Known {
    /// Returns the state with only the root.
    pub(super) fn new(root: Attr) -> Self {
        let root = Node {
            attr: root,
            dir: FileId::ROOT,
            name: Arc::default(),
            list: None,
        };
        Self {
            nodes: vec![root],
            names: HashMap::new(),
            linked: HashMap::new(),
            further: HashMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn attr(&self, file: FileId) -> Option<Attr> {
        Some(self.nodes.get(file.index())?.attr)
    }

    /// Returns the access list of a file, or that it has none, if it was requested before.
    pub(super) fn access_list(&self, file: FileId) -> Option<Option<Vec<u8>>> {
        self.nodes.get(file.index())?.list.clone()
    }

    /// Records the access list of a file, and returns the one to answer: the first that was requested.
    pub(super) fn note_access_list(
        &mut self,
        file: FileId,
        list: Option<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        match self.nodes.get_mut(file.index()) {
            Some(node) => node.list.get_or_insert(list).clone(),
            None => list,
        }
    }

    pub(super) fn dir_of(&self, file: FileId) -> Option<FileId> {
        Some(self.nodes.get(file.index())?.dir)
    }

    pub(super) fn path(&self, file: FileId) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        let mut at = file;
        // Directories are met before what is in them, so the way up ends at the root.
        while at != FileId::ROOT {
            let node = self.nodes.get(at.index())?;
            names.push(&*node.name);
            at = node.dir;
        }
        names.reverse();
        Some(names.join(&b'/'))
    }

    /// Returns the paths of all known names of a file, the first one first, or `None` if there
    /// are more than [`LINKS_MAX`].
    pub(super) fn paths(&self, file: FileId) -> Option<Vec<Vec<u8>>> {
        let further = self.further.get(&file).into_iter().flatten();
        let further = further.take(LINKS_MAX).filter_map(|(dir, name)| {
            Some(match *dir {
                FileId::ROOT => name.to_vec(),
                dir => [&*self.path(dir)?, name].join(&b'/'),
            })
        });
        let paths: Vec<_> = self.path(file).into_iter().chain(further).collect();
        (paths.len() <= LINKS_MAX).then_some(paths)
    }

    /// Returns the file that was met as this one under another name.
    pub(super) fn linked(&self, stat: &Stat) -> Option<FileId> {
        self.linked.get(&DiskInode::of(stat)).copied()
    }

    /// Returns what `name` was found to be in `dir`.
    pub(super) fn child(&self, dir: FileId, name: &[u8]) -> Option<FileId> {
        self.names.get(&dir)?.get(name).copied()
    }

    /// Returns the id of the file found as `name` in `dir`; `None` if there is none left. It is
    /// `linked`, if the file has that id under another name. If another thread was faster, its
    /// result is used.
    pub(super) fn meet(
        &mut self,
        dir: FileId,
        name: &[u8],
        stat: &Stat,
        linked: Option<FileId>,
    ) -> Option<FileId> {
        if let Some(known) = self.child(dir, name) {
            return Some(known);
        }
        let attr = attr_of(stat)?;
        let has_names = attr.nlink > 1 && attr.kind != NodeKind::Dir;
        let name: Arc<[u8]> = name.into();
        let file = match linked.filter(|_| has_names) {
            Some(file) => {
                let names = self.further.entry(file).or_default();
                names.push((dir, Arc::clone(&name)));
                file
            }
            None => {
                let file = FileId(u32::try_from(self.nodes.len()).ok()?);
                let name = Arc::clone(&name);
                let list = None;
                self.nodes.push(Node {
                    attr,
                    dir,
                    name,
                    list,
                });
                if has_names {
                    self.linked.insert(DiskInode::of(stat), file);
                }
                file
            }
        };
        self.names.entry(dir).or_default().insert(name, file);
        Some(file)
    }
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known")
            .field("files", &self.nodes.len())
            .finish_non_exhaustive()
    }
}
