//! Layers that are unpacked while they are being downloaded: a download and a disk that are computed in
//! another way, in fractions, find no placement that is better.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::num::NonZeroUsize;

use proptest::prelude::*;
use tiering::Rate;
use tiering::lass::{Arriving, Disk, Line, Placement, Streamed, streamed};

const MB: u64 = 1_000_000;

fn rate(bytes: u64) -> Rate {
    Rate::per_second(bytes).unwrap()
}

fn line(bytes: u64, concurrent: usize) -> Line {
    Line {
        rate: rate(bytes),
        concurrent: NonZeroUsize::new(concurrent).unwrap(),
    }
}

fn disk(bytes: u64, waiting: u64) -> Disk {
    Disk {
        rate: rate(bytes),
        waiting,
    }
}

fn arriving(archive: u64, unpacked: u64) -> Arriving {
    Arriving {
        archive,
        unpacked,
        placed: None,
    }
}

fn places(layers: &[Arriving], line: &Line, disk: &Disk, room: u64) -> Streamed {
    let streamed = streamed(layers, line, disk, room).unwrap();
    assert_eq!(streamed.places.len(), layers.len());
    let fast = layers.iter().zip(&streamed.places);
    let fast = fast.filter(|(_, place)| **place == Placement::Fast);
    let sum: u64 = fast.map(|(layer, _)| layer.unpacked).sum();
    assert_eq!(streamed.outcome.fast_bytes, sum);
    streamed
}

/// Layers of 1 KB to 300 MB that unpack to as much, or to ten times that; now and then one is placed.
fn layers(most: usize) -> impl Strategy<Value = Vec<Arriving>> {
    let placed = prop_oneof![
        8 => Just(None),
        1 => Just(Some(Placement::Fast)),
        1 => Just(Some(Placement::Slow)),
    ];
    let layer =
        (1_000u64..300 * MB, 10u64..100, placed).prop_map(|(archive, tenths, placed)| Arriving {
            archive,
            unpacked: archive / 10 * tenths,
            placed,
        });
    prop::collection::vec(layer, 1..most)
}

/// Moments, and how many bytes of each layer are there unpacked at each.
fn download(layers: &[Arriving], line: &Line) -> Vec<(f64, Vec<f64>)> {
    let rate = line.rate.bytes_per_second() as f64;
    let mut left: Vec<f64> = layers.iter().map(|layer| layer.archive as f64).collect();
    let (mut at, mut next) = (0.0, 0);
    let mut running: Vec<usize> = Vec::new();
    let mut seen = vec![(0.0, vec![0.0; layers.len()])];
    loop {
        while running.len() < line.concurrent.get() && next < layers.len() {
            running.push(next);
            next += 1;
        }
        if running.is_empty() {
            return seen;
        }
        let share = rate / running.len() as f64;
        let first = running.iter().map(|layer| left[*layer]);
        let first = first.fold(f64::INFINITY, f64::min);
        at += first / share;
        running.iter().for_each(|layer| left[*layer] -= first);
        running.retain(|layer| left[*layer] > 1e-3);
        let unpacked = layers.iter().zip(&left).map(|(layer, left)| {
            layer.unpacked as f64 * (1.0 - left.max(0.0) / layer.archive as f64)
        });
        seen.push((at, unpacked.collect()));
    }
}

