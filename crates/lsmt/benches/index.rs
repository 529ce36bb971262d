//! Look-ups in indexes of several sizes and shapes, beside a binary search; in CPU time of the
//! thread, which other programs on the machine disturb less.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use lsmt::{Content, Index, Segment};
use nix::time::{ClockId, clock_gettime};

/// Look-ups of a pass: more than any predictor of branches remembers.
const LOOKUPS: u64 = 1 << 18;

/// A generator of numbers that are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Little between the segments, as in an image's file system.
    Dense,
    /// As much between them as in them.
    Even,
    /// Groups of segments far from each other, as an ext4 has them.
    Groups,
    /// All of them close together, but for one.
    Outlier,
}

fn segments(count: u64, first: u64, shape: Shape) -> Vec<Segment> {
    let mut numbers = Numbers(88_172_645_463_325_252);
    let mut at = first;
    let mut segment = |number: u64| {
        at += match shape {
            _ if number == 0 => 0,
            Shape::Dense => numbers.below(8) / 6,
            Shape::Even => numbers.below(64),
            Shape::Groups if numbers.below(100) == 0 => numbers.below(262_144),
            Shape::Groups => numbers.below(16),
            Shape::Outlier if number + 1 == count => 1 << 40,
            Shape::Outlier => numbers.below(16),
        };
        let len = numbers.below(63) + 1;
        let segment = Segment::new(at, len, 8 + at, Content::Data);
        at += len;
        segment
    };
    (0..count).map(&mut segment).collect()
}

fn lookups(c: &mut Criterion) {
    for (count, first) in [
        (1000, 0),
        (4500, 0),
        (4500, 4_000_000),
        (100_000, 0),
        (1_000_000, 1),
    ] {
        for shape in [Shape::Dense, Shape::Even, Shape::Groups, Shape::Outlier] {
            let mut group = c.benchmark_group(format!("{count} from {first} {shape:?}"));
            group.throughput(Throughput::Elements(LOOKUPS));
            let segments = segments(count, first, shape);
            let index = Index::new(segments.clone()).expect("an index");
            let end = segments[segments.len() - 2].end();
            let mut numbers = Numbers(7);
            let sectors: Vec<_> = (0..LOOKUPS)
                .map(|_| first + numbers.below(end - first))
                .collect();
            group.bench_function(BenchmarkId::from_parameter("table"), |b| {
                b.iter_custom(|passes| timed(passes, &sectors, |sector| index.find(sector)));
            });
            group.bench_function(BenchmarkId::from_parameter("binary"), |b| {
                b.iter_custom(|passes| timed(passes, &sectors, |at| binary(&segments, at)));
            });
        }
    }
}

/// Returns the CPU time of this thread for so many passes over the sectors.
fn timed(passes: u64, sectors: &[u64], find: impl Fn(u64) -> Option<Segment>) -> Duration {
    let now = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock");
    let start = now();
    for _ in 0..passes {
        let places = sectors
            .iter()
            .map(|&sector| find(black_box(sector)).map_or(0, |found| found.moffset() + sector));
        black_box(places.fold(0, u64::wrapping_add));
    }
    Duration::from(now() - start)
}

fn binary(segments: &[Segment], sector: u64) -> Option<Segment> {
    let behind = segments.partition_point(|segment| segment.offset() <= sector);
    let found = *segments.get(behind.checked_sub(1)?)?;
    (sector < found.end()).then_some(found)
}

fn load(c: &mut Criterion) {
    let segments = segments(1_000_000, 0, Shape::Groups);
    c.bench_function("load 1000000", |b| {
        b.iter_batched(
            || segments.clone(),
            |segments| Index::new(segments).expect("an index"),
            BatchSize::LargeInput,
        );
    });
}

criterion_group! {
    name = index;
    config = Criterion::default().sample_size(20).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = lookups, load
}
criterion_main!(index);
