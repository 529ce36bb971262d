//! Entries of a tar put into a draft, by the rules by which [`Writer`](super::super::write::Writer)
//! makes files of them.

use std::io;

use blocks::{Attr, NodeKind, Timestamp, Tree, TreeError};

use super::super::attributes::is_kept;
use super::super::entry::{Entry, Kind};
use super::super::limits::Spent;
use super::super::root::{DEPTH_MAX, TOO_DEEP, clean, split};
use super::super::write::{Marker, OPAQUE_XATTR, XATTR_VALUE_MAX};
use super::super::{Devices, Limits, TarError};
use super::draft::{Draft, Node, NodeId, TOP, plain};

/// Bytes of memory for a name in a directory, beside its own: its place in the directory's table, and
/// what the allocator adds.
const NAME_BYTES: usize = 80;
/// Bytes of memory for the table of a directory, which has places for eleven names from the first on.
const DIR_BYTES: usize = 400;
/// Bytes of memory for what the content of a file became: a list of chunks, with places for four.
const CONTENT_BYTES: usize = 144;
/// Bytes of memory for an extended attribute, beside its own, with the table that it is in.
const XATTR_BYTES: usize = 640;
/// Links that are followed on the way to one file: as many as the kernel follows.
const LINKS_MAX: u32 = 40;
/// The kernel's bound for names of attributes.
const XATTR_NAME_MAX: usize = 255;
const TARGET_MAX: usize = 4095;

pub(super) struct Filler<C> {
    draft: Draft<C>,
    limits: Limits,
    spent: Spent,
}

