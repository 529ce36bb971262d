//! What is predicted, and how much that is in vain.

use std::collections::BTreeSet;
use std::ops::Range;

use fetch::predict::{FileChunks, Gain, Predicted, Predictor};
use fetch::testing::Random;
use proptest::prelude::*;

const CHUNK: u64 = 1 << 17;

fn file(first: u32, chunks: u32, directory: u32) -> FileChunks {
    FileChunks {
        first,
        chunks,
        bytes: u64::from(chunks) * CHUNK,
        directory,
        kind: 0,
    }
}

/// Returns a predictor for a line that brings so many chunks in a round trip.
fn predictor(files: Vec<FileChunks>, round_trip_chunks: u64) -> Predictor {
    let mut predictor = Predictor::new(files, 1 << 17);
    predictor.set_gain(Gain {
        round_trip_bytes: round_trip_chunks * CHUNK,
        unused_bytes: u64::MAX,
    });
    predictor
}

fn all(predicted: Predicted) -> Vec<u32> {
    let Predicted { soon, later } = predicted;
    soon.into_iter().chain(later).flatten().collect()
}

fn one(range: Range<u32>) -> Vec<Range<u32>> {
    vec![range]
}

#[test]
fn a_sequential_read_soon_asks_for_nothing() {
    let mut predictor = predictor(vec![file(0, 1000, 0)], 1);
    let mut known = BTreeSet::new();
    let mut missed = 0;
    for chunk in 0..1000 {
        missed += usize::from(!known.contains(&chunk));
        known.extend(all(predictor.touched(chunk)));
    }
    assert_eq!(missed, 2);
    assert_eq!(known.len(), 998);
}

#[test]
fn equal_steps_are_followed() {
    let mut predictor = predictor(vec![file(10, 1000, 0)], 1);
    assert_eq!(all(predictor.touched(10)), []);
    assert_eq!(all(predictor.touched(17)), []);
    assert_eq!(predictor.touched(24).soon, [31..32, 38..39]);
    assert_eq!(predictor.touched(31).soon, [45..46, 52..53, 59..60]);
}

#[test]
fn a_small_file_is_read_whole() {
    let mut predictor = predictor(vec![file(0, 3, 0), file(3, 4, 1)], 1);
    assert_eq!(predictor.touched(1).soon, [0..1, 2..3]);
    assert_eq!(predictor.touched(6).soon, one(3..6));
}

#[test]
fn each_miss_in_a_large_file_brings_twice_as_much_around_it() {
    let mut predictor = predictor(vec![file(0, 1000, 0)], 16);
    assert_eq!(predictor.touched(100).soon, [101..106, 98..100]);
    assert_eq!(predictor.touched(500).soon, [501..512, 496..500]);
    // What was predicted is no miss.
    assert_eq!(predictor.touched(505), Predicted::default());
}

#[test]
fn misses_in_directories_beside_each_other_bring_those_that_follow() {
    // Directories 10 to 49 below 1, each with a cache directory (100 more) that has one file of one chunk; and
    // as many below 2.
    let dirs = || (10..50).chain(60..100);
    let parents = dirs().flat_map(|dir| [(dir + 100, dir), (dir, if dir < 50 { 1 } else { 2 })]);
    let files = dirs().map(|dir| file(dir, 1, dir + 100)).collect();
    let mut predictor = predictor(files, 8).with_parents(parents.collect());
    assert_eq!(all(predictor.touched(10)), []);
    // One elsewhere says nothing of these.
    assert_eq!(all(predictor.touched(60)), []);
    assert_eq!(predictor.touched(20).soon, one(21..25));
    // A hit brings half as much, a miss twice as much as before.
    assert_eq!(predictor.touched(22).soon, one(25..27));
    assert_eq!(predictor.touched(40).soon, one(41..49));
    // The second one there begins another such group.
    assert_eq!(predictor.touched(64).soon, one(65..69));
}

#[test]
fn neighbours_follow_a_miss_and_twice_as_many_the_next() {
    let files = (0..100).map(|at| file(at, 1, at % 2)).collect();
    let mut predictor = predictor(files, 16);
    // Those behind it come first; the other directory's do not.
    assert_eq!(all(predictor.touched(10)), [12, 14]);
    assert_eq!(all(predictor.touched(50)), [52, 54, 56, 58]);
    // One that was predicted has others follow it, before the next miss.
    assert_eq!(all(predictor.touched(54)), [60, 62]);
}

