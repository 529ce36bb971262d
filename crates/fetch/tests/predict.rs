//! What is predicted, and how much that is in vain.

use std::collections::BTreeSet;

use fetch::predict::{FileChunks, Predictor};
use fetch::testing::Random;
use proptest::prelude::*;

fn file(first: u32, chunks: u32, directory: u32) -> FileChunks {
    FileChunks {
        first,
        chunks,
        directory,
    }
}

fn predictor(files: Vec<FileChunks>, budget: u32) -> Predictor {
    let mut predictor = Predictor::new(files);
    predictor.set_budget(budget);
    predictor
}

#[test]
fn a_sequential_read_soon_asks_for_nothing() {
    let mut predictor = predictor(vec![file(0, 1000, 0)], 1000);
    let mut known = BTreeSet::new();
    let mut missed = 0;
    for chunk in 0..1000 {
        missed += usize::from(!known.contains(&chunk));
        known.extend(predictor.touched(chunk).into_iter().flatten());
    }
    assert_eq!(missed, 2);
    assert_eq!(known.len(), 998);
}

#[test]
fn equal_steps_are_followed() {
    let mut predictor = predictor(vec![file(10, 1000, 0)], 100);
    assert_eq!(predictor.touched(10), []);
    assert_eq!(predictor.touched(17), []);
    assert_eq!(predictor.touched(24), [31..32, 38..39]);
    assert_eq!(predictor.touched(31), [45..46, 52..53, 59..60]);
}

#[test]
fn a_small_file_is_read_whole() {
    let mut predictor = predictor(vec![file(0, 3, 0), file(3, 4, 1)], 100);
    assert_eq!(predictor.touched(1), [0..1, 2..3]);
    assert_eq!(
        predictor.touched(6).as_slice(),
        std::slice::from_ref(&(3..6))
    );
}

#[test]
fn neighbours_follow_when_several_were_read() {
    let files = (0..100).map(|at| file(at, 1, at % 2)).collect();
    let mut predictor = predictor(files, 100);
    assert_eq!(predictor.touched(10), []);
    assert_eq!(predictor.touched(20), []);
    // Those behind it come first; the other directory's do not.
    let predicted: Vec<_> = predictor.touched(30).into_iter().flatten().collect();
    assert_eq!(predicted.len(), 16);
    assert_eq!(predicted[..3], [32, 34, 36]);
    assert!(predicted.iter().all(|chunk| chunk % 2 == 0));
}

#[test]
fn random_reads_of_a_large_file_read_little_in_vain() {
    let mut predictor = predictor(vec![file(0, 100_000, 0)], 1000);
    let mut random = Random::new(1);
    let mut predicted = 0;
    for _ in 0..5000 {
        let chunk = u32::try_from(random.below(100_000)).expect("below");
        predicted += predictor.touched(chunk).into_iter().flatten().count();
    }
    assert!(predicted <= 1000, "{predicted}");
}

#[test]
fn what_is_not_used_is_predicted_no_more() {
    // Of each of many directories, three files are read and the others never.
    let files = (0..3000).map(|at| file(at, 1, at / 30)).collect();
    let mut predictor = predictor(files, 10_000);
    let mut predicted = 0;
    for at in 0..300 {
        let chunk = at / 3 * 30 + at % 3;
        predicted += predictor.touched(chunk).into_iter().flatten().count();
    }
    assert!((64..64 + 16).contains(&predicted), "{predicted}");
}

proptest! {
    #[test]
    fn predictions_are_new_within_the_source_and_the_budget(
        sizes in prop::collection::vec((0_u32..40, 0_u32..4, 0_u32..3), 1..60),
        touches in prop::collection::vec((0_u32..1500, 1_u32..6, 1_u32..9), 1..60),
        budget in 0_u32..50,
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
        let mut predictor = predictor(files, budget);
        let mut read = BTreeSet::new();
        let mut known = BTreeSet::new();
        for (start, step, len) in touches {
            for nth in 0..len {
                let chunk = start + nth * step;
                let predicted = predictor.touched(chunk);
                read.insert(chunk);
                for chunk in predicted.into_iter().flatten() {
                    prop_assert!(source.contains(&chunk), "{chunk} is no chunk");
                    prop_assert!(!read.contains(&chunk), "{chunk} was read");
                    prop_assert!(known.insert(chunk), "{chunk} was predicted");
                }
                prop_assert!(known.difference(&read).count() <= budget as usize);
            }
        }
    }
}
