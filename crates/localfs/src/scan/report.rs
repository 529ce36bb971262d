//! Files that a scan left out, or whose metadata may be outdated.

use std::io;

use nix::errno::Errno;

/// Most notes that are kept with their paths; further ones are only counted. Enough for a person.
const NOTES_MAX: usize = 1000;

/// The reason for a note about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Another file system is mounted there: directories are shown empty, files left out.
    OtherMount,
    /// It disappeared or kept changing while it was scanned; the tree may be outdated.
    Changed,
    /// It cannot be read: the directory is shown empty, or the attributes are left out.
    Unreadable {
        /// The error number of the system; 0 if there was none.
        errno: i32,
    },
    /// Its name is longer than 255 bytes, its path longer than 65 535, or it is of an unknown kind:
    /// left out.
    NotServable,
}

impl Reason {
    pub(super) fn of(error: &io::Error) -> Self {
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EXDEV) => Self::OtherMount,
            Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ESTALE) => Self::Changed,
            errno => Self::Unreadable {
                errno: errno.map_or(0, |errno| errno as i32),
            },
        }
    }
}

/// A path with a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The path from the root, without a leading `/`.
    pub path: Vec<u8>,
    /// The reason.
    pub reason: Reason,
}

/// The notes of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanReport {
    notes: Vec<Note>,
    more: u64,
}

impl ScanReport {
    /// Returns the notes, in the order of the scan: the first thousand.
    #[must_use]
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Returns how many notes there were beyond [`Self::notes`].
    #[must_use]
    pub const fn more(&self) -> u64 {
        self.more
    }

    /// Returns whether all of the source is in the tree, as it was.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.notes.is_empty()
    }

    pub(super) fn add(&mut self, path: Vec<u8>, reason: Reason) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(Note { path, reason });
        } else {
            self.more += 1;
        }
    }
}