#[test]
fn small_files_that_are_missed_everywhere_are_all_brought() {
    const FILES: u32 = 3000;
    let small = |at: u32| FileChunks {
        bytes: 8 << 10,
        ..file(at, 1, at / 10)
    };
    let mut predictor = predictor((0..FILES).map(small).collect(), 20);
    let mut order: Vec<u32> = (0..FILES).collect();
    let mut random = Random::new(1);
    for at in 0..order.len() {
        let other = usize::try_from(random.below(order.len() as u64)).expect("below");
        order.swap(at, other);
    }
    let (mut known, mut missed) = (BTreeSet::new(), 0);
    for chunk in order {
        missed += usize::from(!known.contains(&chunk));
        known.extend(all(predictor.touched(chunk)));
    }
    assert!(missed < 60, "{missed}");
}

#[test]
fn files_of_the_same_kind_are_predicted_first() {
    // Sources and what is compiled of them, side by side.
    let kind = |at: u32| FileChunks {
        kind: at % 2,
        ..file(at, 1, 0)
    };
    let mut predictor = predictor((0..20).map(kind).collect(), 64);
    // Those behind it, and those before it backwards; the others only if there is room.
    assert_eq!(all(predictor.touched(10)), [12, 14, 16, 18, 8, 6, 4, 2]);
    assert_eq!(
        all(predictor.touched(15)),
        [17, 19, 13, 11, 9, 7, 5, 3, 1, 0]
    );
}

#[test]
fn a_miss_predicts_what_lies_in_directories_below() {
    let files = (0..12).map(|at| file(at, 1, at / 4)).collect();
    // 1 lies below 0, 2 elsewhere.
    let mut predictor = predictor(files, 64).with_parents([(1, 0), (0, 9), (2, 8)].into());
    assert_eq!(all(predictor.touched(2)), [3, 1, 0, 4, 5, 6, 7]);
}

#[test]
fn programs_say_little_about_those_beside_them() {
    // Programs, with a text between each two.
    let kind = |at: u32| FileChunks {
        kind: [FileChunks::PROGRAM, 1][(at % 2) as usize],
        ..file(at, 1, 0)
    };
    let mut predictor = predictor((0..40).map(kind).collect(), 128);
    assert_eq!(all(predictor.touched(10)), [12, 14]);
    assert_eq!(all(predictor.touched(20)), [22, 24, 26, 28]);
    // Nor do texts say anything about programs.
    let predicted = all(predictor.touched(1));
    assert!(
        predicted.len() == 8 && predicted.iter().all(|at| at % 2 == 1),
        "{predicted:?}"
    );
}

#[test]
fn the_first_file_of_a_directory_brings_others_although_it_was_known() {
    let files = (0..20).map(|at| file(at, 1, 0)).collect();
    let mut predictor = predictor(files, 32);
    assert_eq!(all(predictor.linked(5)), [5]);
    assert_eq!(all(predictor.touched(5)), [6, 7, 8, 9]);
    assert_eq!(all(predictor.linked(15)), [15]);
    assert_eq!(all(predictor.touched(15)), []);
}

#[test]
fn what_a_program_is_linked_with_begins_to_come_at_once() {
    let mut predictor = predictor(vec![file(0, 4, 0), file(4, 30, 1), file(34, 900, 1)], 16);
    // The loader looks at both ends first.
    let whole = predictor.linked(4);
    assert_eq!(
        (whole.soon, whole.later),
        (vec![4..5, 33..34, 5..6, 31..33], one(6..31))
    );
    // Of a large one, its content says what is read.
    let large = predictor.linked(34);
    assert_eq!(
        (large.soon, large.later),
        (vec![34..35, 933..934, 35..36, 931..933], vec![])
    );
    assert_eq!(predictor.linked(4), Predicted::default());
}

