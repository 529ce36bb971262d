//! The paper's equations, as it writes them, beside the model; and the figures it gives.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use proptest::prelude::*;
use tiering::Rate;
use tiering::lass::{Boundary, Outcome, Speeds, Stack, Strategy as Kind};

fn rate(bytes: u64) -> Rate {
    Rate::per_second(bytes).unwrap()
}

/// Layers of 1 KiB to 1 GiB, one of them the last; a disk of 1 MB/s to 1 GB/s, and memory that is
/// 2 to 100 times as fast.
fn deployment() -> impl Strategy<Value = (Vec<u64>, usize, Speeds)> {
    let layers = prop::collection::vec(1024u64..1 << 30, 1..20);
    (
        layers,
        any::<prop::sample::Index>(),
        1u64..1000,
        2u64..100,
        0u64..100_000,
    )
        .prop_map(|(layers, last, disk, times, download)| {
            let speeds = Speeds {
                download: Duration::from_millis(download),
                disk: rate(disk * 1_000_000),
                fast: rate(disk * 1_000_000 * times),
            };
            let last = last.index(layers.len());
            (layers, last, speeds)
        })
}

/// Seconds, for formulas with fractions in them.
fn secs(time: Duration) -> f64 {
    time.as_secs_f64()
}

/// Equations 4 and 5, word for word: total time and room, for K and M counted from 0.
fn as_written(layers: &[u64], k: usize, m: usize, speeds: &Speeds) -> (f64, u64) {
    let (alpha, beta) = (
        1.0 / speeds.disk.bytes_per_second() as f64,
        1.0 / speeds.fast.bytes_per_second() as f64,
    );
    let (s_ldl, s_lal) = (layers[k], layers[k + 1..].iter().sum::<u64>());
    let s_bl = layers.get(m).copied().unwrap_or(0);
    let s_n = layers.iter().skip(m + 1).sum::<u64>();
    let storing = if m <= k {
        beta * (s_ldl + s_lal) as f64
    } else {
        alpha * (s_ldl + s_lal - s_bl - s_n) as f64 + beta * (s_bl + s_n) as f64
    };
    (secs(speeds.download) + storing, s_bl + s_n)
}

proptest! {
    #[test]
    fn the_model_is_the_equations((layers, last, speeds) in deployment()) {
        let stack = Stack::new(layers.clone(), last).unwrap();
        for boundary in 0..=layers.len() {
            let outcome = stack.outcome(Boundary(boundary), &speeds);
            let (total, bytes) = as_written(&layers, last, boundary, &speeds);
            prop_assert!((secs(outcome.total()) - total).abs() < 1e-6);
            prop_assert_eq!(outcome.fast_bytes, bytes);
        }
    }

    #[test]
    fn a_higher_boundary_takes_less_room_and_is_never_faster(
        (layers, last, speeds) in deployment()
    ) {
        let stack = Stack::new(layers.clone(), last).unwrap();
        let all: Vec<Outcome> = (0..=layers.len())
            .map(|boundary| stack.outcome(Boundary(boundary), &speeds))
            .collect();
        for pair in all.windows(2) {
            prop_assert!(pair[1].fast_bytes < pair[0].fast_bytes);
            prop_assert!(pair[1].total() >= pair[0].total());
        }
        // Up to the last downloading layer nothing is lost, and above it each layer costs time.
        prop_assert_eq!(all[0].total(), all[last].total());
        prop_assert!(all[last + 1].total() > all[last].total());
    }

    #[test]
    fn the_third_strategy_is_the_best((layers, last, speeds) in deployment()) {
        let stack = Stack::new(layers, last).unwrap();
        prop_assert_eq!(stack.best(&speeds), Boundary(last));
        prop_assert_eq!(stack.strategy(Boundary(last)), Kind::Last);
    }

    #[test]
    fn the_parts_of_a_stack_are_all_of_it((layers, last, _) in deployment(), m in 0usize..25) {
        let stack = Stack::new(layers.clone(), last).unwrap();
        let sum: u64 = layers.iter().sum();
        prop_assert_eq!(stack.below_last() + stack.last() + stack.above_last(), sum);
        let boundary = Boundary(m);
        prop_assert_eq!(stack.under(boundary) + stack.at(boundary) + stack.over(boundary), sum);
        let kind = match m {
            m if m < last => Kind::BelowLast,
            m if m == last => Kind::Last,
            _ => Kind::AboveLast,
        };
        prop_assert_eq!(stack.strategy(boundary), kind);
    }
}

