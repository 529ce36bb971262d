//! Cache of the records of whole copies of a source's files, for a mount of it: a start opens
//! hundreds of files, most of which have none.
//!
//! It is valid as long as the directory of records does not change.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use blocks::{ContentId, FileKey};
use parking_lot::Mutex;

use super::known::Knowledge;

/// How old the last change must be before anything is remembered: another one soon after it may
/// have the same time.
const SETTLED: Duration = Duration::from_secs(1);
/// Files that are remembered: more than are known at all. Then it is begun anew.
const FILES_MAX: usize = 65_536;

/// Which objects the copies of files are.
#[derive(Debug)]
pub(super) struct Remembered {
    known: Knowledge,
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    /// The directory's last modification time.
    changed: Option<SystemTime>,
    objects: HashMap<FileKey, Option<ContentId>>,
}

impl Remembered {
    pub(super) fn new(known: Knowledge) -> Self {
        Self {
            known,
            memory: Mutex::default(),
        }
    }

    /// Returns the object that is the copy of a file, whose record has the key that `key` returns; `None` if
    /// there is none.
    pub(super) fn object_of(
        &self,
        file: &FileKey,
        key: impl FnOnce() -> Option<ContentId>,
    ) -> Option<ContentId> {
        let [dir, _] = self.known.dirs();
        // Looked at before anything is read: what changes meanwhile has a later time.
        let changed = changed_at(dir)?;
        let is_settled = changed.elapsed().is_ok_and(|age| age > SETTLED);
        if is_settled {
            let mut memory = self.memory.lock();
            if memory.changed != Some(changed) || memory.objects.len() >= FILES_MAX {
                *memory = Memory {
                    changed: Some(changed),
                    objects: HashMap::new(),
                };
            }
            if let Some(object) = memory.objects.get(file) {
                return *object;
            }
        }
        let object = self.known.get(key()?).and_then(|known| known.object);
        let mut memory = self.memory.lock();
        if is_settled && memory.changed == Some(changed) {
            memory.objects.insert(*file, object);
        }
        object
    }
}

fn changed_at(dir: &Path) -> Option<SystemTime> {
    fs::metadata(dir).and_then(|found| found.modified()).ok()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs::{File, FileTimes};

    use super::*;

    /// A directory of what is known, whose changes are long past.
    struct Rig {
        dir: tempfile::TempDir,
        known: Knowledge,
        asked: Cell<u32>,
    }

    impl Rig {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let known = Knowledge::in_dir(dir.path());
            let asked = Cell::new(0);
            Self { dir, known, asked }
        }

        fn note(&self, object: Option<&[u8]>, seconds_ago: u64) {
            let object = object.map(ContentId::of);
            self.known
                .change(key(), |known| known.object = object)
                .unwrap();
            let then = SystemTime::now() - Duration::from_secs(seconds_ago);
            let dir = File::open(self.dir.path().join("known")).unwrap();
            dir.set_times(FileTimes::new().set_modified(then)).unwrap();
        }

        fn ask(&self, remembered: &Remembered) -> Option<ContentId> {
            remembered.object_of(&file(), || {
                self.asked.set(self.asked.get() + 1);
                Some(key())
            })
        }
    }

    fn key() -> ContentId {
        ContentId::of(b"file")
    }

    fn file() -> FileKey {
        FileKey {
            file: blocks::FileId(7),
            version: blocks::Version::default(),
        }
    }

    #[test]
    fn what_is_known_is_read_once_until_it_changes() {
        let rig = Rig::new();
        let remembered = Remembered::new(rig.known.clone());
        assert_eq!(rig.ask(&remembered), None, "nothing was ever known");
        rig.note(None, 100);
        for _ in 0..3 {
            assert_eq!(rig.ask(&remembered), None);
        }
        assert_eq!(rig.asked.get(), 1, "that there is none is remembered, too");
        rig.note(Some(b"one"), 90);
        for _ in 0..3 {
            assert_eq!(rig.ask(&remembered), Some(ContentId::of(b"one")));
        }
        assert_eq!(rig.asked.get(), 2);
        rig.note(None, 80);
        assert_eq!(rig.ask(&remembered), None);
    }

    #[test]
    fn nothing_is_remembered_while_another_change_may_have_the_same_time() {
        let rig = Rig::new();
        let remembered = Remembered::new(rig.known.clone());
        // Of the future, as after a clock that was put back: never younger than it is.
        rig.note(Some(b"one"), 0);
        let dir = File::open(rig.dir.path().join("known")).unwrap();
        let later = SystemTime::now() + Duration::from_hours(1);
        let times = FileTimes::new().set_modified(later);
        dir.set_times(times).unwrap();
        assert_eq!(rig.ask(&remembered), Some(ContentId::of(b"one")));
        rig.known
            .change(key(), |known| known.object = None)
            .unwrap();
        dir.set_times(times).unwrap();
        assert_eq!(rig.ask(&remembered), None);
        assert_eq!(rig.asked.get(), 2);
    }
}
