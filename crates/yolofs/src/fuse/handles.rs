//! Handles of files: a number and a generation, by which the kernel finds a file again that it has
//! forgotten. NFS servers give them out. Overlays keep them on disk, to know what an upper file was
//! copied from and which of its hard links were written through.
//!
//! A kernel that is told nothing gives out handles and forgets what they mean, so that an overlay
//! finds out when it is too late. It is told either way: that handles are good, or (since Linux 6.9)
//! that there are none, and overlays do without from the beginning.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use blocks::FileId;
use fuser::{Generation, InitFlags};

use super::connect::{Connector, Nameless};
use crate::connection::Hello;
use crate::fs::{Entry, FileSystem, FsError};
use crate::serving::State;

/// The version of the protocol, after 7, that the first kernels speak which have epochs: Linux 6.16.
const WITH_EPOCHS: u32 = 44;

/// What the kernel is told of handles.
#[derive(Debug)]
pub(super) struct Handles {
    fs: Arc<FileSystem>,
    wanted: InitFlags,
    /// Whether it was told that they are good. A kernel that was not has met every file with
    /// generation 0, and would take one with another for another file.
    agreed: AtomicBool,
    pub(super) connector: Connector,
}

/// A look-up that stands for a question about a handle, with its answer.
pub(super) enum Asked {
    /// For a file that the kernel has forgotten.
    Forgotten(Result<Entry, FsError>),
    /// For one that it knows, or for the directory that holds one.
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

    /// What the kernel is to be told.
    pub(super) const fn wanted(&self) -> InitFlags {
        self.wanted
    }

    /// Notes what the kernel was told, now or by an earlier server.
    pub(super) fn agree(&self, told: InitFlags) {
        let agreed = told.contains(InitFlags::FUSE_EXPORT_SUPPORT);
        self.agreed.store(agreed, Relaxed);
    }

    pub(super) fn generation(&self, file: FileId) -> Generation {
        let generation = if self.agreed.load(Relaxed) {
            self.fs.generation(file)
        } else {
            0
        };
        Generation(u64::from(generation))
    }

    /// Answers a look-up that stands for a question about a handle; `None` if `name` is a name, which
    /// these never are: the kernel knows what `.` and `..` mean in a path.
    ///
    /// `/` is what the kernel calls a file that it found by its handle and knows no name of. Overlays
    /// have such files looked up again, in themselves, and call them stale if nothing is found.
    pub(super) fn asked(&self, file: FileId, name: &[u8]) -> Option<Asked> {
        match name {
            b"." => Some(Asked::Forgotten(self.fs.find(file))),
            b"/" => Some(Asked::Known(self.fs.find(file))),
            b".." => Some(Asked::Known(self.fs.find_parent(file))),
            _ => None,
        }
    }
}
