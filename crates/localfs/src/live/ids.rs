//! The inode of each id, and its known names.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use blocks::{Attr, FileId, Namespace, NodeKind, Timestamp, Tree, Version};
use rawio::stat::Stat;

use crate::attr::attr_of;
use crate::disk_inode::DiskInode;

/// Names that are remembered of a file with several; the oldest is forgotten first.
const NAMES: usize = 8;

/// Ids that an inode had before its present one and that stay known, for those who have it open by
/// one of them. It gets a new one each time that its mode, owner or name changes.
const EARLIER_IDS: u32 = 8;

/// Longest path that is put together, in bytes. Far beyond what any program opens; it ends the
/// walk where outdated names make directories each other's parents.
const PATH_LIMIT: usize = 1 << 20;

/// A name in a directory.
type ParentAndName = (FileId, Box<[u8]>);

#[derive(Debug)]
struct Known {
    disk: DiskInode,
    /// The version when a name last led to it.
    version: Version,
    /// The most rights of each user by the attributes that were answered; `None` before the
    /// first, and for all but regular files.
    allowed: Option<Attr>,
    /// The access list that was answered, if it was requested.
    list: Option<ShownList>,
    /// Whether a user has fewer rights on the inode now than under this id.
    revoked: bool,
    /// How many ids the inode had before this one.
    earlier: u32,
    /// The latest last.
    places: Vec<ParentAndName>,
}

/// An access list that a kernel may go by.
#[derive(Debug)]
struct ShownList {
    /// `None` if there was none.
    list: Option<Vec<u8>>,
    /// The time of change of the file that surely has this list.
    changed: Timestamp,
}

/// What an inode at one of the names of a file is to that file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// It is the file.
    Same,
    /// It is the file, and a user has fewer rights on it than by the attributes that were answered
    /// under this id.
    Revoked,
    /// It is another file.
    Other,
}

/// All ids that were assigned and may still be requested.
pub(super) struct Ids {
    tree: Arc<Tree>,
    /// Files of the tree that were not met yet, by inode number. Numbers that several files have
    /// (on different devices) are not here: those files are recognised by their names.
    unmet: HashMap<u64, FileId>,
    met: HashMap<DiskInode, FileId>,
    known: HashMap<FileId, Known>,
    /// The next new id; `None` when all were used up.
    next: Option<u32>,
    /// How many ids may be known before the gone ones are searched.
    limit: usize,
    /// The least that `limit` may be.
    least: usize,
}

