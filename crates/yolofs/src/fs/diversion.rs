//! Files that changed under the mount.
//!
//! The tree and the boot image speak of a file in one version. When the source says that it has
//! another, the file is *diverted*: from then on its key carries the new version, so that every
//! cache misses for it by itself, and its attributes are those of the new version. Somebody is
//! told, who makes the kernel forget what it has of the old one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use blocks::{Attr, FileId, Version};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

/// Who is told of each file that is diverted; it must not block.
type Told = Box<dyn Fn(FileId) + Send>;

/// Which files changed, and into what.
#[derive(Default)]
pub(crate) struct Diversions {
    files: RwLock<HashMap<FileId, Diversion>>,
    /// The size of `files`, to be asked without the lock: almost always 0.
    count: AtomicU64,
    told: Mutex<Option<Told>>,
    /// Held for reading while pages of a file are pushed, see [`Diversions::begin_push`].
    pushing: RwLock<()>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Diversion {
    /// What the namespace says; if it comes to say something else, it knows better than we do.
    from: Version,
    now: Version,
}

impl Diversions {
    /// Notes that a file which was thought to be in version `asked` is in version `now`.
    pub(super) fn divert(&self, file: FileId, asked: Version, now: Version) {
        let mut files = self.files.write();
        let before = files.get(&file).copied();
        let from = match before {
            Some(diversion) if diversion.now == asked => diversion.from,
            _ => asked,
        };
        let diversion = Diversion { from, now };
        if files.insert(file, diversion) == Some(diversion) {
            return;
        }
        if before.is_none() && self.count.fetch_add(1, Relaxed) == 0 {
            log::warn!(
                "file {} changed since it was scanned or recorded; it is served from the source \
                 from now on (further files are only counted)",
                file.0
            );
        }
        drop(files);
        if let Some(told) = &*self.told.lock() {
            told(file);
        }
    }

    /// Returns the attributes of a file as they are now, given what the namespace says.
    pub(super) fn correct(&self, file: FileId, attr: Attr) -> Attr {
        if self.count.load(Relaxed) == 0 {
            return attr;
        }
        match self.files.read().get(&file) {
            Some(diversion) if diversion.from == attr.version() => Attr {
                size: diversion.now.size,
                mtime: diversion.now.mtime,
                ctime: diversion.now.ctime,
                source_inode: diversion.now.inode,
                // The space it takes now is not known: as if it had no holes, in units of 512.
                blocks: diversion.now.size.div_ceil(512),
                ..attr
            },
            _ => attr,
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    pub(super) fn files(&self) -> Vec<FileId> {
        let mut files: Vec<FileId> = self.files.read().keys().copied().collect();
        files.sort_unstable();
        files
    }

    /// Has `told` told of every file that is diverted from now on, or nobody.
    pub(crate) fn tell(&self, told: Option<Told>) {
        let _before = std::mem::replace(&mut *self.told.lock(), told);
    }

    /// Starts to push pages of a file, unless it is diverted.
    ///
    /// While the guard lives, [`Diversions::wait_for_pushes`] waits. So a page of the old version
    /// is either pushed before the kernel is told to forget the old version, or never.
    pub(crate) fn begin_push(&self, file: FileId) -> Option<RwLockReadGuard<'_, ()>> {
        let guard = self.pushing.read();
        if self.count() > 0 && self.files.read().contains_key(&file) {
            return None;
        }
        Some(guard)
    }

    /// Waits until every push that may not have seen the last diversion is over.
    pub(crate) fn wait_for_pushes(&self) {
        drop(self.pushing.write());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocks::NodeKind;

    fn version(size: u64) -> Version {
        Version {
            size,
            ..blocks::testing::attr(NodeKind::File).version()
        }
    }

    #[test]
    fn a_file_that_changes_twice_is_followed() {
        let diversions = Diversions::default();
        let attr = blocks::testing::attr(NodeKind::File);
        diversions.divert(FileId(7), version(0), version(1));
        diversions.divert(FileId(7), version(1), version(2));
        assert_eq!(diversions.correct(FileId(7), attr).size, 2);
        assert_eq!(diversions.correct(FileId(8), attr), attr);
        assert_eq!(diversions.files(), [FileId(7)]);
        assert_eq!(diversions.count(), 1);
    }

    #[test]
    fn a_namespace_that_learns_of_the_change_is_believed() {
        let diversions = Diversions::default();
        diversions.divert(FileId(7), version(0), version(1));
        let mut fresh = blocks::testing::attr(NodeKind::File);
        fresh.size = 3;
        assert_eq!(diversions.correct(FileId(7), fresh), fresh);
    }

    #[test]
    fn nothing_is_pushed_into_a_diverted_file() {
        let diversions = Diversions::default();
        assert!(diversions.begin_push(FileId(7)).is_some());
        diversions.divert(FileId(7), version(0), version(1));
        assert!(diversions.begin_push(FileId(7)).is_none());
        assert!(diversions.begin_push(FileId(8)).is_some());
    }

    #[test]
    fn every_change_is_told() {
        let diversions = Diversions::default();
        let (sender, receiver) = std::sync::mpsc::channel();
        diversions.tell(Some(Box::new(move |file| sender.send(file).unwrap())));
        diversions.divert(FileId(7), version(0), version(1));
        diversions.divert(FileId(7), version(0), version(1));
        diversions.divert(FileId(7), version(1), version(2));
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [FileId(7); 2]);
    }
}
