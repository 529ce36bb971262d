//! Files that were read so soon after a change that another one may have left the same version.
//!
//! Times of files have a granularity: of the kernel's tick, or of a second or two. A page that is read
//! within one step of the last change may have content from before another change in that step, which no
//! version shows. So the kernel's pages of such a file are invalidated once the step is over, and
//! read again; later changes have other times.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use blocks::{FileId, Timestamp, Version};
use parking_lot::Mutex;

/// How long no check is made when nothing is to come.
const IDLE: Duration = Duration::from_secs(3600);

/// The files that the kernel has to invalidate, and when. A file is here for two seconds at most after it
/// was read last, and only if it had changed shortly before.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    files: Mutex<HashMap<FileId, Read>>,
    /// The file that the kernel is invalidating now.
    going: Mutex<Option<Due>>,
}

#[derive(Clone, Copy, Debug)]
struct Read {
    forget_at: Instant,
    /// The largest size that it had when it was read.
    size: u64,
}

/// A file that is to be forgotten now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// The file.
    pub(crate) file: FileId,
    size: u64,
}

impl Recent {
    /// Records that a file was read in a version, by a read that began at `begun`. Returns whether it
    /// was added.
    pub(super) fn read(&self, file: FileId, version: &Version, begun: SystemTime) -> bool {
        if !version.is_recent(Timestamp::of(begun)) {
            return false;
        }
        // By our clock from now on: that of a file server may be ahead.
        let forget_at = Instant::now() + version.tick();
        let mut files = self.files.lock();
        let before = files.get(&file).map(|read| read.size);
        let size = before.unwrap_or(0).max(version.size);
        files.insert(file, Read { forget_at, size });
        before.is_none()
    }

