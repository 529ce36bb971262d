//! Files that changed under the mount.
//!
//! The tree and the boot image have one version of a file. When the source reports another, the file
//! is *diverted*: from then on its key carries the new version, so that every cache misses for it, and
//! its attributes are those of the new version. A callback makes the kernel invalidate what it cached of
//! the old one.
//!
//! The kernel fills up a page that is answered in part with zeros, which is invisible as long as it
//! knows the end of the file. It takes a short response for the new end of a file that was truncated,
//! but not if anything about the file changed since the request, such as an invalidation by us.
//! So as long as it may assume the file to be longer, a response that ends too early is not sent
//! ([`Diversions::cuts`]). That ends when it has invalidated the file, whatever happens to the file
//! since ([`Diversions::settle`]).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use blocks::{Attr, FileId, SourceError, SourceErrorKind, Version};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::ledger::{Diverted, Ledger};

/// Called for each file that is diverted; it must not block.
type OnDiverted = Box<dyn Fn(FileId) + Send>;

/// Which files changed, and into what.
#[derive(Default)]
pub(crate) struct Diversions {
    files: RwLock<HashMap<FileId, Diversion>>,
    /// The size of `files`, readable without the lock: almost always 0.
    count: AtomicU64,
    /// How many were ever in there.
    noted: AtomicU64,
    told: Mutex<Option<OnDiverted>>,
    /// Where diversions are written down, if they are to outlive this process.
    ledger: Option<Arc<dyn Ledger>>,
    /// Whether anything was refused yet: that is logged once.
    refused: AtomicBool,
    /// Files of which somebody finds out whether they changed again.
    looked_at: Mutex<HashSet<FileId>>,
    /// Held for reading while pages of a file are pushed, see [`Diversions::begin_push`].
    pushing: RwLock<()>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Diversion {
    /// The version of the namespace; if that changes, the namespace is right.
    from: Version,
    now: Version,
    /// All attributes in that version, if more than the version is known.
    attr: Option<Attr>,
    /// The largest size that the kernel may assume of the file, until it knows the true one.
    believed: Option<u64>,
}

/// A version that was not reported to the kernel yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unsettled {
    /// The version.
    pub(crate) now: Version,
    /// Whether the kernel may assume the file to be longer than that.
    pub(crate) shortened: bool,
}

impl Diversions {
    /// Has every diversion written down in `ledger`, and starts with those that are in it.
    pub(super) fn remember(&mut self, ledger: Arc<dyn Ledger>, earlier: &[Diverted]) {
        let diversions = earlier.iter().map(|diverted| {
            let diversion = Diversion {
                from: diverted.from,
                now: diverted.now,
                attr: diverted.attr,
                believed: Some(diverted.believed),
            };
            (diverted.file, diversion)
        });
        let files = self.files.get_mut();
        files.extend(diversions);
        *self.count.get_mut() = files.len() as u64;
        *self.noted.get_mut() = files.len() as u64;
        self.ledger = Some(ledger);
    }

    /// Records that a file of names that are revalidated, which was expected in version `asked`, is in
    /// version `now`.
    ///
    /// # Errors
    /// If the record cannot be written. Then the file is not diverted: the new version must not be
    /// served, because the next server would not know of it and serve the old one.
    pub(super) fn divert(
        &self,
        file: FileId,
        asked: Version,
        now: Version,
    ) -> Result<(), SourceError> {
        let told = self.told.lock();
        let from = match self.find(file) {
            Some(diversion) if diversion.now == asked => diversion.from,
            _ => asked,
        };
        self.note(&told, file, from, now, None)
    }

    /// Records that a file, which has version `named` by its names and was expected in version `asked`, has
    /// the attributes `attr`. If it has another version than `asked` by now, another reader was faster:
    /// nothing is recorded, and a caller that asks again gets what that reader found.
    ///
    /// # Errors
    /// As [`Diversions::divert`].
    pub(super) fn divert_fixed(
        &self,
        file: FileId,
        named: Version,
        asked: Version,
        attr: Attr,
    ) -> Result<(), SourceError> {
        let told = self.told.lock();
        let known = self.find(file).filter(|known| known.from == named);
        if known.map_or(named, |known| known.now) != asked {
            return Ok(());
        }
        self.note(&told, file, named, attr.version(), Some(attr))
    }

