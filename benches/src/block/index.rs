//! Look-ups in merged indexes of several sizes and shapes, beside a binary search.

use std::hint::black_box;
use std::time::Duration;

use anyhow::Context as _;
use lsmt::{Content, Index, Segment};
use nix::time::{ClockId, clock_gettime};

use crate::aims::Aim;
use crate::micro::{Series, ratio};
use crate::report::count;
use crate::rounds::Shuffle;

/// Look-ups of a pass: more than any predictor of branches remembers.
const LOOKUPS: u64 = 1 << 18;
/// Passes of a sample.
const PASSES: u32 = 4;
/// The size that the aim names.
const SEGMENTS: u64 = 4_500;

/// How segments lie on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Little between them, as in the file system of a converted image.
    Dense,
    /// As much between them as in them.
    Even,
    /// Groups far from each other, as an ext4 has them.
    Groups,
    /// Groups of groups, and all of them in few places of a large device.
    Nested,
    /// All of them close together, but for one.
    Outlier,
    /// Each gap longer than all before it.
    Growing,
    /// Half of them close together, half of them far apart.
    Halves,
}

const SHAPES: [Shape; 7] = [
    Shape::Dense,
    Shape::Even,
    Shape::Groups,
    Shape::Nested,
    Shape::Outlier,
    Shape::Growing,
    Shape::Halves,
];

/// Sizes, and the first sector that any segment has.
const CASES: [(u64, u64); 12] = [
    (1, 0),
    (2, 0),
    (8, 0),
    (9, 0),
    (17, 0),
    (100, 0),
    (1000, 1),
    (SEGMENTS, 0),
    (SEGMENTS, 8),
    (SEGMENTS, 4_000_000),
    (100_000, 0),
    (1_000_000, 1),
];

/// Measures all shapes in all sizes, which take turns.
///
/// # Errors
/// If an index cannot be made.
pub fn measure(rounds: u32) -> anyhow::Result<(Vec<Series>, Vec<Aim>)> {
    let mut cases = Vec::new();
    for (number, first) in CASES {
        for shape in SHAPES {
            cases.push(Case::new(number, first, shape)?);
        }
    }
    let mut shuffle = Shuffle::from_clock();
    let order: Vec<_> = (0..cases.len()).collect();
    for _ in 0..rounds {
        for at in shuffle.order(&order) {
            cases[at].sample();
        }
    }
    let least = |wanted: &dyn Fn(&Case) -> bool, of: &dyn Fn(&Case) -> Option<f64>| {
        let values = cases.iter().filter(|case| wanted(case)).filter_map(of);
        values.min_by(f64::total_cmp)
    };
    let dense = |case: &Case| case.segments == SEGMENTS && case.shape == Shape::Dense;
    let sized = |case: &Case| case.segments == SEGMENTS;
    let rate = |case: &Case| case.table.median();
    let faster = |case: &Case| ratio(&case.table, &case.binary);
    let aims = vec![
        Aim::at_least(
            150.0,
            format!("million look-ups a second, {SEGMENTS} segments of an image"),
            least(&dense, &rate),
        ),
        Aim::at_least(
            150.0,
            format!("the same, the slowest shape of {SEGMENTS} segments"),
            least(&sized, &rate),
        ),
        Aim::at_least(
            1.0,
            "look-ups to those of a binary search, the slowest of all sizes, shapes and first sectors",
            least(&|_| true, &faster),
        ),
    ];
    let series = cases.into_iter().flat_map(|case| [case.table, case.binary]);
    Ok((series.collect(), aims))
}

struct Case {
    segments: u64,
    shape: Shape,
    index: Index,
    sectors: Vec<u64>,
    table: Series,
    binary: Series,
}

impl Case {
    fn new(number: u64, first: u64, shape: Shape) -> anyhow::Result<Self> {
        let segments = segments(number, first, shape);
        let mut random = Shuffle::from_seed(7);
        // Where data is: nobody reads gaps of a file system, and a few places would hide the rest.
        let mut sector = || {
            let at = usize::try_from(random.below(number)).unwrap_or(0);
            segments[at].offset() + random.below(segments[at].sectors())
        };
        let sectors = (0..LOOKUPS).map(|_| sector()).collect();
        let name = |how: &str| format!("{number} segments from {first}, {shape:?}: {how}");
        Ok(Self {
            segments: number,
            shape,
            table: Series::new(name("ours"), "M/s"),
            binary: Series::new(name("binary search"), "M/s"),
            index: Index::new(segments).context("making an index")?,
            sectors,
        })
    }

    fn sample(&mut self) {
        let Self { index, sectors, .. } = self;
        let found = rate(sectors, |sector| index.find(sector));
        self.table.values.push(found);
        let segments = index.segments();
        let found = rate(sectors, |sector| binary(segments, sector));
        self.binary.values.push(found);
    }
}

fn segments(number: u64, first: u64, shape: Shape) -> Vec<Segment> {
    let mut random = Shuffle::from_seed(3);
    let mut at = first;
    let mut next = |place: u64| {
        at += match shape {
            _ if place == 0 => 0,
            Shape::Dense => random.below(8) / 6,
            Shape::Even => random.below(64),
            Shape::Groups if random.below(100) == 0 => random.below(262_144),
            Shape::Nested if random.below(1000) == 0 => random.below(1 << 32),
            Shape::Nested if random.below(30) == 0 => random.below(1 << 16),
            Shape::Outlier if place + 1 == number => 1 << 40,
            Shape::Growing => 1 << (place * 30 / number),
            Shape::Halves if place > number / 2 => 1 << 20,
            Shape::Groups | Shape::Nested | Shape::Outlier | Shape::Halves => random.below(16),
        };
        let len = random.below(63) + 1;
        let segment = Segment::new(at, len, 8 + at, Content::Data);
        at += len;
        segment
    };
    (0..number).map(&mut next).collect()
}

/// Returns million look-ups a second, by the CPU time of this thread, which other programs disturb less.
fn rate(sectors: &[u64], find: impl Fn(u64) -> Option<Segment>) -> f64 {
    let now = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Into::into);
    let start: Duration = now();
    for _ in 0..PASSES {
        let places = sectors
            .iter()
            .map(|&sector| find(black_box(sector)).map_or(0, |found| found.moffset() + sector));
        black_box(places.fold(0, u64::wrapping_add));
    }
    let took = now().saturating_sub(start).as_secs_f64();
    count(u64::from(PASSES) * LOOKUPS) / took / 1e6
}

fn binary(segments: &[Segment], sector: u64) -> Option<Segment> {
    let behind = segments.partition_point(|segment| segment.offset() <= sector);
    let found = *segments.get(behind.checked_sub(1)?)?;
    (sector < found.end()).then_some(found)
}
