//! A naive device of 512-byte sectors, and what may be left of it after a crash.

use std::sync::Arc;

use lsmt::crash::{Crash, Numbers};
use lsmt::{
    BlobOptions, Codec, Compression, Durability, Image, Layer, LayerInfo, LiveImage, MemoryStorage,
    NewUpper, Pace, Upper, UpperFiles, UpperKind, Uuid, Wrapper, ZFileOptions, open_blob,
};

pub(crate) const SECTORS: u64 = 96;
/// Sectors that it has after it has grown.
pub(crate) const GROWN: u64 = 128;

/// What one sector may be: numbers that [`sector`] makes content of; zero is zeros.
#[derive(Clone, Debug, Default)]
struct Cell {
    /// What the last completed operation left.
    last: u64,
    /// What is there for certain since the last flush, or was written after it.
    possible: Vec<u64>,
}

/// The device as it should be.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    cells: Vec<Cell>,
    /// The operation that failed: its sectors may be old or new.
    failed: Option<(std::ops::Range<u64>, u64)>,
    next: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Write {
        sector: u64,
        sectors: u64,
        durability: Durability,
    },
    Trim {
        sector: u64,
        sectors: u64,
    },
    Flush,
    Restack,
    Collect,
    Commit(BlobOptions),
    Grow,
}

pub(crate) fn sector(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(64)
}

fn number_of(bytes: &[u8]) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    assert!(bytes[8..] == bytes[..504], "a sector is torn or garbage");
    number
}

/// A layer with something in each even group of eight sectors.
pub(crate) fn base() -> Arc<Layer> {
    let memory = || Arc::new(MemoryStorage::default());
    let files = UpperFiles {
        data: memory(),
        index: memory(),
        journal: None,
    };
    let new = NewUpper {
        virtual_size: SECTORS * 512,
        ..NewUpper::default()
    };
    let upper = Upper::create(files, &new).expect("an upper");
    for at in (0..SECTORS).filter(|at| at / 8 % 2 == 0) {
        upper.write_at(&sector(at + 1), at * 512).expect("a write");
    }
    let blob = memory();
    upper
        .commit(&*blob, BlobOptions::default(), &upper.info())
        .expect("a commit");
    Arc::new(open_blob(blob).expect("a layer"))
}

pub(crate) fn new_upper(kind: UpperKind) -> NewUpper {
    NewUpper {
        kind,
        virtual_size: SECTORS * 512,
        uuid: Uuid::from_bytes([9; 16]),
        parent: LayerInfo::default().uuid,
    }
}

impl Model {
    pub(crate) fn new() -> Self {
        let mut cells = vec![Cell::default(); usize::try_from(GROWN).expect("few")];
        for (at, cell) in (0..).zip(&mut cells) {
            if at < SECTORS && at / 8 % 2 == 0 {
                cell.last = at + 1;
            }
            cell.possible = vec![cell.last];
        }
        Self {
            cells,
            failed: None,
            next: 1000,
        }
    }

    /// Does an operation to the device and to the model; returns whether it succeeded.
    pub(crate) fn act(&mut self, live: &LiveImage, op: &Op) -> lsmt::Result<()> {
        let image = live.image();
        let end = image.virtual_size() / 512;
        match *op {
            Op::Write {
                sector: at,
                sectors,
                durability,
            } => {
                let at = at % end;
                let range = at..(at + sectors).min(end);
                self.next += GROWN;
                let data: Vec<u8> = range
                    .clone()
                    .flat_map(|at| sector(self.next + at))
                    .collect();
                self.begin(&range, self.next, true);
                image.write_at(&data, at * 512, durability)?;
                self.done();
                if durability == Durability::Now {
                    self.flushed();
                }
            }
            Op::Trim { sector, sectors } => {
                let at = sector % end;
                let range = at..(at + sectors).min(end);
                self.begin(&range, 0, false);
                image.trim(range.start * 512..range.end * 512)?;
                self.done();
            }
            Op::Flush => {
                image.flush()?;
                self.flushed();
            }
            Op::Restack => {
                live.restack(Uuid::from_bytes([7; 16]))?;
                self.flushed();
            }
            Op::Collect => {
                live.collect(&Pace::unlimited())?;
            }
            Op::Commit(options) => {
                live.stack_and_commit(Uuid::NIL, b"commit", options, &Pace::unlimited())?;
                self.flushed();
            }
            Op::Grow => live.grow(GROWN * 512)?,
        }
        Ok(())
    }