/// The formula of the documentation: seconds that the disk takes after the download.
fn storing(seen: &[(f64, Vec<f64>)], disk: &Disk, fast: &[bool]) -> f64 {
    let to_disk = |bytes: &[f64]| -> f64 {
        let bytes = bytes.iter().zip(fast).filter(|(_, fast)| !**fast);
        bytes.map(|(bytes, _)| bytes).sum()
    };
    let (end, last) = seen.last().unwrap();
    let all = to_disk(last);
    if all == 0.0 {
        return 0.0;
    }
    let alpha = 1.0 / disk.rate.bytes_per_second() as f64;
    let before = alpha * (disk.waiting as f64 + all) - end;
    let since = |(at, bytes): &(f64, Vec<f64>)| alpha * (all - to_disk(bytes)) - (end - at);
    seen.iter().map(since).fold(before.max(0.0), f64::max)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// The best of all placements, which are tried one by one.
    #[test]
    fn nothing_on_fast_memory_could_be_left_out(
        layers in layers(9), concurrent in 1usize..6,
        of_line in 1u64..200, of_disk in 1u64..800, waiting in 0u64..200,
    ) {
        let (line, disk) = (line(of_line * MB, concurrent), disk(of_disk * MB, waiting * MB));
        let said = places(&layers, &line, &disk, u64::MAX);
        let fast: Vec<bool> = said.places.iter().map(|place| *place == Placement::Fast).collect();
        let seen = download(&layers, &line);
        let end = seen.last().unwrap().0;
        prop_assert!((said.outcome.download.as_secs_f64() - end).abs() < 1e-6 + end * 1e-6);
        let late = storing(&seen, &disk, &fast);
        prop_assert!((said.outcome.disk.as_secs_f64() - late).abs() < 1e-6 + end * 1e-6);
        for (layer, fast) in layers.iter().zip(&fast) {
            prop_assert!(layer.placed.is_none_or(|placed| (placed == Placement::Fast) == *fast));
        }
        let tolerated = end / 100.0;
        for set in 0..1u32 << layers.len() {
            let other: Vec<bool> = (0..layers.len()).map(|at| set & (1 << at) != 0).collect();
            let mut decided = layers.iter().zip(&other);
            if decided.any(|(layer, fast)| layer.placed.is_some_and(|p| (p == Placement::Fast) != *fast)) {
                continue;
            }
            let bytes = layers.iter().zip(&other).filter(|(_, fast)| **fast);
            let bytes: u64 = bytes.map(|(layer, _)| layer.unpacked).sum();
            let its = storing(&seen, &disk, &other);
            if late > tolerated + 1e-6 {
                prop_assert!(its > late - 1e-6, "{other:?} is sooner than {fast:?}");
            } else {
                prop_assert!(
                    its > tolerated - 1e-6 || bytes >= said.outcome.fast_bytes,
                    "{other:?} takes less than {fast:?}"
                );
            }
        }
    }

    #[test]
    fn a_faster_disk_never_has_more_on_fast_memory(
        layers in layers(40), concurrent in 1usize..6, of_line in 1u64..200,
        rates in prop::collection::vec(1u64..2_000_000_000, 2..6), waiting in 0u64..200,
    ) {
        let line = line(of_line * MB, concurrent);
        let mut rates = rates;
        rates.sort_unstable();
        let bytes = |rate: &u64| {
            let disk = disk(*rate, waiting * MB);
            places(&layers, &line, &disk, u64::MAX).outcome.fast_bytes
        };
        let bytes: Vec<u64> = rates.iter().map(bytes).collect();
        prop_assert!(bytes.is_sorted_by(|slow, fast| slow >= fast), "{rates:?}: {bytes:?}");
    }

    /// The largest ratio is 10, so no more than ten times the line's rate ever comes.
    #[test]
    fn a_disk_that_keeps_up_gets_all_and_one_that_stands_nothing(
        layers in layers(40), concurrent in 1usize..6, of_line in 1u64..200,
    ) {
        let free: Vec<Arriving> =
            layers.into_iter().map(|layer| Arriving { placed: None, ..layer }).collect();
        let line = line(of_line * MB, concurrent);
        let quick = places(&free, &line, &disk(of_line * MB * 10, 0), u64::MAX);
        prop_assert_eq!(quick.outcome.fast_bytes, 0);
        // In a byte a second not even the smallest layer is written before the download has ended.
        let standing = places(&free, &line, &disk(1, 10_000_000 * MB), u64::MAX);
        let on_disk = free.iter().zip(&standing.places).filter(|(_, place)| **place == Placement::Slow);
        prop_assert!(on_disk.clone().all(|(layer, _)| layer.unpacked == 0), "{:?}", standing);
    }

    #[test]
    fn fast_memory_takes_no_more_than_there_is_room(
        layers in layers(30), concurrent in 1usize..6, of_line in 1u64..200,
        of_disk in 1u64..400, room in 0u64..2_000,
    ) {
        let (line, disk) = (line(of_line * MB, concurrent), disk(of_disk * MB, 0));
        let decided = layers.iter().filter(|layer| layer.placed == Some(Placement::Fast));
        let decided: u64 = decided.map(|layer| layer.unpacked).sum();
        let little = places(&layers, &line, &disk, room * MB).outcome;
        prop_assert!(little.fast_bytes <= (room * MB).max(decided));
        let much = places(&layers, &line, &disk, u64::MAX).outcome;
        let tolerated = much.download / 100;
        prop_assert!(little.disk >= much.disk || little.disk <= tolerated);
    }

    /// Whatever a manifest says, and however many layers it has.
    #[test]
    fn no_sizes_are_too_large(
        layers in prop::collection::vec((any::<u64>(), any::<u64>()), 0..502),
        concurrent in prop_oneof![1usize..6, 400usize..600, Just(usize::MAX)],
        of_line in prop_oneof![Just(1), Just(u64::MAX), any::<u64>().prop_map(|rate| rate.max(1))],
        of_disk in prop_oneof![Just(1), Just(u64::MAX), any::<u64>().prop_map(|rate| rate.max(1))],
        waiting: u64, room: u64,
    ) {
        let layers: Vec<_> =
            layers.into_iter().map(|(archive, unpacked)| arriving(archive, unpacked)).collect();
        let said = streamed(&layers, &line(of_line, concurrent), &disk(of_disk, waiting), room);
        match said {
            Ok(said) => {
                prop_assert!(layers.len() <= 500 && said.places.len() == layers.len());
                prop_assert!(said.outcome.fast_bytes <= room);
            }
            Err(full) => {
                prop_assert!(layers.len() > 500);
                prop_assert_eq!(full.to_string(), "more than 500 layers in a pull");
            }
        }
    }
}