#[test]
fn what_a_loader_reads_is_predicted_within_its_file() {
    let mut predictor = predictor(vec![file(0, 40, 0), file(40, 40, 0)], 16);
    // With what the kernel reads around it.
    assert_eq!(predictor.loaded(10..13).soon, one(9..13));
    assert_eq!(predictor.loaded(12..15).soon, one(13..15));
    // A program that claims to have more than it is told.
    assert_eq!(predictor.loaded(38..1000).soon, one(37..40));
    assert_eq!(predictor.loaded(200..201), Predicted::default());
    // No more than a round trip is worth.
    assert_eq!(predictor.loaded(40..80).soon, one(40..56));
}

#[test]
fn what_runs_comes_later_within_its_file() {
    let mut predictor = predictor(vec![file(0, 40, 0), file(40, 40, 0)], 2);
    let run = predictor.run(10..1000);
    assert_eq!((run.soon, run.later), (vec![], one(10..40)));
    assert_eq!(predictor.run(200..201), Predicted::default());
}

#[test]
fn random_reads_of_a_large_file_read_in_vain_what_misses_are_worth_and_no_more() {
    let mut predictor = predictor(vec![file(0, 100_000, 0)], 10);
    let mut random = Random::new(1);
    let mut predicted = 0;
    for _ in 0..5000 {
        let chunk = u32::try_from(random.below(100_000)).expect("below");
        predicted += all(predictor.touched(chunk)).len();
    }
    assert!(predicted <= 60, "{predicted}");
}

#[test]
fn random_reads_of_a_file_that_is_nearly_all_read_bring_the_rest_by_and_by() {
    const CHUNKS: u32 = 200;
    let mut predictor = predictor(vec![file(0, CHUNKS, 0)], 10);
    let mut random = Random::new(1);
    let (mut known, mut missed) = (BTreeSet::new(), 0);
    while known.len() < CHUNKS as usize {
        let chunk = u32::try_from(random.below(CHUNKS.into())).expect("below");
        missed += u32::from(known.insert(chunk));
        known.extend(all(predictor.touched(chunk)));
    }
    assert!(missed < CHUNKS / 2, "{missed}");
}

#[test]
fn a_line_on_which_nothing_is_to_be_gained_predicts_nothing() {
    let mut predictor = predictor(vec![file(0, 3, 0), file(3, 100, 0)], 0);
    for chunk in [1, 3, 4, 5, 6] {
        assert_eq!(predictor.touched(chunk), Predicted::default());
    }
}

proptest! {
    #[test]
    fn predictions_are_new_and_within_the_source(
        sizes in prop::collection::vec((0_u32..40, 0_u32..4, 0_u32..3), 1..60),
        touches in prop::collection::vec((0_u32..1500, 1_u32..6, 1_u32..9), 1..60),
        links in prop::collection::vec(0_u32..1500, 0..9),
        round_trip in 0_u64..50,
        unused in 0_u64..50,
    ) {
        let mut source = BTreeSet::new();
        let mut files = Vec::new();
        let mut first = 0;
        for (chunks, directory, gap) in sizes {
            first += gap;
            files.push(file(first, chunks, directory));
            source.extend(first..first + chunks);
            first += chunks;
        }
        let mut predictor = Predictor::new(files, 1 << 17);
        predictor.set_gain(Gain {
            round_trip_bytes: round_trip * CHUNK,
            unused_bytes: unused * CHUNK,
        });
        let mut read = BTreeSet::new();
        let mut known = BTreeSet::new();
        let mut links = links.into_iter();
        for (start, step, len) in touches {
            let linked = links.next().map(|first| {
                let loaded = predictor.loaded(first + 3..first + 9);
                [all(loaded), all(predictor.linked(first))].concat()
            });
            for chunk in linked.into_iter().flatten() {
                prop_assert!(source.contains(&chunk) && !read.contains(&chunk));
                prop_assert!(known.insert(chunk), "{chunk} was predicted");
            }
            for nth in 0..len {
                let chunk = start + nth * step;
                let predicted = predictor.touched(chunk);
                read.insert(chunk);
                for chunk in all(predicted) {
                    prop_assert!(source.contains(&chunk), "{chunk} is no chunk");
                    prop_assert!(!read.contains(&chunk), "{chunk} was read");
                    prop_assert!(known.insert(chunk), "{chunk} was predicted");
                }
            }
        }
    }
}
