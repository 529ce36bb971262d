//! Files that changed under the mount.
//!
//! The tree and the boot image speak of a file in one version. When the source says that it has
//! another, the file is *diverted*: from then on its key carries the new version, so that every
//! cache misses for it by itself, and its attributes are those of the new version. Somebody is
//! told, who makes the kernel forget what it has of the old one.
//!
//! The kernel fills up a page that is answered in part with zeros, which nobody sees as long as it
//! knows where the file ends. It takes a short answer for the new end of a file that was cut short,
//! but not if anything about the file moved since it asked, such as our telling it to forget.
//! So as long as it may believe the file to be longer ([`Diversions::settle`] ends that), an answer
//! that ends too early is none ([`Diversions::cuts`]).

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
    /// The largest size that the kernel may believe the file has, until it knows the true one.
    believed: Option<u64>,
}

impl Diversions {
    /// Notes that a file which was thought to be in version `asked` is in version `now`.
    pub(super) fn divert(&self, file: FileId, asked: Version, now: Version) {
        let told = self.told.lock();
        let mut files = self.files.write();
        let before = files.get(&file).copied();
        let from = match before {
            Some(diversion) if diversion.now == asked => diversion.from,
            _ => asked,
        };
        if before.is_some_and(|before| (before.from, before.now) == (from, now)) {
            return;
        }
        let earlier = before.and_then(|before| before.believed).unwrap_or(0);
        let believed = earlier.max(asked.size).max(now.size);
        let diversion = Diversion {
            from,
            now,
            // If nobody is told, there is no kernel that believes anything.
            believed: told.is_some().then_some(believed),
        };
        files.insert(file, diversion);
        if before.is_none() && self.count.fetch_add(1, Relaxed) == 0 {
            log::warn!(
                "file {} changed since it was scanned or recorded; it is served from the source \
                 from now on (further files are only counted)",
                file.0
            );
        }
        drop(files);
        if let Some(told) = &*told {
            told(file);
        }
    }

    /// Returns the version of a file if an answer about it that ends at `end`, where bytes up to
    /// `wanted` were asked for, could leave the kernel with zeros that it takes for content.
    pub(super) fn cuts(&self, file: FileId, end: u64, wanted: u64) -> Option<Version> {
        let diversion = self.diversion(file)?;
        let believed = diversion.believed?;
        (end < wanted.min(believed)).then_some(diversion.now)
    }

    /// Returns the version of a diverted file if the kernel may believe that it is longer.
    pub(crate) fn shortened(&self, file: FileId) -> Option<Version> {
        let Diversion { now, believed, .. } = self.diversion(file)?;
        (believed? > now.size).then_some(now)
    }

    /// Notes that the kernel has forgotten what it had of a file, and knows what size it has in the
    /// version `now`, unless it has changed again since.
    pub(crate) fn settle(&self, file: FileId, now: Version) {
        if let Some(diversion) = self.files.write().get_mut(&file)
            && diversion.now == now
        {
            diversion.believed = None;
        }
    }

    fn diversion(&self, file: FileId) -> Option<Diversion> {
        if self.count() == 0 {
            return None;
        }
        self.files.read().get(&file).copied()
    }

    /// Returns the attributes of a file as they are now, given what the namespace says.
    pub(super) fn correct(&self, file: FileId, attr: Attr) -> Attr {
        match self.diversion(file) {
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
        self.diversion(file).is_none().then_some(guard)
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

    #[test]
    fn a_short_answer_is_none_until_the_kernel_knows_the_size() {
        let diversions = Diversions::default();
        let file = FileId(7);
        diversions.tell(Some(Box::new(|_| ())));
        diversions.divert(file, version(9000), version(5000));
        assert_eq!(diversions.cuts(file, 5000, 8192), Some(version(5000)));
        assert_eq!(
            diversions.cuts(file, 5000, 5000),
            None,
            "all that was asked for"
        );
        assert_eq!(diversions.shortened(file), Some(version(5000)));
        // The kernel may still believe the first size, and is not told by who saw the second.
        diversions.divert(file, version(5000), version(6000));
        diversions.settle(file, version(5000));
        assert_eq!(diversions.cuts(file, 6000, 8192), Some(version(6000)));
        diversions.settle(file, version(6000));
        assert_eq!(diversions.cuts(file, 6000, 8192), None);
        assert_eq!(diversions.shortened(file), None);
        // Nor does it believe more than the last size that it was told.
        diversions.divert(file, version(6000), version(100));
        assert_eq!(diversions.cuts(file, 8192, 12288), None);
        assert_eq!(diversions.cuts(file, 100, 4096), Some(version(100)));
    }

    #[test]
    fn a_file_that_grew_is_answered_to_its_end() {
        let diversions = Diversions::default();
        diversions.tell(Some(Box::new(|_| ())));
        diversions.divert(FileId(7), version(10), version(5000));
        assert_eq!(diversions.cuts(FileId(7), 5000, 8192), None);
        assert_eq!(diversions.shortened(FileId(7)), None);
    }
}