/// The images for which the disk was too slow: a base of 40 MB that unpacks to 138, and a large layer,
/// on a line of 100 Mbit/s.
#[test]
fn of_a_base_and_a_large_layer_goes_to_fast_memory_what_the_disk_has_no_time_for() {
    let layers = [
        arriving(40 * MB, 138 * MB),
        arriving(MB, 2 * MB),
        arriving(45 * MB, 180 * MB),
        arriving(1_000, 4_000),
    ];
    let line = line(12 * MB + MB / 2, 3);
    let on = |of_disk, waiting| places(&layers, &line, &disk(of_disk * MB, waiting * MB), u64::MAX);
    // In 6.9 s come 320 MB, never more than 50 in one.
    assert_eq!(on(60, 0).outcome.fast_bytes, 0);
    assert_eq!(on(60, 0).outcome.disk.as_millis(), 0);
    // Of which 45 MB/s have written 310; all but the base, or all but the large one, they would do.
    let slower = on(45, 0);
    assert_eq!(
        slower.places,
        [
            Placement::Fast,
            Placement::Slow,
            Placement::Slow,
            Placement::Slow
        ]
    );
    assert_eq!(slower.outcome.fast_bytes, 138 * MB);
    let slow = on(21, 0);
    assert_eq!(
        slow.places,
        [
            Placement::Slow,
            Placement::Slow,
            Placement::Fast,
            Placement::Slow
        ]
    );
    // What waits for the disk counts as much as what comes.
    assert_eq!(on(45, 140).places, slow.places);
    assert_eq!(on(45, 400).outcome.fast_bytes, 320 * MB + 4_000);
}

#[test]
fn what_is_placed_stays_and_nothing_takes_no_time() {
    let line = line(10 * MB, 3);
    let nothing = places(&[], &line, &disk(1, 5), 0);
    assert!(nothing.outcome.total().is_zero());
    let mut layers = [arriving(10 * MB, 40 * MB), arriving(10 * MB, 40 * MB)];
    layers[1].placed = Some(Placement::Slow);
    let said = places(&layers, &line, &disk(20 * MB, 0), u64::MAX);
    assert_eq!(said.places, [Placement::Fast, Placement::Slow]);
    layers[1].placed = Some(Placement::Fast);
    let said = places(&layers, &line, &disk(20 * MB, 0), 0);
    assert_eq!(said.places, [Placement::Slow, Placement::Fast]);
    // What has nothing to bring is no use on fast memory.
    let empty = [arriving(10 * MB, 0), arriving(0, 5), arriving(0, 0)];
    let said = places(&empty, &line, &disk(1, 5), u64::MAX);
    assert_eq!(
        said.places,
        [Placement::Slow, Placement::Fast, Placement::Slow]
    );
}