impl<C> Filler<C> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            draft: Draft::new(),
            limits,
            spent: Spent::new(limits),
        }
    }

    /// Adds an entry; `content` is called if it has one.
    pub(super) fn add(
        &mut self,
        entry: &Entry,
        content: &mut dyn FnMut() -> io::Result<C>,
    ) -> Result<(), TarError> {
        self.spent.entry()?;
        let path = clean(&entry.name)?;
        self.spent.names(path.len() + entry.target.len())?;
        let (parent, name) = split(&path);
        match Marker::of(name)? {
            Some(marker) => return self.mark(parent, marker),
            None if path.is_empty() && entry.kind != Kind::Directory => {
                return Err(TarError::Rule("its root is not a directory"));
            }
            None if path.is_empty() => return self.describe(TOP, entry),
            None => {}
        }
        let parent = self.dir(parent, Missing::IsMade)?;
        let parent = parent.ok_or(TarError::Rule("names have a directory"))?;
        let opaque = self.make_room(parent, name, entry.kind)?;
        if entry.kind == Kind::HardLink {
            let linked = self.linked(&entry.target)?;
            self.name(parent, name, linked)?;
            return Ok(()); // its file was described already
        }
        let id = match self.draft.node(parent).names.get(name) {
            Some(dir) => *dir,
            None => {
                let mut node = Node::new(self.attr(entry)?);
                if entry.kind == Kind::File {
                    self.spent.memory(CONTENT_BYTES)?;
                    node.content = Some(content()?);
                }
                if entry.kind == Kind::Symlink {
                    self.spent.memory(entry.target.len())?;
                    node.target.clone_from(&entry.target);
                }
                self.add_named(parent, name, node)?
            }
        };
        self.describe(id, entry)?;
        if opaque {
            self.make_opaque(id);
        }
        Ok(())
    }

    /// Returns the tree and its contents.
    pub(super) fn finish(self) -> Result<(Tree, Vec<C>), TreeError> {
        self.draft.finish()
    }

    /// Adds a file, and gives it a name.
    fn add_named(&mut self, dir: NodeId, name: &[u8], node: Node<C>) -> Result<NodeId, TarError> {
        let table = if node.is_dir() { DIR_BYTES } else { 0 };
        self.spent.memory(size_of::<Node<C>>() + table)?;
        let id = self.draft.add(node);
        self.name(dir, name, id)?;
        Ok(id)
    }

    fn name(&mut self, dir: NodeId, name: &[u8], id: NodeId) -> Result<(), TarError> {
        self.spent.memory(name.len() + NAME_BYTES)?;
        self.draft.node_mut(dir).names.insert(name.to_vec(), id);
        Ok(())
    }

    fn make_opaque(&mut self, dir: NodeId) {
        let name = OPAQUE_XATTR.to_bytes().to_vec();
        self.draft.node_mut(dir).xattrs.insert(name, b"y".to_vec());
    }

    /// Notes what the tar says of lower layers.
    fn mark(&mut self, parent: &[u8], marker: Marker<'_>) -> Result<(), TarError> {
        let hidden = match marker {
            Marker::Nothing => return Ok(()),
            Marker::Opaque => None,
            Marker::Deleted(name) => Some(name),
        };
        let dir = self.dir(parent, Missing::IsMade)?;
        let dir = dir.ok_or(TarError::Rule("names have a directory"))?;
        let Some(name) = hidden else {
            self.make_opaque(dir);
            return Ok(());
        };
        match self.draft.node(dir).names.get(name).copied() {
            None => {
                let node = Node::new(plain(NodeKind::CharDevice, 0o600));
                self.add_named(dir, name, node)?;
            }
            // This layer has deleted it and made it anew: only what lies below is hidden.
            Some(id) if self.draft.node(id).is_dir() => self.make_opaque(id),
            Some(_) => {}
        }
        Ok(())
    }

    /// Removes what a new entry replaces; returns whether it must be opaque.
    fn make_room(&mut self, dir: NodeId, name: &[u8], kind: Kind) -> Result<bool, TarError> {
        let Some(found) = self.draft.node(dir).names.get(name).copied() else {
            return Ok(false);
        };
        let node = self.draft.node(found);
        let is_directory = kind == Kind::Directory;
        if node.is_dir() && is_directory {
            return Ok(false);
        }
        if !node.names.is_empty() {
            return Err(TarError::Rule(
                "an entry replaces a directory of the same layer that is not empty",
            ));
        }
        let opaque = is_directory && node.is_whiteout();
        self.draft.node_mut(dir).names.remove(name);
        Ok(opaque)
    }

    /// Returns the file that a hard link leads to.
    fn linked(&mut self, target: &[u8]) -> Result<NodeId, TarError> {
        let path = clean(target)?;
        let missing = || TarError::HardLink {
            target: String::from_utf8_lossy(&path).chars().take(200).collect(),
        };
        let (parent, name) = split(&path);
        let dir = self.dir(parent, Missing::IsNothing)?.ok_or_else(missing)?;
        let id = self.draft.node(dir).names.get(name).copied();
        let id = id.ok_or_else(missing)?;
        match self.draft.node(id).is_dir() {
            true => Err(TarError::Rule("a directory has two names")),
            false => Ok(id),
        }
    }

    /// Finds a directory; links on the way are followed as if the layer were the root.
    fn dir(&mut self, path: &[u8], missing: Missing) -> Result<Option<NodeId>, TarError> {
        let mut way = vec![TOP];
        // What is still to go, the next part last; whether a link said it.
        let mut rest: Vec<(Vec<u8>, bool)> = Vec::new();
        let push = |rest: &mut Vec<(Vec<u8>, bool)>, path: &[u8], by_link| {
            let parts = path.split(|byte| *byte == b'/').rev();
            rest.extend(parts.map(|part| (part.to_vec(), by_link)));
        };
        push(&mut rest, path, false);
        let mut links = 0;
        while let Some((part, by_link)) = rest.pop() {
            // Links lead deeper than any one name does.
            if way.len() > DEPTH_MAX {
                return Err(TOO_DEEP);
            }
            let at = way.last().copied().unwrap_or(TOP);
            match &part[..] {
                b"" | b"." => continue,
                b".." => {
                    way.truncate(way.len().saturating_sub(1).max(1));
                    continue;
                }
                _ => {}
            }
            let Some(next) = self.draft.node(at).names.get(&part).copied() else {
                match (missing, by_link) {
                    (Missing::IsNothing, _) => return Ok(None),
                    (Missing::IsMade, true) => {
                        return Err(TarError::Rule(
                            "a link to a directory leads to something else",
                        ));
                    }
                    (Missing::IsMade, false) => {}
                }
                self.spent.implied()?;
                let made = Node::new(plain(NodeKind::Dir, 0o755));
                way.push(self.add_named(at, &part, made)?);
                continue;
            };
            let node = self.draft.node(next);
            match node.attr.kind {
                NodeKind::Dir => way.push(next),
                NodeKind::Symlink => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(TarError::Rule("links form a circle"));
                    }
                    if node.target.starts_with(b"/") {
                        way.truncate(1);
                    }
                    push(&mut rest, &node.target, true);
                }
                _ => {
                    return Err(TarError::Rule(
                        "an entry is inside of something that is not a directory",
                    ));
                }
            }
        }
        Ok(way.last().copied())
    }

    /// Returns what an entry is.
    fn attr(&self, entry: &Entry) -> Result<Attr, TarError> {
        let kind = match entry.kind {
            Kind::File | Kind::HardLink => NodeKind::File,
            Kind::Directory => NodeKind::Dir,
            Kind::Symlink => NodeKind::Symlink,
            Kind::Character => NodeKind::CharDevice,
            Kind::Block => NodeKind::BlockDevice,
            Kind::Fifo => NodeKind::Fifo,
        };
        let mut attr = plain(kind, 0);
        match kind {
            NodeKind::File => attr.size = entry.size,
            NodeKind::Symlink if !(1..=TARGET_MAX).contains(&entry.target.len()) => {
                return Err(TarError::Rule("a link has no target"));
            }
            NodeKind::Symlink => attr.size = entry.target.len() as u64,
            NodeKind::CharDevice | NodeKind::BlockDevice => attr.rdev = self.device(entry)?,
            _ => {}
        }
        attr.blocks = attr.size.div_ceil(512);
        Ok(attr)
    }

    /// Returns the number of a device, as Linux encodes it in 32 bits.
    fn device(&self, entry: &Entry) -> Result<u32, TarError> {
        match (self.limits.devices, entry.device) {
            (Devices::Refused, _) => Err(TarError::Device),
            (_, (0, 0)) => Err(TarError::Rule(
                "a device has the number 0/0, which means a whiteout",
            )),
            (_, (major, minor)) if major < 1 << 12 && minor < 1 << 20 => {
                Ok((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12))
            }
            _ => Err(TarError::Rule(
                "the number of a device has more than 12 and 20 bits",
            )),
        }
    }

    /// Sets owner, mode, time and attributes.
    fn describe(&mut self, id: NodeId, entry: &Entry) -> Result<(), TarError> {
        let (secs, nanos) = entry.mtime;
        let time = Timestamp { secs, nanos };
        let node = self.draft.node_mut(id);
        node.attr.uid = entry.uid;
        node.attr.gid = entry.gid;
        node.attr.perm = match entry.kind {
            Kind::Symlink => 0o777,
            _ => u16::try_from(entry.mode & 0o7777).unwrap_or(0),
        };
        (node.attr.atime, node.attr.mtime, node.attr.ctime) = (time, time, time);
        for (name, value) in &entry.xattrs {
            let fits = name.len() <= XATTR_NAME_MAX && value.len() <= XATTR_VALUE_MAX;
            if is_kept(name) && fits && !name.contains(&0) {
                self.spent.names(name.len() + value.len())?;
                self.spent.memory(name.len() + value.len() + XATTR_BYTES)?;
                node.xattrs.insert(name.clone(), value.clone());
            }
        }
        Ok(())
    }
}

/// What to do about directories on the way that are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    IsMade,
    IsNothing,
}
