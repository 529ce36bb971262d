//! Names and attributes: everything but content.

use std::ops::ControlFlow;
use std::time::Instant;

use blocks::{Attr, Caller, Event, FileId, Lifetime, NodeKind, Touch};

use super::data::may_wait;
use super::{FileSystem, FsError, Request, Space};

/// Longest name in a directory, in bytes (Linux's NAME_MAX). FUSE itself lets longer ones through.
const NAME_MAX: usize = 255;

/// Where a directory's own entries begin: before them lie `.` and `..`.
const DOTS: u64 = 2;

/// A file and its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// The file.
    pub file: FileId,
    /// Its attributes as they are now.
    pub attr: Attr,
}

/// What a name is, or that it is nothing, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The file, or `None` if there is no such name.
    pub node: Option<Node>,
    /// How long this may be cached.
    pub lifetime: Lifetime,
}

/// One entry of a listing, `.` and `..` included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirItem<'a> {
    /// The name.
    pub name: &'a [u8],
    /// Its file.
    pub file: FileId,
    /// Its kind.
    pub kind: NodeKind,
    /// The offset at which the listing continues behind this entry.
    pub next: u64,
}

/// The response to a request for extended attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XattrReply {
    /// The size of the response: the caller gave no buffer.
    Size(u32),
    /// The response.
    Bytes(Vec<u8>),
}

impl FileSystem {
    /// Looks a name up in a directory. A missing name is a result, not an error.
    ///
    /// # Errors
    /// If the name is too long, or the namespace fails.
    pub fn lookup(&self, caller: Caller, dir: FileId, name: &[u8]) -> Result<Entry, FsError> {
        let start = Instant::now();
        self.serve(Request::Lookup, || {
            if name.len() > NAME_MAX {
                return Err(FsError::NameTooLong);
            }
            let node = match self.names.lookup(dir, name)? {
                Some(file) => Some(Node {
                    file,
                    attr: self.current_attr(file)?,
                }),
                None => None,
            };
            let lifetime = node.map_or(self.names.lifetime(), |node| self.lifetime_of(node.file));
            self.observe(caller, start, || {
                Event::Touch(Touch::Lookup {
                    dir,
                    name: name.to_vec(),
                })
            });
            Ok(Entry { node, lifetime })
        })
    }

    /// Returns the attributes of a file.
    ///
    /// # Errors
    /// If the namespace fails.
    pub fn getattr(&self, file: FileId) -> Result<Attr, FsError> {
        self.serve(Request::GetAttr, || self.current_attr(file))
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// If the namespace fails, or the file is not a link.
    pub fn readlink(&self, caller: Caller, link: FileId) -> Result<Vec<u8>, FsError> {
        let start = Instant::now();
        self.serve(Request::ReadLink, || {
            let target = self.names.target(link)?;
            self.observe(caller, start, || Event::Touch(Touch::ReadLink { link }));
            Ok(target)
        })
    }

    /// Shows the entries of a directory from `offset` on (0 for the first) until `visit` breaks:
    /// `.`, then `..`, then the names.
    ///
    /// # Errors
    /// If the file is not a directory, or the namespace fails.
    pub fn readdir(
        &self,
        caller: Caller,
        dir: FileId,
        offset: u64,
        visit: &mut dyn FnMut(DirItem<'_>) -> ControlFlow<()>,
    ) -> Result<(), FsError> {
        self.serve(Request::ReadDir, || self.list(caller, dir, offset, visit))
    }

    /// Shows the entries of a directory as [`FileSystem::readdir`] does, with attributes. A file
    /// that disappears before its attributes are read is left out.
    ///
    /// # Errors
    /// As [`FileSystem::readdir`].
    pub fn readdirplus(
        &self,
        caller: Caller,
        dir: FileId,
        offset: u64,
        visit: &mut dyn FnMut(DirItem<'_>, Attr) -> ControlFlow<()>,
    ) -> Result<(), FsError> {
        self.serve(Request::ReadDirPlus, || {
            let mut put_off = None;
            self.list(
                caller,
                dir,
                offset,
                &mut |item| match self.current_attr(item.file) {
                    Ok(attr) => visit(item, attr),
                    Err(error) if error.would_wait() => {
                        put_off = Some(error);
                        ControlFlow::Break(())
                    }
                    Err(_gone) => ControlFlow::Continue(()),
                },
            )?;
            put_off.map_or(Ok(()), Err)
        })
    }

    /// Returns the space of the source.
    ///
    /// # Errors
    /// If the source does not report it.
    pub fn statfs(&self) -> Result<Space, FsError> {
        self.serve(Request::StatFs, || match &self.space {
            Some(space) => {
                may_wait("asking how full it is")?;
                space().map_err(FsError::Space)
            }
            None => Ok(Space::default()),
        })
    }

    /// Returns the value of an extended attribute, for a buffer of `room` bytes: 0 asks how large
    /// it has to be.
    ///
    /// # Errors
    /// If there is no such attribute, it does not fit, or the namespace fails.
    pub fn getxattr(&self, file: FileId, name: &[u8], room: u32) -> Result<XattrReply, FsError> {
        self.serve(Request::GetXattr, || {
            let value = self.names.xattr(file, name)?;
            fit(value.ok_or(FsError::NoAttribute)?, room)
        })
    }

    /// Returns the names of a file's extended attributes, each followed by a NUL, for a buffer of
    /// `room` bytes: 0 asks how large it has to be.
    ///
    /// # Errors
    /// If they do not fit, or the namespace fails.
    pub fn listxattr(&self, file: FileId, room: u32) -> Result<XattrReply, FsError> {
        self.serve(Request::ListXattr, || {
            fit(self.names.xattr_names(file)?, room)
        })
    }

    fn list(
        &self,
        caller: Caller,
        dir: FileId,
        offset: u64,
        visit: &mut dyn FnMut(DirItem<'_>) -> ControlFlow<()>,
    ) -> Result<(), FsError> {
        let start = Instant::now();
        if self.names.attr(dir)?.kind != NodeKind::Dir {
            return Err(FsError::NotADirectory);
        }
        let parent = self.names.parent(dir)?;
        // Told once for each listing, however many requests it takes.
        if offset == 0 {
            self.observe(caller, start, || Event::Touch(Touch::List { dir }));
        }
        let dots: [(u64, &[u8], FileId); 2] = [(1, b".", dir), (2, b"..", parent)];
        for (next, name, file) in dots.into_iter().filter(|(next, ..)| *next > offset) {
            let kind = NodeKind::Dir;
            let item = DirItem {
                name,
                file,
                kind,
                next,
            };
            if visit(item).is_break() {
                return Ok(());
            }
        }
        self.names
            .list(dir, offset.saturating_sub(DOTS), &mut |entry| {
                visit(DirItem {
                    name: entry.name,
                    file: entry.file,
                    kind: entry.kind,
                    next: entry.next + DOTS,
                })
            })?;
        Ok(())
    }
}

fn fit(bytes: Vec<u8>, room: u32) -> Result<XattrReply, FsError> {
    let len = u32::try_from(bytes.len()).map_err(|_| FsError::TooSmall)?;
    match room {
        0 => Ok(XattrReply::Size(len)),
        room if room < len => Err(FsError::TooSmall),
        _ => Ok(XattrReply::Bytes(bytes)),
    }
}
