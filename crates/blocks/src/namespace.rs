//! The seam between the file system and the names and attributes of a source.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::{Attr, FileId, NodeKind, SourceError};

/// The extended attribute that holds a file's access list (acl(5)), in the kernel's form.
pub const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// How long names and attributes may be cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// The source does not change while it is mounted.
    Forever,
    /// For this long.
    For(Duration),
}

/// The maximum number of hard links of a file that are followed when it changes. Each change reads all of them.
pub const LINKS_MAX: usize = 64;

/// One name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRef<'a> {
    /// The name: any bytes but NUL and `/`.
    pub name: &'a [u8],
    /// Its file.
    pub file: FileId,
    /// Its kind.
    pub kind: NodeKind,
    /// The cursor at which a listing continues behind this entry.
    pub next: u64,
}

/// Names, attributes, links and extended attributes of a source.
///
/// It has more methods than other interfaces, because a file system needs them; none of them is for
/// one implementation only. [`Tree`](crate::Tree) answers from memory and never fails; a source
/// that may change while it is mounted reads the disk.
pub trait Namespace: Send + Sync {
    /// Returns how long results may be cached, "there is no such name" included.
    fn lifetime(&self) -> Lifetime;

    /// Returns the file of `name` in the directory `dir`, or `None` if there is no such name.
    ///
    /// # Errors
    /// If the source cannot be read, or `dir` is gone.
    fn lookup(&self, dir: FileId, name: &[u8]) -> Result<Option<FileId>, SourceError>;

    /// Returns the attributes of a file; they carry its current version.
    ///
    /// # Errors
    /// If the source cannot be read, or the file is gone.
    fn attr(&self, file: FileId) -> Result<Attr, SourceError>;

    /// Returns the parent of `dir`; the root is its own parent.
    ///
    /// # Errors
    /// If `dir` is gone or not a directory.
    fn parent(&self, dir: FileId) -> Result<FileId, SourceError>;

    /// Returns a path of a file from the root, without a leading `/`: empty for the root, `None` if
    /// no name of it is known. Never reads the source.
    fn path(&self, file: FileId) -> Option<Vec<u8>>;

    /// Returns the paths of all names of a file, what [`path`](Self::path) returns first, or `None`
    /// if there are more than [`LINKS_MAX`]. Never asks the source.
    fn paths(&self, file: FileId) -> Option<Vec<Vec<u8>>> {
        Some(self.path(file).into_iter().collect())
    }

    /// Shows the entries of `dir` from `cursor` on (0 for the first) until `visit` breaks.
    /// Neither `.` nor `..` is among them.
    ///
    /// # Errors
    /// If the source cannot be asked, or `dir` is gone or not a directory.
    fn list(
        &self,
        dir: FileId,
        cursor: u64,
        visit: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<(), SourceError>;

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// If the source cannot be read, or `link` is gone or not a link.
    fn target(&self, link: FileId) -> Result<Vec<u8>, SourceError>;

    /// Returns the value of an extended attribute, or `None` if the file has no such one.
    ///
    /// # Errors
    /// If the source cannot be read, or the file is gone.
    fn xattr(&self, file: FileId, name: &[u8]) -> Result<Option<Vec<u8>>, SourceError>;

    /// Returns the names of a file's extended attributes, each followed by a NUL.
    ///
    /// # Errors
    /// If the source cannot be read, or the file is gone.
    fn xattr_names(&self, file: FileId) -> Result<Vec<u8>, SourceError>;

    /// Returns a number that a file has in every mount of the same source, and that another file
    /// which gets the same id in another mount does not have, as far as can be told: with it, an
    /// id means one file for good. `None` if ids mean nothing beyond one mount.
    ///
    /// Never asks the source. Overlays keep such numbers on disk.
    fn generation(&self, file: FileId) -> Option<u32> {
        let _ = file;
        None
    }

    /// Returns whether any file may have an extended attribute. If not, the kernel need not send more
    /// requests: it does not cache the answers.
    fn has_xattrs(&self) -> bool;

    /// Returns whether any file may have an access list ([`ACCESS_LIST`]). If so, the kernel requests
    /// the list of every file that another user accesses, once.
    fn has_access_lists(&self) -> bool;
}
