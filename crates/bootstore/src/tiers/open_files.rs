//! Cache of open copies: a read of a file then needs no look-up, open or lock.
//!
//! An open copy holds no lock, so that any process can remove it at any time. Its content stays
//! readable then, and takes space on the tier. So each use checks whether the copy still has a name, and a
//! thread closes copies that have none any more, or were not used for a while.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use blocks::FileKey;
use parking_lot::{Condvar, Mutex};

/// Copies that are open at a time: a boot reads a few large files in turn.
const FILES_MAX: usize = 64;
/// How often copies are looked at that are not used: the time for which one that was taken away may still need
/// its room.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long an unused copy stays open.
const UNUSED_MAX: Duration = Duration::from_secs(10);

/// When unused copies are closed.
#[derive(Clone, Copy, Debug)]
struct Pace {
    look_every: Duration,
    unused_max: Duration,
}

/// Open copies of files. The version of a file is part of its key: a changed file is another one.
#[derive(Debug)]
pub(super) struct OpenFiles {
    shared: Arc<Shared>,
    pace: Pace,
    closer: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    files: HashMap<FileKey, Entry>,
    over: bool,
}

#[derive(Debug)]
struct Entry {
    file: Arc<File>,
    used: Instant,
}

impl OpenFiles {
    /// Returns a cache with nothing in it.
    pub(super) fn new() -> Self {
        Self::with_pace(Pace {
            look_every: LOOK_EVERY,
            unused_max: UNUSED_MAX,
        })
    }

    fn with_pace(pace: Pace) -> Self {
        Self {
            shared: Arc::default(),
            pace,
            closer: Mutex::default(),
        }
    }

    /// Returns the open copy of a file, unless it was taken away or replaced.
    pub(super) fn get(&self, key: &FileKey) -> Option<Arc<File>> {
        let file = {
            let mut state = self.shared.state.lock();
            let entry = state.files.get_mut(key)?;
            entry.used = Instant::now();
            Arc::clone(&entry.file)
        };
        if has_name(&file) {
            return Some(file);
        }
        self.forget(key, &file);
        None
    }

    /// Keeps a copy open that was opened just now.
    pub(super) fn keep(&self, key: &FileKey, file: File) -> Arc<File> {
        let file = Arc::new(file);
        if let Err(error) = self.start_closer() {
            log::warn!("copies are opened for each read: {error}");
            return file;
        }
        let entry = Entry {
            file: Arc::clone(&file),
            used: Instant::now(),
        };
        // Closed without the lock.
        let _closed = {
            let mut state = self.shared.state.lock();
            let full = state.files.len() >= FILES_MAX && !state.files.contains_key(key);
            let oldest = full.then(|| state.oldest()).flatten();
            let oldest = oldest.and_then(|key| state.files.remove(&key));
            (oldest, state.files.insert(*key, entry))
        };
        self.shared.changed.notify_all();
        file
    }

    /// Closes a copy, unless it was replaced by another one.
    pub(super) fn forget(&self, key: &FileKey, file: &Arc<File>) {
        let _closed = self.shared.state.lock().remove(key, file);
    }

    /// Starts the thread that closes copies. The first copy does that: a mount gives up its privileges before it
    /// serves, and threads that were there before would keep theirs.
    fn start_closer(&self) -> io::Result<()> {
        let mut closer = self.closer.lock();
        if closer.is_none() {
            let (shared, pace) = (Arc::clone(&self.shared), self.pace);
            let thread = std::thread::Builder::new().name("close-copies".to_owned());
            *closer = Some(thread.spawn(move || shared.close_unused(pace))?);
        }
        Ok(())
    }
}

impl State {
    fn oldest(&self) -> Option<FileKey> {
        let files = self.files.iter();
        let oldest = files.min_by_key(|(_, entry)| entry.used)?;
        Some(*oldest.0)
    }

    fn remove(&mut self, key: &FileKey, file: &Arc<File>) -> Option<Entry> {
        let is_it = |entry: &Entry| Arc::ptr_eq(&entry.file, file);
        self.files.get(key).is_some_and(is_it).then_some(())?;
        self.files.remove(key)
    }
}

impl Shared {
    /// Closes copies that are unused or were removed, until the cache is dropped.
    fn close_unused(&self, pace: Pace) {
        while let Some(files) = self.next_look(pace.look_every) {
            for (key, file, unused) in files {
                if unused > pace.unused_max || !has_name(&file) {
                    let _closed = self.state.lock().remove(&key, &file);
                }
            }
        }
    }