    /// Returns for how long there is nothing to forget.
    pub(crate) fn idle(&self) -> Duration {
        let next = self.files.lock().values().map(|read| read.forget_at).min();
        next.map_or(IDLE, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Removes and returns the files that are to be invalidated now.
    pub(crate) fn take_due(&self) -> Vec<Due> {
        let now = Instant::now();
        let mut files = self.files.lock();
        let due = files.extract_if(|_, read| read.forget_at <= now);
        due.map(|(file, Read { size, .. })| Due { file, size })
            .collect()
    }

    /// Records which file the kernel is invalidating now; `None` when it has.
    pub(crate) fn forgets(&self, due: Option<Due>) {
        *self.going.lock() = due;
    }

    /// Returns whether a response about a file that ends at `end`, where bytes up to `wanted` were
    /// requested, could make the kernel serve zeros as content: it takes the response for the end of a file
    /// that was truncated, but not while it invalidates the file.
    pub(super) fn cuts(&self, file: FileId, end: u64, wanted: u64) -> bool {
        let going = *self.going.lock();
        going.is_some_and(|due| due.file == file && end < wanted.min(due.size))
    }

    /// Returns whether a file is to be forgotten later.
    pub(crate) fn holds(&self, file: FileId) -> bool {
        self.files.lock().contains_key(&file)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use blocks::testing::{MemAttrs, MemSource, Node, tree};
    use blocks::{BlockSource, Caller, FileKey, SourceError, SourceErrorKind, Tree};

    use super::*;
    use crate::fs::{CachePath, Config, FileSystem, FsError};

    #[test]
    fn what_was_read_just_after_a_change_is_forgotten_once_and_not_at_once() {
        let recent = Recent::default();
        let ctime = Timestamp::of(SystemTime::now());
        let version = Version {
            ctime,
            ..Version::default()
        };
        let old = Version {
            ctime: Timestamp {
                secs: ctime.secs - 3,
                nanos: 0,
            },
            ..version
        };
        assert!(!recent.read(FileId(1), &old, SystemTime::now()));
        assert!(recent.idle() > Duration::from_secs(60));
        let before = Instant::now();
        assert!(recent.read(FileId(2), &version, SystemTime::now()));
        assert!(
            !recent.read(FileId(2), &version, SystemTime::now()),
            "noted already"
        );
        assert!(recent.idle() <= version.tick());
        let mut due = recent.take_due();
        while due.is_empty() {
            assert!(recent.holds(FileId(2)));
            std::thread::sleep(recent.idle());
            due = recent.take_due();
        }
        assert!(before.elapsed() >= version.tick());
        assert_eq!(
            due.iter().map(|due| due.file).collect::<Vec<_>>(),
            [FileId(2)]
        );
        assert!(!recent.holds(FileId(2)));
        assert!(recent.take_due().is_empty());
    }

    #[test]
    fn a_file_that_is_cut_short_while_it_is_forgotten_ends_in_no_zeros() {
        let recent = Recent::default();
        let (file, size) = (FileId(2), 5000);
        assert!(!recent.cuts(file, 100, 4096));
        recent.forgets(Some(Due { file, size }));
        assert!(recent.cuts(file, 100, 4096));
        assert!(!recent.cuts(file, 5000, 8192), "its end");
        assert!(!recent.cuts(file, 4096, 4096), "all that was asked for");
        assert!(!recent.cuts(FileId(3), 100, 4096));
        recent.forgets(None);
        assert!(!recent.cuts(file, 100, 4096));
    }

    /// A file that was changed a moment ago.
    fn changed(size: usize) -> Tree {
        let mut file = Node::file(size as u64);
        let now = Timestamp::of(SystemTime::now());
        (file.attr.mtime, file.attr.ctime) = (now, now);
        tree(&[Node::dir(&[("file", 1)]), file]).unwrap()
    }

    /// A source that is another one from one moment to the next, and slow.
    #[derive(Default)]
    struct Slow(Mutex<MemSource>);

    impl Slow {
        fn put(&self, tree: &Tree, size: usize) {
            let key = tree.key(FileId(1)).unwrap();
            self.0.lock().insert(key, vec![1; size]);
        }
    }

    impl BlockSource for Slow {
        fn read_at(
            &self,
            file: &FileKey,
            offset: u64,
            buf: &mut [u8],
        ) -> Result<usize, SourceError> {
            let read = self.0.lock().read_at(file, offset, buf);
            // The bytes are taken, and another change in this moment would leave no trace.
            while file.version.is_recent(Timestamp::of(SystemTime::now())) {
                std::thread::yield_now();
            }
            read
        }
    }

    fn read(fs: &FileSystem) -> Result<usize, FsError> {
        let path = CachePath::Through;
        fs.read(Caller::default(), FileId(1), 0, &mut [0; 8192], path)
    }

    #[test]
    fn a_read_that_takes_longer_than_a_step_of_the_clock_is_of_when_it_began() {
        let source = Arc::new(Slow::default());
        let tree = changed(5000);
        source.put(&tree, 5000);
        let fs = FileSystem::new(Arc::new(tree), source, Config::default());
        assert_eq!(read(&fs).unwrap(), 5000);
        assert!(fs.recent().holds(FileId(1)));
    }

    #[test]
    fn no_answer_ends_too_early_while_the_kernel_forgets() {
        let (long, short) = (changed(5000), changed(100));
        let source = Arc::new(Slow::default());
        source.put(&long, 5000);
        let attrs = Arc::new(MemAttrs::of(&long));
        let fs = FileSystem::new(Arc::new(long), source.clone(), Config::default());
        let fs = fs.with_attrs(attrs.clone());
        assert_eq!(read(&fs).unwrap(), 5000);
        source.put(&short, 100);
        let version = short.key(FileId(1)).unwrap().version;
        attrs.set_version(FileId(1), version);
        assert!(fs.recent().holds(FileId(1)));
        let due = loop {
            if let Some(due) = fs.recent().take_due().pop() {
                break due;
            }
            std::thread::sleep(fs.recent().idle());
        };
        fs.recent().forgets(Some(due));
        let error = read(&fs).unwrap_err();
        assert!(
            matches!(&error, FsError::Source(error) if error.kind() == SourceErrorKind::Stale { now: version }),
            "{error:?}"
        );
        fs.recent().forgets(None);
        assert_eq!(read(&fs).unwrap(), 100);
    }
}