impl Ids {
    /// Returns the ids of the files of a tree, which is that of the directory `root`. Up to
    /// `patience` more are remembered before the gone ones are searched.
    pub(super) fn new(tree: Arc<Tree>, root: DiskInode, patience: usize) -> Self {
        let mut unmet = HashMap::with_capacity(tree.len());
        let mut shared = Vec::new();
        for (file, inode) in tree.files().skip(1) {
            if unmet.insert(inode.attr.source_inode, file).is_some() {
                shared.push(inode.attr.source_inode);
            }
        }
        for inode in shared {
            unmet.remove(&inode);
        }
        let known = Known {
            disk: root,
            version: Version::default(),
            allowed: None,
            list: None,
            revoked: false,
            earlier: 0,
            places: Vec::new(),
        };
        Self {
            unmet,
            met: HashMap::from([(root, FileId::ROOT)]),
            known: HashMap::from([(FileId::ROOT, known)]),
            next: u32::try_from(tree.len()).ok(),
            limit: tree.len() + patience,
            least: tree.len() + patience,
            tree,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns the names by which a file may be found, the likeliest first; none if it was never
    /// found, or is the root.
    pub(super) fn places(&self, file: FileId) -> Vec<(FileId, Vec<u8>)> {
        match self.known.get(&file) {
            Some(known) => {
                let latest_first = known.places.iter().rev();
                latest_first
                    .map(|(dir, name)| (*dir, name.to_vec()))
                    .collect()
            }
            None => self.tree_place(file).into_iter().collect(),
        }
    }

    fn place(&self, file: FileId) -> Option<(FileId, Vec<u8>)> {
        match self.known.get(&file) {
            Some(known) => known.places.last().map(|(dir, name)| (*dir, name.to_vec())),
            None => self.tree_place(file),
        }
    }

    /// Where the tree has the first name of a file.
    fn tree_place(&self, file: FileId) -> Option<(FileId, Vec<u8>)> {
        let path = self.tree.path(file).filter(|path| !path.is_empty())?;
        let name = path.rsplit(|byte| *byte == b'/').next()?.to_vec();
        Some((self.tree.parent(file).ok()?, name))
    }

    pub(super) fn parent(&self, dir: FileId) -> Option<FileId> {
        if dir == FileId::ROOT {
            return Some(dir);
        }
        self.place(dir).map(|(parent, _)| parent)
    }

    pub(super) fn path(&self, file: FileId) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        let mut len = 0;
        let mut at = file;
        while at != FileId::ROOT {
            let (dir, name) = self.place(at)?;
            len += name.len() + 1;
            if len > PATH_LIMIT {
                return None;
            }
            names.push(name);
            at = dir;
        }
        names.reverse();
        Some(names.join(&b'/'))
    }

    /// Returns whether the file found under one of a file's names is that file.
    pub(super) fn identify(
        &mut self,
        file: FileId,
        stat: &Stat,
        dir: FileId,
        name: &[u8],
    ) -> Identity {
        let same = match self.known.get(&file) {
            Some(known) => known.disk == DiskInode::of(stat),
            // Files of the tree are recognised when they are first asked for.
            None => self.meet(stat, dir, name) == Some(file),
        };
        if !same {
            return Identity::Other;
        }
        match self
            .known
            .get_mut(&file)
            .is_some_and(|known| known.tell(stat))
        {
            true => Identity::Same,
            false => Identity::Revoked,
        }
    }

    /// Records the access list that was answered for a file last changed at `changed`.
    pub(super) fn told_list(&mut self, file: FileId, list: Option<&[u8]>, changed: Timestamp) {
        let Some(known) = self.known.get_mut(&file) else {
            return;
        };
        match &known.list {
            Some(told) if told.list.as_deref() != list => known.revoked = true,
            Some(_) => (),
            None => {
                let list = list.map(<[u8]>::to_vec);
                known.list = Some(ShownList { list, changed });
            }
        }
    }

    /// Returns whether the access list of a file must be read again: it may differ from the one that
    /// was answered.
    pub(super) fn may_have_another_list(&self, file: FileId, changed: Timestamp) -> bool {
        let told = self.known.get(&file).and_then(|known| known.list.as_ref());
        told.is_some_and(|told| told.changed != changed)
    }

    /// Records the access list of a file last changed at `changed`. Returns whether it is the one that
    /// was answered.
    pub(super) fn has_list(
        &mut self,
        file: FileId,
        list: Option<&[u8]>,
        changed: Timestamp,
    ) -> bool {
        let Some(known) = self.known.get_mut(&file) else {
            return false;
        };
        match &mut known.list {
            Some(told) if told.list.as_deref() == list => told.changed = changed,
            Some(_) => known.revoked = true,
            None => (),
        }
        !known.revoked
    }

    /// Returns the id of an inode that was found as `name` in `dir`; a new one if it is unknown,
    /// and `None` if there is none left.
    pub(super) fn meet(&mut self, stat: &Stat, dir: FileId, name: &[u8]) -> Option<FileId> {
        let disk = DiskInode::of(stat);
        let known = self.met.get(&disk).copied();
        let goes_on = |file: &FileId| !self.changed_unseen(*file, stat) && self.tell(*file, stat);
        let file = match known.filter(goes_on) {
            Some(file) => file,
            None => self.introduce(disk, stat, dir, name)?,
        };
        if file != FileId::ROOT {
            self.note_place(file, dir, name);
        }
        Some(file)
    }

    /// Notes that the attributes of a file are told. Returns whether that is possible under its id:
    /// a kernel goes by those that it was told first for a while, and whoever has the file open
    /// never looks at others.
    fn tell(&mut self, file: FileId, stat: &Stat) -> bool {
        let known = self.known.get_mut(&file);
        known.is_none_or(|known| known.tell(stat))
    }

    /// Notes the version of a file that a name led to. Returns whether it is one that a kernel
    /// would take for the last: it drops the pages of a file whose size or time of modification
    /// is another, but that time can be put back after a write. Only the time of change tells,
    /// which it does not look at. Under another id it has no pages, and so no old ones.
    fn changed_unseen(&mut self, file: FileId, stat: &Stat) -> bool {
        let (Some(known), Some(attr)) = (self.known.get_mut(&file), attr_of(stat)) else {
            return false;
        };
        let (last, now) = (known.version, attr.version());
        known.version = now;
        let looks_alike = last.size == now.size && last.mtime == now.mtime;
        attr.kind == NodeKind::File && looks_alike && last.ctime != now.ctime
    }

    fn introduce(
        &mut self,
        disk: DiskInode,
        stat: &Stat,
        dir: FileId,
        name: &[u8],
    ) -> Option<FileId> {
        let by_number = self.unmet.get(&stat.inode).copied();
        let by_name = || self.tree.child(dir, name);
        let old = by_number.or_else(by_name);
        let file = match old.filter(|file| self.may_be(*file, stat)) {
            Some(file) => {
                self.unmet.remove(&stat.inode);
                file
            }
            None => {
                let new = self.next?;
                self.next = new.checked_add(1);
                FileId(new)
            }
        };
        let version = attr_of(stat).map(|attr| attr.version());
        let before = self.latest(&disk);
        let known = Known {
            disk,
            version: version.unwrap_or_default(),
            allowed: attr_of(stat).filter(|attr| attr.kind == NodeKind::File),
            list: None,
            revoked: false,
            earlier: before.map_or(0, |before| before.earlier.saturating_add(1)),
            places: Vec::new(),
        };
        self.known.insert(file, known);
        self.met.insert(disk, file);
        Some(file)
    }

    fn latest(&self, disk: &DiskInode) -> Option<&Known> {
        self.known.get(self.met.get(disk)?)
    }

    /// Returns whether the inode goes by another id by now, and did by several since this one.
    fn is_outdated(&self, file: FileId) -> bool {
        let known = self.known.get(&file);
        known.is_some_and(|known| {
            let latest = self.latest(&known.disk);
            latest.is_some_and(|latest| latest.earlier.saturating_sub(known.earlier) > EARLIER_IDS)
        })
    }

    /// Returns whether a file of the tree that was not met yet may be this inode: the number may
    /// have been given to another file since, but that one was born after the scan saw the first.
    fn may_be(&self, file: FileId, stat: &Stat) -> bool {
        let Some(inode) = self.tree.inode(file) else {
            return false;
        };
        let seen = (inode.attr.ctime.secs, inode.attr.ctime.nanos);
        !self.known.contains_key(&file)
            && inode.attr.source_inode == stat.inode
            && attr_of(stat).is_some_and(|attr| attr.kind == inode.attr.kind)
            && stat.birth.is_none_or(|birth| birth <= seen)
    }

    fn note_place(&mut self, file: FileId, dir: FileId, name: &[u8]) {
        let Some(known) = self.known.get_mut(&file) else {
            return;
        };
        if known
            .places
            .last()
            .is_some_and(|last| last.0 == dir && *last.1 == *name)
        {
            return;
        }
        known
            .places
            .retain(|place| place.0 != dir || *place.1 != *name);
        let names = if known.disk.kind == Some(NodeKind::Dir) {
            1
        } else {
            NAMES
        };
        if known.places.len() >= names {
            known.places.remove(0);
        }
        known.places.push((dir, name.into()));
    }

    /// Returns the files to look for, if so many are known that some are probably gone. The
    /// caller looks for them, and [`forgets`](Self::forget) those that are. Outdated ids are
    /// removed at once: a look-up would find the file, by each of them.
    pub(super) fn take_forgettable(&mut self) -> Vec<FileId> {
        if self.known.len() <= self.limit {
            return Vec::new();
        }
        let new = self
            .known
            .keys()
            .filter(|file| file.index() >= self.tree.len());
        let (outdated, rest): (Vec<_>, Vec<_>) =
            new.copied().partition(|file| self.is_outdated(*file));
        // Raises the limit as well. Before the look: other threads must not begin one meanwhile.
        self.forget(&outdated);
        rest
    }

    /// Forgets files beyond those of the tree; their ids stay used up.
    pub(super) fn forget(&mut self, files: &[FileId]) {
        for file in files {
            let Some(known) = self.known.remove(file) else {
                continue;
            };
            // The inode may go by another id by now.
            if self.met.get(&known.disk) == Some(file) {
                self.met.remove(&known.disk);
            }
        }
        // Twice what is left, so that a look at all of it is paid by as many new files.
        self.limit = (self.known.len() * 2).max(self.least);
    }
}

impl Known {
    /// Notes that these attributes are told. Returns whether they take nothing from anybody.
    fn tell(&mut self, stat: &Stat) -> bool {
        if let (Some(allowed), Some(attr)) = (&mut self.allowed, attr_of(stat)) {
            if attr.give_all_rights_of(allowed) {
                *allowed = attr;
            } else {
                self.revoked = true;
            }
        }
        !self.revoked
    }
}

impl fmt::Debug for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ids")
            .field("known", &self.known.len())
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocks::testing::{Node, tree};