    fn begin(&mut self, range: &std::ops::Range<u64>, first: u64, numbered: bool) {
        for at in range.clone() {
            let value = if numbered { first + at } else { 0 };
            self.cell(at).possible.push(value);
        }
        self.failed = Some((range.clone(), if numbered { first } else { 0 }));
    }

    fn done(&mut self) {
        if let Some((range, first)) = self.failed.take() {
            for at in range {
                self.cell(at).last = if first == 0 { 0 } else { first + at };
            }
        }
    }

    fn flushed(&mut self) {
        for cell in &mut self.cells {
            cell.possible = vec![cell.last];
        }
    }

    fn cell(&mut self, at: u64) -> &mut Cell {
        &mut self.cells[usize::try_from(at).expect("few")]
    }

    /// Compares the device with the model.
    pub(crate) fn check(&self, image: &Image) {
        for (at, found) in (0..).zip(contents(image)) {
            let wanted = self.cells[at].last;
            assert_eq!(found, wanted, "sector {at}");
        }
    }

    /// Checks that each sector is one that may be there after a crash; then takes what is there.
    pub(crate) fn check_after(&mut self, image: &Image, crash: Crash) {
        let failed = self.failed.take();
        for (at, found) in (0..).zip(contents(image)) {
            let cell = self.cell(at);
            let new = failed.as_ref().filter(|(range, _)| range.contains(&at));
            let new = new.map(|&(_, first)| if first == 0 { 0 } else { first + at });
            let fits = match crash {
                Crash::Power => cell.possible.contains(&found),
                Crash::Process => found == cell.last || Some(found) == new,
            };
            assert!(
                fits,
                "sector {at} is {found} after {crash:?}: {cell:?}, {new:?}"
            );
            cell.last = found;
            if !cell.possible.contains(&found) {
                cell.possible.push(found);
            }
        }
    }
}

fn contents(image: &Image) -> Vec<u64> {
    let mut bytes = vec![0; usize::try_from(image.virtual_size()).expect("small")];
    image.read_at(&mut bytes, 0).expect("a read");
    bytes.chunks(512).map(number_of).collect()
}

/// Chooses an operation.
pub(crate) fn random_op(numbers: &mut Numbers) -> Op {
    let sector = numbers.below(GROWN);
    let sectors = numbers.below(12) + 1;
    let durability = match numbers.below(8) {
        0 => Durability::Now,
        _ => Durability::Flushed,
    };
    match numbers.below(100) {
        0..50 => Op::Write {
            sector,
            sectors,
            durability,
        },
        50..65 => Op::Trim {
            sector,
            sectors: sectors * 2,
        },
        65..78 => Op::Flush,
        78..84 => Op::Restack,
        84..92 => Op::Collect,
        92..98 => Op::Commit(options(numbers.below(3))),
        _ => Op::Grow,
    }
}

pub(crate) fn options(choice: u64) -> BlobOptions {
    let zfile = |codec| {
        Compression::ZFile(ZFileOptions {
            codec,
            ..ZFileOptions::default()
        })
    };
    let (compression, wrapper) = match choice {
        0 => (Compression::None, Wrapper::None),
        1 => (zfile(Codec::Lz4), Wrapper::Tar),
        _ => (zfile(Codec::Zstd), Wrapper::None),
    };
    BlobOptions {
        compression,
        wrapper,
    }
}
