//! What a server of a mount leaves to the next one: which files changed.

use std::io;
use std::sync::Arc;

use blocks::{Attr, FileId, Version};

use super::FileSystem;

/// A file of which another version was found than names and boot image speak of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Diverted {
    /// Which file.
    pub file: FileId,
    /// The version that the namespace says it has.
    pub from: Version,
    /// The version that it has.
    pub now: Version,
    /// All attributes in that version, if more than the version is known.
    pub attr: Option<Attr>,
    /// The largest size that the kernel was ever told it has.
    pub believed: u64,
}

/// Where it is written down which files changed, for who serves the mount next.
pub trait Ledger: Send + Sync {
    /// Writes down that a file changed; what was written of the same file before is void. Whoever
    /// dies after this has returned, for whatever reason, leaves it to the next server.
    ///
    /// # Errors
    /// If it cannot be written. What was written before is still there.
    fn note(&self, diverted: &Diverted) -> io::Result<()>;
}

impl FileSystem {
    /// Adds where it is written down which files changed, with what earlier servers wrote there.
    ///
    /// A file that changed is written down before anybody sees a byte of its new version. So a
    /// server that takes over goes on where the dead one was: no file goes back to a version that
    /// its readers have seen the end of. Without a ledger, that is lost with the process.
    #[must_use]
    pub fn with_ledger(mut self, ledger: Arc<dyn Ledger>, earlier: &[Diverted]) -> Self {
        self.diversions.remember(ledger, earlier);
        self
    }
}
