//! How fast an extent is found.

use std::hint::black_box;
use std::time::Instant;

use blocks::{BlockIndex, BlockRange, FileId};
use bootimg::ExtentIndex;

use super::Series;
use crate::aims::Aim;
use crate::report::count;
use crate::rounds::Shuffle;

/// The aim's number of extents, and over how many files they are spread: a Python boot's.
const EXTENTS: u64 = 4_500;
const FILES: u64 = 300;
/// Extents of up to 64 KiB.
const EXTENT_BLOCKS_MAX: u64 = 16;
/// Look-ups in a sample: a few tenths of a second of them.
const LOOKUPS: u64 = 10_000_000;
/// Places that are looked up again and again: they fit the second-level cache.
const PLACES: u64 = 16_384;

/// Measures look-ups of random blocks, four of five of which are in the index.
#[must_use]
pub fn measure(rounds: u32) -> (Series, Aim) {
    let mut random = Shuffle::from_seed(3);
    let extents = extents(&mut random);
    let files = usize::try_from(FILES).unwrap_or(usize::MAX);
    let index = ExtentIndex::new(files, extents.iter().copied());
    let places: Vec<_> = (0..PLACES).map(|_| place(&extents, &mut random)).collect();
    let mut series = Series::new(format!("look-ups among {EXTENTS} extents"), "M/s");
    for _ in 0..rounds {
        let started = Instant::now();
        for _ in 0..LOOKUPS / PLACES {
            for &(file, block) in &places {
                black_box(index.file(file).map(|extents| extents.find(block)));
            }
        }
        let looked_up = LOOKUPS / PLACES * PLACES;
        series
            .values
            .push(count(looked_up) / started.elapsed().as_secs_f64() / 1e6);
    }
    let what = format!("million look-ups a second among {EXTENTS} extents");
    let aim = Aim::at_least(30.0, what, series.median());
    (series, aim)
}

/// Extents with gaps between them, the same number in each file.
fn extents(random: &mut Shuffle) -> Vec<(FileId, BlockRange)> {
    let mut extents = Vec::new();
    for file in 0..FILES {
        let mut start = 0;
        for _ in 0..EXTENTS / FILES {
            start += random.below(EXTENT_BLOCKS_MAX);
            let end = start + 1 + random.below(EXTENT_BLOCKS_MAX);
            let range = BlockRange::new(BlockIndex(start), BlockIndex(end));
            extents.push((FileId(u32::try_from(file).unwrap_or(0)), range));
            start = end;
        }
    }
    extents
}

fn place(extents: &[(FileId, BlockRange)], random: &mut Shuffle) -> (FileId, BlockIndex) {
    let (file, range) = extents[usize::try_from(random.below(EXTENTS)).unwrap_or(0)];
    let within = random.below(EXTENT_BLOCKS_MAX);
    (file, BlockIndex(range.start().0 + within))
}
