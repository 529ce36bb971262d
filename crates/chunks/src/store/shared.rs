//! A store that several processes share: each writes its own part, and reads all parts.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::format::Line;
use super::segment::{Segment, number_of};
use super::{
    ChunkId, ChunkStore, Class, DiskStore, OpenStoreError, PutError, PutOutcome, StoreConfig,
    StoreStats, Stored,
};

/// Parts of a store, at most. With more processes, the last ones only read.
const PARTS: u64 = 4;
/// Segments of another process that are read, at most.
const SEGMENTS_MAX: usize = 4096;

/// Chunks in a directory that several processes use at the same time.
///
/// What another process writes after this one has opened the store is not seen. All parts together keep to
/// the budget; each has an equal share of it.
#[derive(Debug)]
pub struct SharedStore {
    own: Option<DiskStore>,
    others: Vec<Others>,
}

/// The part of another process, as it was when the store was opened. Its segments stay readable when they are
/// removed.
#[derive(Debug, Default)]
struct Others {
    chunks: HashMap<ChunkId, (usize, Line)>,
    segments: Vec<Segment>,
    hits: AtomicU64,
}

impl SharedStore {
    /// Opens the store in `dir`, which is created if missing.
    ///
    /// # Errors
    /// If the configuration is invalid for a part of the budget, or a file cannot be used.
    pub fn open(dir: &Path, config: StoreConfig) -> Result<Self, OpenStoreError> {
        let config = StoreConfig {
            budget_bytes: config.budget_bytes / PARTS,
            ..config
        };
        let mut own = None;
        let mut others = Vec::new();
        for number in 0..PARTS {
            let part = part_of(dir, number);
            if own.is_none() {
                match DiskStore::open(&part, config) {
                    Ok(store) => {
                        own = Some(store);
                        continue;
                    }
                    Err(OpenStoreError::Locked { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            match Others::read(&part.join("segments")) {
                Ok(other) => others.push(other),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // It costs requests.
                Err(error) => log::warn!("{} cannot be read: {error}", part.display()),
            }
        }
        Ok(Self { own, others })
    }

    fn elsewhere(
        &self,
        id: &ChunkId,
        read: impl Fn(&Segment, &Line) -> Option<Stored>,
    ) -> Option<Stored> {
        self.others.iter().find_map(|other| {
            let (segment, line) = other.chunks.get(id)?;
            let stored = read(&other.segments[*segment], line)?;
            other.hits.fetch_add(1, Relaxed);
            Some(stored)
        })
    }
}

/// Returns where a part lies; the first is the directory itself.
fn part_of(dir: &Path, number: u64) -> PathBuf {
    match number {
        0 => dir.to_owned(),
        number => dir.join(format!("part-{number}")),
    }
}

impl Others {
    /// Finds the chunks of another process. A record that is being written is no record yet.
    fn read(dir: &Path) -> io::Result<Self> {
        let mut others = Self::default();
        for entry in fs::read_dir(dir)?.take(SEGMENTS_MAX) {
            let entry = entry?;
            let Some(number) = entry.file_name().to_str().and_then(number_of) else {
                continue;
            };
            // One that is gone or damaged has nothing for us.
            let Ok(segment) = Segment::open(&entry.path(), number) else {
                continue;
            };
            let Ok(contents) = segment.contents() else {
                continue;
            };
            let place = others.segments.len();
            let lines = contents.lines.into_iter();
            others
                .chunks
                .extend(lines.map(|line| (line.id, (place, line))));
            others.segments.push(segment);
        }
        Ok(others)
    }
}

impl ChunkStore for SharedStore {
    fn get(&self, id: &ChunkId, class: Class) -> Option<Stored> {
        let own = self.own.as_ref().filter(|own| own.contains(id));
        let found = own.and_then(|own| own.get(id, class));
        found.or_else(|| self.elsewhere(id, Segment::read))
    }

    fn get_now(&self, id: &ChunkId, class: Class) -> Option<Stored> {
        let own = self.own.as_ref().and_then(|own| own.get_now(id, class));
        own.or_else(|| self.elsewhere(id, Segment::read_now))
    }

    fn note_use(&self, id: &ChunkId, class: Class) {
        if let Some(own) = &self.own {
            own.note_use(id, class);
        }
    }

    fn contains(&self, id: &ChunkId) -> bool {
        self.own.as_ref().is_some_and(|own| own.contains(id))
            || self
                .others
                .iter()
                .any(|other| other.chunks.contains_key(id))
    }

    fn put(&self, id: &ChunkId, raw: &[u8], class: Class) -> Result<PutOutcome, PutError> {
        match &self.own {
            _ if self.contains(id) => Ok(PutOutcome::Present),
            Some(own) => own.put(id, raw, class),
            None => Err(PutError::Full),
        }
    }

    fn put_stored(
        &self,
        id: &ChunkId,
        stored: &Stored,
        class: Class,
    ) -> Result<PutOutcome, PutError> {
        match &self.own {
            _ if self.contains(id) => Ok(PutOutcome::Present),
            Some(own) => own.put_stored(id, stored, class),
            None => Err(PutError::Full),
        }
    }

    fn pin(&self, ids: &[ChunkId]) {
        if let Some(own) = &self.own {
            own.pin(ids);
        }
    }

    fn unpin(&self, ids: &[ChunkId]) {
        if let Some(own) = &self.own {
            own.unpin(ids);
        }
    }

    /// Returns the statistics of the part that this process writes, with the hits of all.
    fn stats(&self) -> StoreStats {
        let mut stats = self.own.as_ref().map(ChunkStore::stats).unwrap_or_default();
        let hits = self.others.iter().map(|other| other.hits.load(Relaxed));
        stats.hits += hits.sum::<u64>();
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: StoreConfig = StoreConfig {
        budget_bytes: PARTS * (8 << 20),
        chunks_max: 1000,
        segment_bytes: 1 << 20,
        policy: crate::PolicyKind::S3Fifo,
    };

    fn chunk(n: u8) -> (ChunkId, Vec<u8>) {
        let raw = vec![n; 5000];
        (ChunkId::of(&raw), raw)
    }

    fn has(store: &SharedStore, n: u8) -> bool {
        let (id, raw) = chunk(n);
        let found = store.get(&id, Class::Demand);
        assert_eq!(found.is_some(), store.contains(&id));
        found.is_some_and(|stored| stored.open(&id).unwrap() == raw)
    }

    #[test]
    fn each_process_reads_what_those_before_it_wrote() {
        let dir = tempfile::tempdir().unwrap();
        let open = || SharedStore::open(dir.path(), CONFIG).unwrap();
        let put = |store: &SharedStore, n| {
            let (id, raw) = chunk(n);
            store.put(&id, &raw, Class::Demand)
        };
        let first = open();
        assert_eq!(put(&first, 1).unwrap(), PutOutcome::Stored);
        let second = open();
        assert!(has(&second, 1) && has(&first, 1));
        assert_eq!(put(&second, 1).unwrap(), PutOutcome::Present);
        assert_eq!(put(&second, 2).unwrap(), PutOutcome::Stored);
        // Each has its own part until there are no more: then one only reads.
        let more: Vec<_> = (2..PARTS).map(|_| open()).collect();
        let last = open();
        assert!(has(&last, 1) && has(&last, 2));
        assert!(matches!(put(&last, 3), Err(PutError::Full)));
        assert!(!has(&last, 3));
        drop((first, second, more, last));
        let again = open();
        assert!(has(&again, 1) && has(&again, 2));
    }

    #[test]
    fn what_another_process_removes_or_damages_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let first = SharedStore::open(dir.path(), CONFIG).unwrap();
        let (id, raw) = chunk(1);
        first.put(&id, &raw, Class::Demand).unwrap();
        let second = SharedStore::open(dir.path(), CONFIG).unwrap();
        let segment = fs::read_dir(dir.path().join("segments")).unwrap().next();
        let path = segment.unwrap().unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() - 10;
        bytes[middle] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert!(second.get(&id, Class::Demand).is_none());
        fs::remove_file(&path).unwrap();
        let third = SharedStore::open(dir.path(), CONFIG).unwrap();
        assert!(!third.contains(&id));
    }
}
