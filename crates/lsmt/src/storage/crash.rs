//! A folder that stops at a chosen step, and then has what a killed process or a loss of power leaves.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Folder, MemoryFolder, MemoryStorage, ReadAt, Storage};
use crate::num::{SECTOR, size, wide};

/// What came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process: completed operations stay.
    Process,
    /// The machine: any unsynced sectors may be lost, and the latest names.
    Power,
}

/// A pseudorandom generator, so that a seed determines all events.
#[derive(Clone, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// Begins with a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns the next number below a limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % limit.max(1)
    }
}

#[derive(Debug)]
enum Change {
    Write(u64, Vec<u8>),
    SetSize(u64),
    Punch(Range<u64>),
}

#[derive(Debug)]
enum NameChange {
    Create(String, Arc<CrashStorage>),
    Rename(String, String),
    Remove(String),
}

type Names = BTreeMap<String, Arc<CrashStorage>>;

/// How many steps there may be, and how many there were.
#[derive(Debug)]
struct Steps {
    left: Mutex<Option<u64>>,
    taken: Mutex<u64>,
}

impl Steps {
    fn take(&self) -> io::Result<()> {
        let mut left = self.left.lock();
        if let Some(left) = left.as_mut() {
            *left = left
                .checked_sub(1)
                .ok_or_else(|| io::Error::other("the crash of a test"))?;
        }
        *self.taken.lock() += 1;
        Ok(())
    }
}

/// A folder that can crash.
#[derive(Debug)]
pub struct CrashFolder {
    steps: Arc<Steps>,
    names: Mutex<Names>,
    durable: Mutex<Names>,
    changes: Mutex<Vec<NameChange>>,
}

/// A file of a [`CrashFolder`].
#[derive(Debug)]
pub struct CrashStorage {
    steps: Arc<Steps>,
    live: MemoryStorage,
    durable: Mutex<Vec<u8>>,
    changes: Mutex<Vec<Change>>,
}

impl Default for CrashFolder {
    fn default() -> Self {
        let steps = Steps {
            left: Mutex::new(None),
            taken: Mutex::new(0),
        };
        Self {
            steps: Arc::new(steps),
            names: Mutex::default(),
            durable: Mutex::default(),
            changes: Mutex::default(),
        }
    }
}

impl CrashFolder {
    /// Returns a folder with the files of another one, durable.
    ///
    /// # Panics
    ///
    /// Panics if a file has disappeared meanwhile.
    pub fn of(left: &MemoryFolder) -> Self {
        let folder = Self::default();
        for (name, bytes) in left.files() {
            let file = folder.create(&name).expect("no crash is set");
            file.write_at(&bytes, 0).expect("no crash is set");
            file.sync().expect("no crash is set");
        }
        folder.sync().expect("no crash is set");
        *folder.steps.taken.lock() = 0;
        folder
    }

    /// Lets so many more steps succeed, and none after them. A step is a change or a sync.
    pub fn crash_after(&self, steps: u64) {
        *self.steps.left.lock() = Some(steps);
    }

    /// Returns how many steps were taken.
    pub fn steps(&self) -> u64 {
        *self.steps.taken.lock()
    }

    /// Returns a folder after a crash: with the durable data and all or some of the later changes.
    pub fn left_by(&self, crash: Crash, numbers: &mut Numbers) -> MemoryFolder {
        let left = MemoryFolder::default();
        match crash {
            Crash::Process => {
                for (name, file) in &*self.names.lock() {
                    left.put(name, file.live.bytes());
                }
            }
            Crash::Power => {
                let mut names = self.durable.lock().clone();
                let changes = self.changes.lock();
                let kept = numbers.below(wide(changes.len()) + 1);
                for change in changes.iter().take(size(kept)) {
                    apply(&mut names, change);
                }
                for (name, file) in names {
                    left.put(&name, file.left(numbers));
                }
            }
        }
        left
    }
}

