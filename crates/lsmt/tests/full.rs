//! Writable layers on a disk that is full, and has room again.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use lsmt::{
    Durability, Image, LsmtError, MemoryStorage, NewUpper, ReadAt, Stack, Storage, Upper,
    UpperFiles, UpperKind,
};

const SECTOR: u64 = 512;
const SECTORS: u64 = 64;

/// Storage that does not grow while it is full.
#[derive(Default)]
struct Disk {
    memory: MemoryStorage,
    full: AtomicBool,
}

impl ReadAt for Disk {
    fn size(&self) -> io::Result<u64> {
        self.memory.size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.memory.read_at(buffer, offset)
    }
}

impl Storage for Disk {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let room = match self.full.load(SeqCst) {
            true => self.size()?.saturating_sub(offset),
            false => bytes.len() as u64,
        };
        let there = usize::try_from(room).unwrap().min(bytes.len());
        self.memory.write_at(&bytes[..there], offset)?;
        match there == bytes.len() {
            true => Ok(()),
            false => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.memory.sync()
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        match self.full.load(SeqCst) && size > self.size()? {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => self.memory.set_size(size),
        }
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        self.memory.punch(range)
    }

    fn data_ranges(&self) -> io::Result<Vec<Range<u64>>> {
        self.memory.data_ranges()
    }
}

struct Disks([Arc<Disk>; 3]);

impl Disks {
    fn new() -> Self {
        Self([(); 3].map(|()| Arc::default()))
    }

    /// Data and index; without a journal, what is there is what was flushed.
    fn files(&self, journal: bool) -> UpperFiles {
        let [data, index, notes] = self.0.clone();
        UpperFiles {
            data,
            index,
            journal: journal.then_some(notes as Arc<dyn Storage>),
        }
    }

    /// Returns what a killed process leaves.
    fn copy(&self) -> Self {
        Self([0, 1, 2].map(|number| {
            let memory = MemoryStorage::new(self.0[number].memory.bytes());
            let full = AtomicBool::new(false);
            Arc::new(Disk { memory, full })
        }))
    }

    /// The index has no more room: data and notes are where there was something before.
    fn full(&self, full: bool) {
        self.0[1].full.store(full, SeqCst);
    }
}

fn open(files: UpperFiles) -> Image {
    image(Upper::open(files).unwrap())
}

fn image(upper: Upper) -> Image {
    Image::open(Stack::new(Vec::new()).unwrap(), Some(upper)).unwrap()
}

fn is_full(result: lsmt::Result<()>) -> bool {
    matches!(result, Err(LsmtError::Storage { source, .. })
        if source.kind() == io::ErrorKind::StorageFull)
}

fn check(image: &Image, filled: &[(u64, u8)]) {
    let mut found = Vec::new();
    for (sector, _) in filled {
        let mut bytes = [0; 512];
        image.read_at(&mut bytes, sector * SECTOR).unwrap();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        found.push((*sector, bytes[0]));
    }
    assert_eq!(found, filled);
}

#[test]
fn what_there_was_no_room_for_is_flushed_when_there_is() {
    for kind in [UpperKind::Append, UpperKind::Sparse, UpperKind::Hybrid] {
        let disks = Disks::new();
        let new = NewUpper {
            kind,
            virtual_size: SECTORS * SECTOR,
            ..NewUpper::default()
        };
        let image = image(Upper::create(disks.files(true), &new).unwrap());
        let write = |sector: u64, byte: u8| {
            image.write_at(&[byte; 512], sector * SECTOR, Durability::Flushed)
        };
        for sector in 0..SECTORS {
            write(sector, 2).unwrap();
        }
        image.flush().unwrap();
        disks.full(true);
        image.trim(0..SECTOR).unwrap();
        write(9, 3).unwrap();
        assert!(is_full(image.flush()), "{kind:?}");
        write(10, 4).unwrap();
        image.trim(3 * SECTOR..4 * SECTOR).unwrap();
        assert!(is_full(image.flush()), "{kind:?}");
        let expected = [(0, 0), (3, 0), (9, 3), (10, 4), (11, 2)];
        check(&image, &expected);
        // A process that is killed now loses nothing.
        check(&open(disks.copy().files(true)), &expected);
        disks.full(false);
        image.flush().unwrap();
        check(&open(disks.copy().files(false)), &expected);
        write(11, 5).unwrap();
        image.flush().unwrap();
        check(&open(disks.files(false)), &[(10, 4), (11, 5)]);
    }
}