    const FILE: u32 = 0o100_644;
    const DIR: u32 = 0o040_755;

    /// What a file system that keeps no times of birth says of an inode.
    fn stat(minor: u32, inode: u64, mode: u32) -> Stat {
        Stat {
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            inode,
            device: (0, minor),
            rdev: (0, 0),
            size: 0,
            blocks: 0,
            atime: (0, 0),
            mtime: (0, 0),
            ctime: (0, 0),
            birth: None,
            mount: None,
        }
    }

    /// A scanned root with these files, whose ids begin at 1, as they were on the disk.
    fn ids(files: &[(&str, NodeKind, u64)]) -> Ids {
        let names: Vec<_> = files.iter().map(|file| file.0).zip(1..).collect();
        let mut nodes = vec![Node::dir(&names)];
        nodes.extend(files.iter().map(|(_, kind, inode)| {
            let mut node = Node::new(*kind);
            node.attr.source_inode = *inode;
            node
        }));
        let root = DiskInode::of(&stat(1, 2, DIR));
        Ids::new(Arc::new(tree(&nodes).unwrap()), root, 100)
    }

    #[test]
    fn a_number_that_went_to_another_kind_of_file_is_not_the_file_of_the_scan() {
        let mut ids = ids(&[("f", NodeKind::File, 7)]);
        let mut meet = |mode| ids.meet(&stat(1, 7, mode), FileId::ROOT, b"f");
        assert_eq!(meet(DIR), Some(FileId(2)));
        assert_eq!(meet(FILE), Some(FileId(1)));
    }