    fn find(&self, file: FileId) -> Option<Diversion> {
        self.files.read().get(&file).copied()
    }

    /// Enters a diversion, for whoever holds the lock of `told`: one after the other. Only those who
    /// found a change wait for it.
    fn note(
        &self,
        told: &Option<OnDiverted>,
        file: FileId,
        from: Version,
        now: Version,
        attr: Option<Attr>,
    ) -> Result<(), SourceError> {
        let before = self.find(file);
        if before.is_some_and(|before| (before.from, before.now) == (from, now)) {
            return Ok(());
        }
        let earlier = before.and_then(|before| before.believed).unwrap_or(0);
        let last = before.filter(|before| before.from == from);
        let last = last.map_or(from.size, |before| before.now.size);
        let believed = earlier.max(last).max(now.size);
        self.write_down(&Diverted {
            file,
            from,
            now,
            attr,
            believed,
        })?;
        let diversion = Diversion {
            from,
            now,
            attr,
            // If nobody is told, there is no kernel that believes anything.
            believed: told.is_some().then_some(believed),
        };
        {
            let mut files = self.files.write();
            files.insert(file, diversion);
            self.count.store(files.len() as u64, Relaxed);
        }
        if before.is_none() && self.noted.fetch_add(1, Relaxed) == 0 {
            log::warn!(
                "file {} changed since it was scanned or recorded; it is served from the source \
                 from now on (further files are only counted)",
                file.0
            );
        }
        if let Some(told) = told {
            told(file);
        }
        Ok(())
    }

    fn write_down(&self, diverted: &Diverted) -> Result<(), SourceError> {
        let noted = self.ledger.as_ref().map(|ledger| ledger.note(diverted));
        noted.unwrap_or(Ok(())).map_err(|error| {
            let file = diverted.file;
            log::warn!("cannot record that file {} changed: {error}", file.0);
            // Without the cause: "no space" is nothing that a reader can do anything about.
            SourceError::new(SourceErrorKind::Io, "writing down a change").about(file)
        })
    }

    /// Returns the version of a file if a response that ends at `end`, where bytes up to `wanted` were
    /// requested, could make the kernel serve zeros as content.
    pub(super) fn cuts(&self, file: FileId, end: u64, wanted: u64) -> Option<Version> {
        let diversion = self.diversion(file)?;
        let believed = diversion.believed?;
        (end < wanted.min(believed)).then_some(diversion.now)
    }

    /// Returns the version of a diverted file of which the kernel may have outdated data.
    pub(crate) fn unsettled(&self, file: FileId) -> Option<Unsettled> {
        let Diversion { now, believed, .. } = self.diversion(file)?;
        let shortened = believed? > now.size;
        Some(Unsettled { now, shortened })
    }

    /// Notes that the kernel has invalidated a file, and knows its size in the version `now` if it is
    /// shorter, unless it has changed again since.
    pub(crate) fn settle(&self, file: FileId, now: Version) {
        if let Some(diversion) = self.files.write().get_mut(&file)
            && diversion.now == now
        {
            diversion.believed = None;
        }
    }

    /// [Settles](Self::settle) a file, and forgets it: the names know its version.
    pub(crate) fn forget(&self, file: FileId, now: Version) {
        let mut files = self.files.write();
        if files.get(&file).is_some_and(|known| known.now == now) {
            files.remove(&file);
            self.count.store(files.len() as u64, Relaxed);
        }
    }

    /// Returns whether a file is diverted.
    pub(super) fn has(&self, file: FileId) -> bool {
        self.diversion(file).is_some()
    }

    /// Begins to look at a file again: if it is diverted, the kernel knows all of that, and nobody looks at it.
    pub(super) fn begin_look(&self, file: FileId) -> bool {
        let settled = self
            .diversion(file)
            .is_some_and(|diversion| diversion.believed.is_none());
        settled && self.looked_at.lock().insert(file)
    }

