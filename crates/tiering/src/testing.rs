//! Media for tests: one in memory that loses unsynced data in a crash, and one that stops or fails
//! another at any step.

mod stepped;

use std::collections::BTreeMap;
use std::io;

use parking_lot::Mutex;

use crate::medium::Medium;

pub use stepped::{End, Stepped, Steps};

/// Bytes that a disk writes as one; of a longer write that was not synced, any of them may be
/// there after a crash.
const SECTOR: usize = 64;

/// A directory in memory.
#[derive(Debug, Default)]
pub struct MemMedium(Mutex<Disk>);

#[derive(Debug, Default)]
struct Disk {
    files: BTreeMap<u64, Content>,
    next: u64,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    /// Changes of names since they were made durable.
    pending: Vec<NameChange>,
}

#[derive(Debug, Default)]
struct Content {
    now: Vec<u8>,
    durable: Vec<u8>,
}

#[derive(Clone, Debug)]
enum NameChange {
    Made(String, u64),
    Renamed(String, String),
    Removed(String),
}

impl NameChange {
    /// Does the change, as far as it can be done without those before it.
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Made(name, file) => {
                names.insert(name.clone(), *file);
            }
            Self::Renamed(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
            Self::Removed(name) => {
                names.remove(name);
            }
        }
    }
}

impl MemMedium {
    /// Simulates a power cut: any part of the unsynced data is lost.
    pub fn cut_power(&self, random: &mut Random) {
        let disk = &mut *self.0.lock();
        let mut names = disk.durable_names.clone();
        let in_order = random.below(2) == 0;
        let until = random.below(disk.pending.len() as u64 + 1);
        for (change, at) in disk.pending.iter().zip(0..) {
            let kept = if in_order {
                at < until
            } else {
                random.below(2) == 0
            };
            if kept {
                change.apply(&mut names);
            }
        }
        for content in disk.files.values_mut() {
            content.lose(random);
        }
        disk.names.clone_from(&names);
        disk.durable_names = names;
        disk.pending.clear();
    }

    /// Flips a bit of a file, as rot does. Nothing, where there is no such byte.
    pub fn rot(&self, name: &str, at: usize) {
        let disk = &mut *self.0.lock();
        let file = disk
            .names
            .get(name)
            .and_then(|file| disk.files.get_mut(file));
        if let Some(byte) = file.and_then(|content| content.now.get_mut(at)) {
            *byte ^= 1;
        }
    }
}

impl Content {
    fn lose(&mut self, random: &mut Random) {
        let lengths = [self.now.len(), self.durable.len()];
        let len = lengths[usize::from(random.below(2) == 0)];
        let mut left = self.durable.clone();
        left.resize(len, 0);
        for (sector, now) in left.chunks_mut(SECTOR).zip(self.now.chunks(SECTOR)) {
            if random.below(2) == 0 {
                let both = sector.len().min(now.len());
                sector[..both].copy_from_slice(&now[..both]);
            }
        }
        if self.now != self.durable {
            self.now = left;
        }
        self.durable.clone_from(&self.now);
    }
}

impl Disk {
    fn file(&mut self, name: &str) -> io::Result<&mut Content> {
        let file = self.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        self.files
            .get_mut(file)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.pending.push(change);
    }
}

impl Medium for MemMedium {
    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let disk = &mut *self.0.lock();
        if !disk.names.contains_key(name) {
            disk.next += 1;
            disk.files.insert(disk.next, Content::default());
            disk.change(NameChange::Made(name.to_owned(), disk.next));
        }
        let now = &mut disk.file(name)?.now;
        let begin = usize::try_from(offset).map_err(io::Error::other)?;
        let end = begin + bytes.len();
        if now.len() < end {
            now.resize(end, 0);
        }
        now[begin..end].copy_from_slice(bytes);
        Ok(())
    }

    fn read_at(&self, name: &str, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let disk = &mut *self.0.lock();
        let now = &disk.file(name)?.now;
        let begin = usize::try_from(offset).unwrap_or(usize::MAX).min(now.len());
        let read = buf.len().min(now.len() - begin);
        buf[..read].copy_from_slice(&now[begin..begin + read]);
        Ok(read)
    }

    fn give_back(&self, name: &str, offset: u64, len: u64) -> io::Result<()> {
        let disk = &mut *self.0.lock();
        let now = &mut disk.file(name)?.now;
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(now.len());
        let part = place(offset)..place(offset.saturating_add(len));
        now[part].fill(0);
        Ok(())
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        let disk = &mut *self.0.lock();
        let content = disk.file(name)?;
        content.durable.clone_from(&content.now);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let disk = &mut *self.0.lock();
        disk.file(from)?;
        disk.change(NameChange::Renamed(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let disk = &mut *self.0.lock();
        disk.file(name)?;
        disk.change(NameChange::Removed(name.to_owned()));
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let disk = &mut *self.0.lock();
        disk.durable_names.clone_from(&disk.names);
        disk.pending.clear();
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let disk = &*self.0.lock();
        let len = |file: &u64| disk.files.get(file).map_or(0, |content| content.now.len());
        let files = disk
            .names
            .iter()
            .map(|(name, file)| (name.clone(), len(file) as u64));
        Ok(files.collect())
    }
}

/// Numbers that look random and are the same each time: SplitMix64 (Steele et al., 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns the numbers that belong to `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }
}
