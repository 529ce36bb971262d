//! Writable layers with a limit: what is written beyond it is refused, and garbage takes no space for long.

#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

use std::io::ErrorKind;
use std::sync::Arc;

use lsmt::crash::{Crash, CrashFolder, Numbers};
use lsmt::{
    Folder, Image, LsmtError, MemoryFolder, MemoryStorage, NewUpper, ReadAt, Stack, Storage, Upper,
    UpperFiles, UpperKind,
};

const SECTOR: u64 = 512;
const SECTORS: u64 = 96;
/// Sectors that may be written.
const LIMIT: u64 = 32;
/// What a write has at most.
const WRITE: u64 = 8;
const KINDS: [UpperKind; 3] = [UpperKind::Append, UpperKind::Sparse, UpperKind::Hybrid];
const NAMES: [&str; 3] = ["data", "index", "journal"];

fn files(folder: &dyn Folder, open: impl Fn(&dyn Folder, &str) -> Arc<dyn Storage>) -> UpperFiles {
    let [data, index, journal] = NAMES.map(|name| open(folder, name));
    UpperFiles {
        data,
        index,
        journal: Some(journal),
    }
}

fn create(folder: &dyn Folder, kind: UpperKind) -> Upper {
    let new = NewUpper {
        kind,
        virtual_size: SECTORS * SECTOR,
        ..NewUpper::default()
    };
    let files = files(folder, |folder, name| folder.create(name).unwrap());
    let upper = Upper::create(files, &new).unwrap();
    upper.flush().unwrap();
    folder.sync().unwrap();
    upper.set_limit(LIMIT * SECTOR);
    upper
}

fn open(folder: &dyn Folder) -> Upper {
    let upper = Upper::open(files(folder, |folder, name| folder.open(name).unwrap())).unwrap();
    upper.set_limit(LIMIT * SECTOR);
    upper
}

fn is_full(error: &LsmtError) -> bool {
    matches!(error, LsmtError::Storage { source, .. } if source.kind() == ErrorKind::StorageFull)
}

/// What each sector may be, and whether it is data of the layer.
#[derive(Clone)]
struct Model {
    possible: Vec<Vec<u8>>,
    written: Vec<bool>,
    next: u8,
}

impl Model {
    fn new() -> Self {
        Self {
            possible: vec![vec![0]; 96],
            written: vec![false; 96],
            next: 1,
        }
    }

    /// Does something, and returns whether it crashed.
    fn act(&mut self, upper: &Upper, numbers: &mut Numbers) -> bool {
        let at = numbers.below(SECTORS - WRITE);
        let range = at..at + 1 + numbers.below(WRITE);
        let places = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        let bytes = range.start * SECTOR..range.end * SECTOR;
        let done = match numbers.below(10) {
            0 => {
                let done = upper.flush();
                if done.is_ok() {
                    for possible in &mut self.possible {
                        possible.drain(..possible.len() - 1);
                    }
                }
                return done.is_err();
            }
            1..=3 => {
                let done = upper.trim(bytes);
                for place in places {
                    self.possible[place].push(0);
                    self.written[place] = false;
                }
                return done.is_err();
            }
            _ => {
                self.next = self.next % 250 + 1;
                let data = vec![self.next; usize::try_from(bytes.end - bytes.start).unwrap()];
                upper.write_at(&data, bytes.start)
            }
        };
        let there = self.written.iter().filter(|is| **is).count();
        let new = places.clone().filter(|place| !self.written[*place]).count();
        let fits = new == 0 || (there + new) as u64 <= LIMIT;
        match &done {
            Ok(()) => assert!(fits, "{there} and {new} are more than the limit"),
            Err(error) if is_full(error) => {
                assert!(!fits, "{there} and {new} fit: {error}");
                return false;
            }
            Err(_) => {}
        }
        for place in places {
            self.possible[place].push(self.next);
            self.written[place] = true;
        }
        done.is_err()
    }

    fn check(&self, upper: Upper, only_last: bool) {
        let image = Image::open(Stack::new(Vec::new()).unwrap(), Some(upper)).unwrap();
        for (at, possible) in (0..).zip(&self.possible) {
            let mut found = [0; 512];
            image.read_at(&mut found, at * SECTOR).unwrap();
            assert!(
                found.iter().all(|byte| *byte == found[0]),
                "sector {at} is torn"
            );
            let from = match only_last {
                true => possible.len() - 1,
                false => 0,
            };
            assert!(
                possible[from..].contains(&found[0]),
                "sector {at}: {} of {possible:?}",
                found[0]
            );
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_garbage_takes_no_space() {
    for (kind, seed) in KINDS
        .into_iter()
        .flat_map(|kind| (0..20).map(move |seed| (kind, seed)))
    {
        let folder = MemoryFolder::default();
        let mut numbers = Numbers::new(seed);
        let (mut model, mut upper) = (Model::new(), create(&folder, kind));
        for round in 0..400 {
            assert!(!model.act(&upper, &mut numbers));
            if round % 97 == 0 {
                drop(upper);
                model.check(open(&folder), true);
                upper = open(&folder);
            }
            let data = folder.open("data").unwrap();
            let taken = data.data_ranges().unwrap();
            let taken: u64 = taken.iter().map(|range| range.end - range.start).sum();
            // The header, a sixteenth of garbage, and what the last write has just made garbage.
            let most = 8 + LIMIT + LIMIT / 16 + WRITE;
            // After it is opened, garbage is not known to be gone before it is looked for.
            if kind != UpperKind::Sparse && round > 0 {
                assert!(taken <= most * SECTOR + 4096, "{kind:?}: {taken} bytes");
            }
        }
        model.check(upper, true);
    }
}

#[test]
fn space_is_given_back_without_a_wrong_byte_whenever_it_crashes() {
    let mut points = 0;
    for (kind, seed) in KINDS
        .into_iter()
        .flat_map(|kind| (0..4).map(move |seed| (kind, seed)))
    {
        for steps in 0.. {
            let folder = CrashFolder::default();
            let upper = create(&folder, kind);
            let mut numbers = Numbers::new(seed);
            folder.crash_after(steps);
            let mut model = Model::new();
            let crashed = (0..60).any(|_| model.act(&upper, &mut numbers));
            drop(upper);
            for crash in [Crash::Process, Crash::Power] {
                let left = folder.left_by(crash, &mut Numbers::new(steps));
                model.check(open(&left), false);
                // It is used again.
                let upper = open(&left);
                upper.flush().unwrap();
                upper.write_at(&[251; 512], 0).ok();
            }
            points += 1;
            if !crashed {
                break;
            }
        }
    }
    assert!(points > 500, "{points} points");
}

#[test]
fn what_is_there_can_be_overwritten_when_it_is_full() {
    for kind in KINDS {
        let folder = MemoryFolder::default();
        let upper = create(&folder, kind);
        let data = vec![1; usize::try_from(LIMIT * SECTOR).unwrap()];
        upper.write_at(&data, 0).unwrap();
        assert!(is_full(
            &upper.write_at(&[2; 512], LIMIT * SECTOR).unwrap_err()
        ));
        for round in 0..100 {
            upper
                .write_at(&[round; 512], u64::from(round % 32) * SECTOR)
                .unwrap();
        }
        upper.trim(0..SECTOR).unwrap();
        upper.write_at(&[2; 512], LIMIT * SECTOR).unwrap();
        upper.flush().unwrap();
        let blob = MemoryStorage::default();
        upper
            .commit(&blob, Default::default(), &upper.info())
            .unwrap();
        assert!(blob.size().unwrap() > LIMIT * SECTOR);
    }
}
