//! Records which versions are reported while pages of a file are pushed.
//!
//! Where names are revalidated, the kernel itself drops the pages of a file when it receives another
//! version, and no diversion shows it. Pages of the old version that are pushed after that
//! would stay. So every version is recorded on its way to the kernel, before it
//! arrives there; and a push checks before and after. If the kernel receives another version
//! after the push, it drops the pushed pages.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use blocks::{FileId, FileKey, Version};
use parking_lot::RwLock;

/// The files whose pages are being pushed, and the versions reported of them.
#[derive(Debug, Default)]
pub(super) struct Watched {
    files: RwLock<HashMap<FileId, SeenVersions>>,
    /// Whether there are any: most of the time nothing is pushed.
    any: AtomicBool,
}

/// The versions that were heard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeenVersions {
    None,
    One(Version),
    Several,
}

/// Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Watch<'a>(&'a Watched);

impl Watched {
    /// Watches these files and no others. Must begin before the version is requested in which they are to
    /// be pushed.
    pub(super) fn watch(&self, files: impl Iterator<Item = FileId>) -> Watch<'_> {
        *self.files.write() = files.map(|file| (file, SeenVersions::None)).collect();
        self.any.store(true, SeqCst);
        Watch(self)
    }

    /// Records a reported version of a file.
    pub(super) fn heard(&self, file: FileId, version: Version) {
        if !self.any.load(SeqCst) {
            return;
        }
        let known = self.files.read().get(&file).copied();
        if known.is_none_or(|known| {
            known == SeenVersions::One(version) || known == SeenVersions::Several
        }) {
            return;
        }
        if let Some(heard) = self.files.write().get_mut(&file) {
            *heard = match *heard {
                SeenVersions::None => SeenVersions::One(version),
                SeenVersions::One(before) if before == version => return,
                SeenVersions::One(_) | SeenVersions::Several => SeenVersions::Several,
            };
        }
    }

    /// Implements [`FileSystem::is_still`](super::FileSystem::is_still).
    pub(super) fn is_still(&self, key: &FileKey) -> bool {
        let heard = self.files.read().get(&key.file).copied();
        heard.is_none_or(|heard| heard == SeenVersions::One(key.version))
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.0.any.store(false, SeqCst);
        self.0.files.write().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId(7);

    fn key(size: u64) -> FileKey {
        let version = Version {
            size,
            ..Version::default()
        };
        FileKey {
            file: FILE,
            version,
        }
    }

    #[test]
    fn a_file_is_what_it_was_until_another_version_is_heard_of() {
        let watched = Watched::default();
        watched.heard(FILE, key(1).version);
        let watch = watched.watch([FILE].into_iter());
        assert!(!watched.is_still(&key(1)), "nobody said so yet");
        watched.heard(FILE, key(1).version);
        watched.heard(FILE, key(1).version);
        watched.heard(FileId(8), key(2).version);
        assert!(watched.is_still(&key(1)) && !watched.is_still(&key(2)));
        watched.heard(FILE, key(2).version);
        assert!(!watched.is_still(&key(1)) && !watched.is_still(&key(2)));
        // Who heard of the first one late says so late.
        watched.heard(FILE, key(1).version);
        assert!(!watched.is_still(&key(1)));
        drop(watch);
        assert!(watched.is_still(&key(1)), "nobody is watched");
    }
}
