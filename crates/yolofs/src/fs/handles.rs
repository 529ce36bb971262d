//! Files that are found again by their number alone, as overlays and NFS servers do.

use blocks::{FileId, SourceErrorKind};

use super::{Entry, FileSystem, FsError, Node, Request, node_id};

impl FileSystem {
    /// Returns whether a file's number and generation mean the same file in every mount of the
    /// source, so that they may be kept on disk.
    #[must_use]
    pub fn has_handles(&self) -> bool {
        self.names.generation(FileId::ROOT).is_some()
    }

    /// Returns the generation that distinguishes a file from another with the same number in another mount; see
    /// [`Namespace::generation`](blocks::Namespace::generation). FUSE requires 0 for the root.
    #[must_use]
    pub fn generation(&self, file: FileId) -> u32 {
        match file {
            FileId::ROOT => 0,
            file => self.names.generation(file).unwrap_or_default(),
        }
    }

    /// Returns a file by its number, as it is now. Observers are not notified: no name was looked up.
    ///
    /// # Errors
    /// [`FsError::UnknownNode`] if there is none of that number, or the namespace fails.
    pub fn find(&self, file: FileId) -> Result<Entry, FsError> {
        self.serve(Request::Lookup, || self.found(file))
    }

    /// Returns the parent of `dir`. Observers are not notified.
    ///
    /// # Errors
    /// As [`FileSystem::find`].
    pub fn find_parent(&self, dir: FileId) -> Result<Entry, FsError> {
        self.serve(Request::Lookup, || {
            let parent = self.names.parent(dir);
            self.found(parent.map_err(|error| unless_unknown(dir, error))?)
        })
    }

    fn found(&self, file: FileId) -> Result<Entry, FsError> {
        let attr = self.current_attr(file).map_err(|error| match error {
            FsError::Source(error) => unless_unknown(file, error),
            error => error,
        })?;
        Ok(Entry {
            node: Some(Node { file, attr }),
            lifetime: self.lifetime_of(file),
        })
    }
}

/// A handle that is older than the tree may name a file that is not there: nothing failed.
fn unless_unknown(file: FileId, error: blocks::SourceError) -> FsError {
    match error.kind() {
        SourceErrorKind::NotFound => FsError::UnknownNode(node_id(file)),
        _ => error.into(),
    }
}