/// An image of a runtime: base, runtime (the largest, and downloaded last), application.
fn runtime_image() -> Stack {
    Stack::new(
        vec![75, 300, 25]
            .into_iter()
            .map(|mb| mb * 1_000_000)
            .collect(),
        1,
    )
    .unwrap()
}

const fn speeds(download: Duration, disk: Rate, fast: Rate) -> Speeds {
    Speeds {
        download,
        disk,
        fast,
    }
}

#[test]
fn the_three_strategies_and_the_two_extremes_of_one_image() {
    let stack = runtime_image();
    let speeds = speeds(
        Duration::from_secs(10),
        rate(100_000_000),
        rate(1_000_000_000),
    );
    let cost = |boundary| {
        let outcome = stack.outcome(Boundary(boundary), &speeds);
        (outcome.total().as_millis(), outcome.fast_bytes / 1_000_000)
    };
    assert_eq!(cost(0), (10_325, 400), "all on fast memory; equation 6");
    assert_eq!(cost(1), (10_325, 325), "the third strategy; equation 8");
    assert_eq!(cost(2), (13_025, 25), "the second strategy; equation 7");
    assert_eq!(cost(3), (13_250, 0), "all on the disk");
    assert_eq!(cost(usize::MAX), cost(3));
}

#[test]
fn the_figures_of_the_paper_fit_each_other_in_the_model() {
    // Table 1: NVM is written at 1.3 GB/s. Storing is 23.4 % of a deployment on disk, and LASS
    // takes 90.3 % of that away. In the model both hold if the disk writes 126 MB/s.
    let fast = rate(1_300_000_000);
    let disk = rate(126_100_000);
    let stack = runtime_image();
    let stored = secs(disk.time_for(stack.last() + stack.above_last()));
    let download = Duration::from_secs_f64(stored / 0.234 * 0.766);
    let speeds = speeds(download, disk, fast);
    let ours = stack.outcome(Boundary(1), &speeds);
    let disk_only = stack.outcome(Boundary(3), &speeds);
    let share = |part: Duration, whole: Duration| secs(part) / secs(whole);

    assert!((share(disk_only.storing(), disk_only.total()) - 0.234).abs() < 0.001);
    let saved = 1.0 - share(ours.storing(), disk_only.storing());
    assert!((saved - 0.903).abs() < 0.001, "{saved}");
    // "21.14 % lower" follows from the two. It is 1.27 times as fast, not 1.21.
    let lower = 1.0 - share(ours.total(), disk_only.total());
    assert!((lower - 0.2114).abs() < 0.001, "{lower}");
    let times = share(disk_only.total(), ours.total());
    assert!((times - 1.268).abs() < 0.002, "{times}");
    // As fast as everything on NVM, for less of it.
    let all_fast = stack.outcome(Boundary(0), &speeds);
    assert_eq!(ours.total(), all_fast.total());
    assert!(ours.fast_bytes < all_fast.fast_bytes);
}

#[test]
fn an_image_of_one_layer_goes_to_fast_memory_whole() {
    let stack = Stack::new(vec![120_000_000], 0).unwrap();
    let speeds = speeds(
        Duration::from_secs(1),
        rate(100_000_000),
        rate(1_300_000_000),
    );
    assert_eq!(stack.best(&speeds), Boundary(0));
    assert_eq!(stack.outcome(Boundary(0), &speeds).fast_bytes, 120_000_000);
}

#[test]
fn where_the_disk_is_as_fast_nothing_goes_to_fast_memory() {
    let speeds = speeds(
        Duration::from_secs(1),
        rate(1_000_000_000),
        rate(1_000_000_000),
    );
    assert_eq!(runtime_image().best(&speeds), Boundary(3));
}

#[test]
fn what_is_no_stack_is_refused() {
    assert_eq!(Stack::new(vec![], 0), None);
    assert_eq!(Stack::new(vec![1, 2], 2), None);
    assert_eq!(Stack::new(vec![u64::MAX, 1], 0), None);
    assert_eq!(Stack::new(vec![1, 2], 1).unwrap().layer_count(), 2);
}
