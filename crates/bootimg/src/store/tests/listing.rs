//! What a list reads: each image once, and nothing of segments.

use super::*;

/// Returns how often this thread has read since it began.
fn reads() -> u64 {
    let counts = fs::read_to_string("/proc/thread-self/io").unwrap();
    let line = counts.lines().find_map(|line| line.strip_prefix("syscr: "));
    line.unwrap().parse().unwrap()
}

/// Returns with how many reads the images are listed.
fn reads_of_list(store: &Store, images: usize) -> u64 {
    let idle = {
        let before = reads();
        reads() - before
    };
    let before = reads();
    let listed = store.list().unwrap().len();
    let all = reads() - before;
    assert_eq!(listed, images);
    all - idle
}

#[test]
fn one_image_more_is_one_read_more() {
    let (dir, store) = fresh();
    add(&store, &Sample::other(0), "0");
    let one = reads_of_list(&store, 1);
    for number in 1..8 {
        add(&store, &Sample::other(number), &format!("{number}"));
    }
    assert!(files_in(&dir.path().join("segments")).len() > 1);
    assert_eq!(reads_of_list(&store, 8), one + 7);
}

#[test]
fn a_list_counts_by_the_lengths_of_segments() {
    let (dir, store) = fresh();
    let report = add(&store, &Sample::new(), "image");
    let before = store.list().unwrap();
    for (path, len) in files_in(&dir.path().join("segments")) {
        fs::write(&path, vec![0x55; usize::try_from(len).unwrap()]).unwrap();
    }
    assert_eq!(store.list().unwrap(), before);
    assert_eq!(store.verify(&mut unwatched).unwrap().segments.len(), 1);
    // Who collects garbage looks closer.
    let segments = store.gc(GcMode::DryRun).unwrap().segments;
    assert_eq!((segments.len(), before[0].info.id), (1, report.id));
}
