//! What a server of a mount leaves to the next one: which files changed.

use std::io;
use std::sync::Arc;

use blocks::{Attr, FileId, Version};

use super::FileSystem;

/// A file with another version than in names and boot image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Diverted {
    /// The file.
    pub file: FileId,
    /// Its version in the namespace.
    pub from: Version,
    /// The version that it has.
    pub now: Version,
    /// All attributes in that version, if more than the version is known.
    pub attr: Option<Attr>,
    /// The largest size that was ever reported to the kernel.
    pub believed: u64,
}

/// A durable record of the files that changed, for the next server of the mount.
pub trait Ledger: Send + Sync {
    /// Records that a file changed; an earlier record of the same file is void. When this has returned, the
    /// record outlives this process, whatever ends it.
    ///
    /// # Errors
    /// If it cannot be written. The earlier record is still valid.
    fn note(&self, diverted: &Diverted) -> io::Result<()>;
}

impl FileSystem {
    /// Adds a record of the files that changed, with those that earlier servers recorded.
    ///
    /// A file that changed is recorded before any byte of its new version is served. So a server that takes
    /// over continues where the dead one was: no file goes back to a version older than one that its readers
    /// have seen. Without a ledger, that is lost with the process.
    #[must_use]
    pub fn with_ledger(mut self, ledger: Arc<dyn Ledger>, earlier: &[Diverted]) -> Self {
        self.diversions.remember(ledger, earlier);
        self
    }
}