    /// The roots of all btrfs subvolumes have the number 256, each on a device of its own.
    #[test]
    fn a_file_that_took_the_name_of_one_with_its_number_is_not_that_one() {
        let mut ids = ids(&[("a", NodeKind::Dir, 256), ("b", NodeKind::Dir, 256)]);
        let mut meet = |minor, name: &[u8]| ids.meet(&stat(minor, 256, DIR), FileId::ROOT, name);
        assert_eq!(meet(1, b"a"), Some(FileId(1)));
        // Moved over the name before it was ever looked up under its own.
        assert_eq!(meet(2, b"a"), Some(FileId(3)));
        assert_eq!(meet(1, b"elsewhere"), Some(FileId(1)));
    }

    #[test]
    fn a_file_that_changes_unseen_for_ever_has_a_bounded_number_of_ids() {
        let mut ids = ids(&[("f", NodeKind::File, 7)]);
        let mut given = Vec::new();
        for secs in 0..10_000 {
            let changed = Stat {
                ctime: (secs, 0),
                ..stat(1, 7, FILE)
            };
            let file = ids.meet(&changed, FileId::ROOT, b"f").unwrap();
            assert!(given.last().is_none_or(|last| *last < file));
            given.push(file);
            let rest = ids.take_forgettable();
            assert!(rest.len() <= 9, "{rest:?}");
            // The limit of this test is 100 files more than the tree has.
            assert!(ids.len() <= 102);
        }
        let latest = given.iter().rev().take(9);
        assert!(latest.clone().all(|file| !ids.places(*file).is_empty()));
        assert!(!ids.places(FileId(1)).is_empty(), "a file of the scan");
    }
}