    pub(super) fn end_look(&self, file: FileId) {
        self.looked_at.lock().remove(&file);
    }

    fn diversion(&self, file: FileId) -> Option<Diversion> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        self.files.read().get(&file).copied()
    }

    /// Notes that the new content of a file is refused.
    pub(super) fn refuse(&self, file: FileId) {
        if !self.refused.swap(true, Relaxed) {
            log::warn!(
                "file {} was replaced by one with another owner, mode, access list or extended \
                 attribute, or lies where fewer users get to: none of its content is given, until \
                 it is mounted anew (further files are not logged)",
                file.0
            );
        }
    }

    /// Returns the present attributes of a file, given those of the namespace.
    pub(super) fn correct(&self, file: FileId, attr: Attr) -> Attr {
        match self.diversion(file) {
            Some(Diversion {
                from,
                now,
                attr: known,
                ..
            }) if from == attr.version() => known.unwrap_or(Attr {
                size: now.size,
                mtime: now.mtime,
                ctime: now.ctime,
                source_inode: now.inode,
                // The space it takes now is not known: as if it had no holes, in units of 512.
                blocks: now.size.div_ceil(512),
                ..attr
            }),
            _ => attr,
        }
    }

    /// Returns how many files were ever recorded.
    pub(super) fn noted(&self) -> u64 {
        self.noted.load(Relaxed)
    }

    pub(super) fn files(&self) -> Vec<FileId> {
        let mut files: Vec<FileId> = self.files.read().keys().copied().collect();
        files.sort_unstable();
        files
    }

    /// Sets the callback for every file that is diverted from now on, or none.
    pub(crate) fn tell(&self, told: Option<OnDiverted>) {
        let _before = std::mem::replace(&mut *self.told.lock(), told);
    }

    /// Calls the callback again for every diverted file: the server that diverted it may have died before
    /// the kernel invalidated the old version.
    pub(crate) fn tell_again(&self) {
        let told = self.told.lock();
        if let Some(told) = &*told {
            self.files().into_iter().for_each(told);
        }
    }

    /// Calls the callback for a file that the kernel has to invalidate in part, now or later.
    pub(super) fn tell_of(&self, file: FileId) {
        if let Some(told) = &*self.told.lock() {
            told(file);
        }
    }

    /// Starts to push pages of a file, unless it is diverted.
    ///
    /// While the guard lives, [`Diversions::wait_for_pushes`] waits. So a page of the old version
    /// is either pushed before the kernel is told to invalidate the old version, or never.
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

    fn divert(diversions: &Diversions, file: FileId, asked: Version, now: Version) {
        diversions.divert(file, asked, now).unwrap();
    }

    #[test]
    fn a_file_that_changes_twice_is_followed() {
        let diversions = Diversions::default();
        let attr = blocks::testing::attr(NodeKind::File);
        divert(&diversions, FileId(7), version(0), version(1));
        divert(&diversions, FileId(7), version(1), version(2));
        assert_eq!(diversions.correct(FileId(7), attr).size, 2);
        assert_eq!(diversions.correct(FileId(8), attr), attr);
        assert_eq!(diversions.files(), [FileId(7)]);
        assert_eq!(diversions.noted(), 1);
    }

    #[test]
    fn a_namespace_that_learns_of_the_change_is_believed() {
        let diversions = Diversions::default();
        divert(&diversions, FileId(7), version(0), version(1));
        let mut fresh = blocks::testing::attr(NodeKind::File);
        fresh.size = 3;
        assert_eq!(diversions.correct(FileId(7), fresh), fresh);
    }

    #[test]
    fn nothing_is_pushed_into_a_diverted_file() {
        let diversions = Diversions::default();
        assert!(diversions.begin_push(FileId(7)).is_some());
        divert(&diversions, FileId(7), version(0), version(1));
        assert!(diversions.begin_push(FileId(7)).is_none());
        assert!(diversions.begin_push(FileId(8)).is_some());
    }

    #[test]
    fn who_is_late_to_find_a_change_takes_nothing_back() {
        let diversions = Diversions::default();
        let file = FileId(7);
        let named = blocks::testing::attr(NodeKind::File);
        let of = |size| Attr { size, ..named };
        let divert = |asked: u64, now: u64| {
            let (named, asked) = (named.version(), of(asked).version());
            diversions.divert_fixed(file, named, asked, of(now))
        };
        let size = || diversions.correct(file, named).size;
        divert(named.size, 1).unwrap();
        divert(1, 2).unwrap();
        // Two readers found the same change, and a third one an earlier version than they.
        divert(1, 2).unwrap();
        assert_eq!(size(), 2);
        divert(named.size, 1).unwrap();
        assert_eq!(size(), 2);
        // The file may go back by itself.
        divert(2, 1).unwrap();
        assert_eq!(size(), 1);
    }

    #[test]
    fn every_change_is_told() {
        let diversions = Diversions::default();
        let (sender, receiver) = std::sync::mpsc::channel();
        diversions.tell(Some(Box::new(move |file| sender.send(file).unwrap())));
        divert(&diversions, FileId(7), version(0), version(1));
        divert(&diversions, FileId(7), version(0), version(1));
        divert(&diversions, FileId(7), version(1), version(2));
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [FileId(7); 2]);
    }

    #[test]
    fn a_short_answer_is_none_until_the_kernel_knows_the_size() {
        let diversions = Diversions::default();
        let file = FileId(7);
        diversions.tell(Some(Box::new(|_| ())));
        divert(&diversions, file, version(9000), version(5000));
        assert_eq!(diversions.cuts(file, 5000, 8192), Some(version(5000)));
        assert_eq!(
            diversions.cuts(file, 5000, 5000),
            None,
            "all that was asked for"
        );
        let unsettled = |size, shortened| {
            let now = version(size);
            Some(Unsettled { now, shortened })
        };
        assert_eq!(diversions.unsettled(file), unsettled(5000, true));
        // The kernel may still believe the first size, and is not told by who saw the second.
        divert(&diversions, file, version(5000), version(6000));
        diversions.settle(file, version(5000));
        assert_eq!(diversions.cuts(file, 6000, 8192), Some(version(6000)));
        diversions.settle(file, version(6000));
        assert_eq!(diversions.cuts(file, 6000, 8192), None);
        assert_eq!(diversions.unsettled(file), None);
        // Nor does it believe more than the last size that it was told.
        divert(&diversions, file, version(6000), version(100));
        assert_eq!(diversions.cuts(file, 8192, 12288), None);
        assert_eq!(diversions.cuts(file, 100, 4096), Some(version(100)));
    }

    #[test]
    fn a_file_that_grew_is_answered_to_its_end() {
        let diversions = Diversions::default();
        diversions.tell(Some(Box::new(|_| ())));
        divert(&diversions, FileId(7), version(10), version(5000));
        assert_eq!(diversions.cuts(FileId(7), 5000, 8192), None);
        let now = version(5000);
        let shortened = false;
        let unsettled = Some(Unsettled { now, shortened });
        assert_eq!(diversions.unsettled(FileId(7)), unsettled);
        // Once the kernel has forgotten, what it was told then is of no account: where the names are
        // asked again and again, the file may be shorter at the next look, with no diversion.
        diversions.settle(FileId(7), now);
        assert_eq!(diversions.cuts(FileId(7), 100, 4096), None);
    }

    #[test]
    fn a_file_that_changed_has_all_attributes_of_the_new_version() {
        let diversions = Diversions::default();
        let attr = blocks::testing::attr(NodeKind::File);
        let now = Attr {
            perm: 0o755,
            nlink: 7,
            blocks: 3,
            size: 9,
            ..attr
        };
        let version = attr.version();
        diversions
            .divert_fixed(FileId(7), version, version, now)
            .unwrap();
        assert_eq!(diversions.correct(FileId(7), attr), now);
    }
}