fn apply(names: &mut Names, change: &NameChange) {
    match change {
        NameChange::Create(name, file) => drop(names.insert(name.clone(), file.clone())),
        NameChange::Remove(name) => drop(names.remove(name)),
        NameChange::Rename(from, to) => {
            if let Some(file) = names.remove(from) {
                drop(names.insert(to.clone(), file));
            }
        }
    }
}

impl Folder for CrashFolder {
    fn open(&self, name: &str) -> io::Result<Arc<dyn Storage>> {
        let names = self.names.lock();
        let file = names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(file.clone())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn Storage>> {
        self.steps.take()?;
        let file = Arc::new(CrashStorage {
            steps: self.steps.clone(),
            live: MemoryStorage::default(),
            durable: Mutex::default(),
            changes: Mutex::default(),
        });
        let change = NameChange::Create(name.to_owned(), file.clone());
        apply(&mut self.names.lock(), &change);
        self.changes.lock().push(change);
        Ok(file)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.steps.take()?;
        let change = NameChange::Rename(from.to_owned(), to.to_owned());
        apply(&mut self.names.lock(), &change);
        self.changes.lock().push(change);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.steps.take()?;
        let change = NameChange::Remove(name.to_owned());
        apply(&mut self.names.lock(), &change);
        self.changes.lock().push(change);
        Ok(())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.names.lock().keys().cloned().collect())
    }

    fn sync(&self) -> io::Result<()> {
        self.steps.take()?;
        let mut changes = self.changes.lock();
        let mut durable = self.durable.lock();
        for change in changes.drain(..) {
            apply(&mut durable, &change);
        }
        Ok(())
    }
}

impl CrashStorage {
    /// Returns what is durable, and of what is not, any sectors.
    fn left(&self, numbers: &mut Numbers) -> Vec<u8> {
        let left = MemoryStorage::new(self.durable.lock().clone());
        for change in &*self.changes.lock() {
            let done = match change {
                Change::Write(offset, bytes) => write_some(&left, *offset, bytes, numbers),
                _ if numbers.below(2) == 0 => Ok(()),
                Change::SetSize(len) => left.set_size(*len),
                Change::Punch(range) => left.punch(range.clone()),
            };
            done.expect("memory does not fail");
        }
        left.bytes()
    }

    fn changed(&self, change: Change) {
        self.changes.lock().push(change);
    }
}

/// Writes some of the sectors; the end of the file may move further than what is written.
fn write_some(
    to: &MemoryStorage,
    offset: u64,
    bytes: &[u8],
    numbers: &mut Numbers,
) -> io::Result<()> {
    // Mostly all or nothing, since what is small is seldom torn.
    let mode = numbers.below(4);
    if mode == 0 {
        return Ok(());
    }
    if mode == 1 && to.size()? < offset + wide(bytes.len()) {
        to.set_size(offset + wide(bytes.len()))?;
    }
    let mut at = offset;
    let mut rest = bytes;
    while !rest.is_empty() {
        let len = size(SECTOR - at % SECTOR).min(rest.len());
        let (sector, later) = rest.split_at(len);
        if mode == 3 || numbers.below(2) == 0 {
            to.write_at(sector, at)?;
        }
        at += wide(len);
        rest = later;
    }
    Ok(())
}

impl ReadAt for CrashStorage {
    fn size(&self) -> io::Result<u64> {
        self.live.size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.live.read_at(buffer, offset)
    }
}

impl Storage for CrashStorage {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.steps.take()?;
        self.live.write_at(bytes, offset)?;
        self.changed(Change::Write(offset, bytes.to_vec()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.steps.take()?;
        *self.durable.lock() = self.live.bytes();
        self.changes.lock().clear();
        Ok(())
    }

    fn set_size(&self, len: u64) -> io::Result<()> {
        self.steps.take()?;
        self.live.set_size(len)?;
        self.changed(Change::SetSize(len));
        Ok(())
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        self.steps.take()?;
        self.live.punch(range.clone())?;
        self.changed(Change::Punch(range));
        Ok(())
    }

    fn data_ranges(&self) -> io::Result<Vec<Range<u64>>> {
        self.live.data_ranges()
    }
}
