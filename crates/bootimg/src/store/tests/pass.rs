//! Many images in one pass: each block is read once, counted once, and verified.

use std::os::unix::fs::FileExt as _;

use rawio::resident::Resident;

use super::*;
use crate::layout::PAGE_BYTES;

/// Returns how many pages of the segments are in memory.
fn resident(dir: &Path) -> u64 {
    let segments = files_in(&dir.join("segments"));
    let counts = segments.iter().map(|(path, len)| {
        let file = fs::File::options()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        Resident::look(&file, 0..*len).unwrap().count()
    });
    counts.sum()
}

/// Has nothing of the segments in memory.
fn drop_all(dir: &Path) {
    for path in files_in(&dir.join("segments")).keys() {
        let file = fs::File::options()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        file.sync_all().unwrap();
        let all = nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED;
        nix::fcntl::posix_fadvise(&file, 0, 0, all).unwrap();
    }
}

#[test]
fn what_images_share_is_read_and_counted_once() {
    let (dir, store) = fresh();
    let reports = [0, 1, 2].map(|number| add(&store, &Sample::other(number), &format!("{number}")));
    assert!(reports[1].shared_bytes > 0);
    let ids = reports.clone().map(|report| report.id);
    drop_all(dir.path());
    let pass = store.load_all(&ids, None, &mut unwatched).unwrap();
    let new: u64 = reports.iter().map(|report| report.new_bytes).sum();
    assert_eq!(
        (
            pass.bytes,
            pass.images.iter().map(|image| image.damaged).sum()
        ),
        (new, 0)
    );
    for (passed, report) in pass.images.iter().zip(&reports) {
        assert_eq!((passed.id, passed.over_budget), (report.id, false));
        assert_eq!(passed.new_bytes, report.new_bytes);
        assert_eq!(passed.bytes, report.new_bytes + report.shared_bytes);
    }
}

#[test]
fn each_segment_is_read_with_one_request() {
    let (dir, store) = fresh();
    let ids = [0, 1, 2].map(|number| add(&store, &Sample::other(number), &format!("{number}")).id);
    let segments = files_in(&dir.path().join("segments"));
    assert!(segments.len() > 1);
    // Header, blocks and table, all of which are less than the smallest disk takes at once.
    assert!(segments.values().all(|bytes| *bytes < 128 << 10));
    let pass = store.load_all(&ids, None, &mut unwatched).unwrap();
    assert_eq!(pass.requests, segments.len() as u64);
    assert_eq!(pass.gap_bytes, 0);
}

#[test]
fn the_budget_is_of_what_is_new() {
    let (_dir, store) = fresh();
    let reports = [0, 1, 2].map(|number| add(&store, &Sample::other(number), &format!("{number}")));
    let ids = reports.clone().map(|report| report.id);
    let budget = reports[0].new_bytes + reports[2].new_bytes;
    assert_eq!(reports[1].new_bytes, reports[2].new_bytes);
    let pass = store.load_all(&ids, Some(budget), &mut unwatched).unwrap();
    let left_out: Vec<bool> = pass.images.iter().map(|image| image.over_budget).collect();
    assert_eq!(left_out, [false, false, true]);
    assert_eq!(pass.bytes, budget);
    let none = store.load_all(&ids, Some(0), &mut unwatched).unwrap();
    assert!(none.bytes == 0 && none.images.iter().all(|image| image.over_budget));
}

#[test]
fn damage_is_told_of_each_image_that_has_it() {
    let (dir, store) = fresh();
    let (first, second) = (Sample::other(0), Sample::other(1));
    let ids = [
        add(&store, &first, "first").id,
        add(&store, &second, "second").id,
    ];
    // The first segment of the first image has the block that both begin with.
    let own = store.load_all(&ids[1..], None, &mut unwatched).unwrap();
    let shared = own.wanted.keys().find(|id| {
        let first = store.load_all(&ids[..1], None, &mut unwatched).unwrap();
        first.wanted.contains_key(id)
    });
    let path = dir.path().join(format!("segments/{}.seg", shared.unwrap()));
    let both = own.wanted[shared.unwrap()][0].1.runs()[0].start().0;
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(b"rot", (both + 1) * PAGE_BYTES).unwrap();
    let pass = store.load_all(&ids, None, &mut unwatched).unwrap();
    let damaged: Vec<u64> = pass.images.iter().map(|image| image.damaged).collect();
    assert_eq!(damaged, [1, 1]);
    drop(file);
    for path in files_in(&dir.path().join("segments")).keys() {
        fs::remove_file(path).unwrap();
    }
    assert!(store.load_all(&ids, None, &mut unwatched).is_err());
}

#[test]
fn what_mounts_have_is_dropped_and_what_others_need_stays() {
    let (dir, store) = fresh();
    let reports = [0, 1].map(|number| add(&store, &Sample::other(number), &format!("{number}")));
    let ids = reports.clone().map(|report| report.id);
    drop_all(dir.path());
    let before = resident(dir.path());
    let pass = store.load_all(&ids, None, &mut unwatched).unwrap();
    let loaded = resident(dir.path());
    assert!(loaded >= before + (reports[0].new_bytes + reports[1].new_bytes) / PAGE_BYTES);
    // What the second has alone.
    store.drop_passed(&pass, &BTreeSet::from([ids[1]]));
    let left = resident(dir.path());
    assert!(left < loaded && left >= reports[0].new_bytes / PAGE_BYTES);
    store.drop_passed(&pass, &BTreeSet::from(ids));
    assert!(resident(dir.path()) < left);
}

#[test]
fn a_pass_can_be_ended() {
    let (_dir, store) = fresh();
    let id = add(&store, &Sample::new(), "one").id;
    let ended = store.load_all(&[id], None, &mut |_| std::ops::ControlFlow::Break(()));
    assert!(matches!(
        ended,
        Err(StoreError::Write(crate::WriteError::Cancelled))
    ));
}
