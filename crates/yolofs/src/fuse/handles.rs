//! Handles of files: a number and a generation, by which the kernel finds a file again that it has
//! forgotten. NFS servers send them to clients. Overlays store them on disk, to know from which file an
//! upper file was copied and which of its hard links were written through.
//!
//! Without a declaration the kernel hands out handles that it cannot resolve later, which an overlay
//! notices too late. So it is declared either way: that handles are valid, or (since Linux 6.9)
//! that there are none, and overlays do without from the beginning.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use blocks::FileId;
use fuser::{Generation, InitFlags};

use super::changed::known_for;
use super::connect::{Connector, Nameless};
use crate::connection::Hello;
use crate::fs::{Entry, FileSystem, FsError};
use crate::serving::State;

/// The version of the protocol, after 7, that the first kernels speak which have epochs: Linux 6.16.
const WITH_EPOCHS: u32 = 44;

/// What was declared to the kernel about handles.
#[derive(Debug)]
pub(super) struct Handles {
    fs: Arc<FileSystem>,
    wanted: InitFlags,
    /// Whether handles were declared valid. Otherwise the kernel has seen every file with generation 0,
    /// and would take one with another generation for another file.
    agreed: AtomicBool,
    pub(super) connector: Connector,
}

/// A look-up that represents a request about a handle, with its response.
pub(super) enum Asked {
    /// For a file that the kernel has forgotten.
    Forgotten(Result<Entry, FsError>),
    /// For a file that it knows, or for the parent of one.
    Known(Result<Entry, FsError>),
}

impl Handles {
    pub(super) fn new(fs: &Arc<FileSystem>, hello: &Hello, state: &Arc<State>) -> Self {
        let wanted = if fs.has_handles() {
            InitFlags::FUSE_EXPORT_SUPPORT
        } else {
            InitFlags::FUSE_NO_EXPORT_SUPPORT
        };
        let nameless = if hello.kernel_minor() < WITH_EPOCHS {
            Nameless::Found
        } else {
            Nameless::Stale
        };
        Self {
            fs: Arc::clone(fs),
            wanted,
            agreed: AtomicBool::new(false),
            connector: Connector::new(Arc::clone(fs), Arc::clone(state), nameless),
        }
    }

    /// What to declare to the kernel.
    pub(super) const fn wanted(&self) -> InitFlags {
        self.wanted
    }

    /// Records what was declared to the kernel, now or by an earlier server.
    pub(super) fn agree(&self, told: InitFlags) {
        let agreed = told.contains(InitFlags::FUSE_EXPORT_SUPPORT);
        self.agreed.store(agreed, Relaxed);
    }

    /// As [`known_for`].
    pub(super) fn known_for(&self, file: FileId) -> Duration {
        known_for(&self.fs, file)
    }

    pub(super) fn generation(&self, file: FileId) -> Generation {
        let generation = if self.agreed.load(Relaxed) {
            self.fs.generation(file)
        } else {
            0
        };
        Generation(u64::from(generation))
    }

    /// Answers a look-up that stands for a request about a handle; `None` if `name` is a real name, which
    /// these never are: the kernel resolves `.` and `..` in a path itself.
    ///
    /// `/` is the kernel's name of a file that it found by its handle without a name. Overlays
    /// look up such files again, in themselves, and treat them as stale if nothing is found.
    pub(super) fn asked(&self, file: FileId, name: &[u8]) -> Option<Asked> {
        match name {
            b"." => Some(Asked::Forgotten(self.fs.find(file))),
            b"/" => Some(Asked::Known(self.fs.find(file))),
            b".." => Some(Asked::Known(self.fs.find_parent(file))),
            _ => None,
        }
    }
}
