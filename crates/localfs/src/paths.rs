//! Where the files of a source are.

use std::sync::Arc;

use blocks::{FileId, Tree};

/// Knows the path of every file: what [`DirSource`](crate::DirSource) opens files by.
pub trait Paths: Send + Sync {
    /// Returns a path of the file from the root, without a leading `/`, or `None` if it has none.
    fn path(&self, file: FileId) -> Option<Vec<u8>>;
}

impl Paths for Tree {
    fn path(&self, file: FileId) -> Option<Vec<u8>> {
        Self::path(self, file)
    }
}

impl<P: Paths + ?Sized> Paths for Arc<P> {
    fn path(&self, file: FileId) -> Option<Vec<u8>> {
        (**self).path(file)
    }
}