    /// Waits until it is time to look, and returns all copies with the time for which they were not used; `None`
    /// when the cache is dropped. Without copies there is nothing to look at.
    fn next_look(&self, look_every: Duration) -> Option<Vec<(FileKey, Arc<File>, Duration)>> {
        let mut state = self.state.lock();
        let mut deadline = None;
        while !state.over {
            if state.files.is_empty() {
                deadline = None;
                self.changed.wait(&mut state);
                continue;
            }
            let at = *deadline.get_or_insert_with(|| Instant::now() + look_every);
            if self.changed.wait_until(&mut state, at).timed_out() {
                let files = state.files.iter();
                let files = files.map(|(key, it)| (*key, Arc::clone(&it.file), it.used.elapsed()));
                return Some(files.collect());
            }
        }
        None
    }
}

impl Drop for OpenFiles {
    fn drop(&mut self) {
        self.shared.state.lock().over = true;
        self.shared.changed.notify_all();
        if let Some(closer) = self.closer.get_mut().take() {
            // A panic is on the log, and costs speed only.
            let _ended = closer.join();
        }
    }
}

/// Returns whether a file can still be opened by a name: one that was taken away or replaced cannot.
fn has_name(file: &File) -> bool {
    file.metadata().is_ok_and(|found| found.nlink() > 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use blocks::{FileId, Version};
    use tempfile::TempDir;

    use super::*;

    const NEVER: Duration = Duration::from_hours(1);
    const SOON: Duration = Duration::from_millis(1);

    fn files(look_every: Duration, unused_max: Duration) -> OpenFiles {
        OpenFiles::with_pace(Pace {
            look_every,
            unused_max,
        })
    }

    fn key(number: u32) -> FileKey {
        FileKey {
            file: FileId(number),
            version: Version::default(),
        }
    }

    fn copy(dir: &TempDir, content: &[u8]) -> File {
        let (new, path) = (dir.path().join("new"), dir.path().join("copy"));
        fs::write(&new, content).unwrap();
        fs::rename(&new, &path).unwrap();
        File::open(path).unwrap()
    }

    fn count(files: &OpenFiles) -> usize {
        files.shared.state.lock().files.len()
    }

    fn wait_until_closed(files: &OpenFiles) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while count(files) > 0 {
            assert!(Instant::now() < deadline, "it stays open");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_copy_stays_open_until_it_is_replaced_or_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(NEVER, NEVER);
        assert!(files.get(&key(1)).is_none());
        let one = files.keep(&key(1), copy(&dir, b"one"));
        let same = |other: Arc<File>| Arc::ptr_eq(&one, &other);
        assert!(files.get(&key(1)).is_some_and(same));
        assert!(files.get(&key(2)).is_none(), "of another file");

        let two = copy(&dir, b"two");
        assert!(files.get(&key(1)).is_none(), "it was replaced");
        assert_eq!(count(&files), 0);
        let two = files.keep(&key(1), two);
        files.forget(&key(1), &one);
        assert!(files.get(&key(1)).is_some(), "it is another one");
        files.forget(&key(1), &two);
        assert_eq!(count(&files), 0);

        files.keep(&key(1), copy(&dir, b"three"));
        fs::remove_file(dir.path().join("copy")).unwrap();
        assert!(files.get(&key(1)).is_none());
    }

    #[test]
    fn a_mount_that_reads_no_more_keeps_no_copy_that_was_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(SOON, NEVER);
        files.keep(&key(1), copy(&dir, b"one"));
        fs::remove_file(dir.path().join("copy")).unwrap();
        wait_until_closed(&files);
    }

    #[test]
    fn a_copy_that_is_not_used_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(SOON, SOON);
        files.keep(&key(1), copy(&dir, b"one"));
        wait_until_closed(&files);
        files.keep(&key(1), copy(&dir, b"one"));
        wait_until_closed(&files);
    }

    #[test]
    fn no_more_than_so_many_are_open_and_the_oldest_is_closed_first() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(NEVER, NEVER);
        let file = copy(&dir, b"one");
        let max = u32::try_from(FILES_MAX).unwrap();
        for number in 0..=max {
            files.keep(&key(number), file.try_clone().unwrap());
            assert!(files.get(&key(1)).is_some() || number == 0, "it is in use");
        }
        assert_eq!(count(&files), FILES_MAX);
        assert!(files.get(&key(0)).is_none());
        assert!(files.get(&key(max)).is_some());
    }
}
