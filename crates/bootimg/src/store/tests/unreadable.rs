//! What cannot be read at the moment is no garbage: it may be readable again in a minute.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::*;
use crate::store::segment::Segment;

/// Makes opening a segment fail, for root as well, and returns where its content is meanwhile.
fn made_unreadable(path: &Path) -> PathBuf {
    let aside = path.with_extension("aside");
    fs::rename(path, &aside).unwrap();
    symlink(path, path).unwrap(); // ELOOP
    aside
}

#[test]
fn a_segment_that_cannot_be_read_now_is_kept() {
    let (_dir, store) = fresh();
    let sample = Sample::other(1);
    let id = add(&store, &sample, "name").id;
    let segment = store.places.segments().unwrap()[0];
    let path = store.places.segment(&segment);
    let aside = made_unreadable(&path);
    for mode in [GcMode::DryRun, GcMode::Apply] {
        let report = store.gc(mode).unwrap();
        assert_eq!(report.segments, []);
        assert_eq!(report.unread, [segment]);
    }
    assert!(path.symlink_metadata().is_ok(), "it was removed");
    fs::rename(&aside, &path).unwrap();
    assert_eq!(store.gc(GcMode::Apply).unwrap().unread, []);
    assert_right(&store, &id, &sample);
}

/// It was reported as damage, which others remove.
#[test]
fn moving_blocks_that_cannot_be_read_now_is_no_damage() {
    let (_dir, store) = fresh();
    add(&store, &Sample::other(1), "name");
    let segment = store.places.segments().unwrap()[0];
    let path = store.places.segment(&segment);
    let table = Segment::open(&path).and_then(|segment| segment.table());
    let hashes = table.unwrap()[..1].to_vec();
    let from = [(segment, 0)];
    let aside = made_unreadable(&path);
    let error = store.move_blocks(hashes.clone(), &from).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
    fs::rename(&aside, &path).unwrap();
    let wrong = store.move_blocks(vec![[7; 32]], &from).unwrap_err();
    assert!(matches!(wrong, StoreError::Damaged { .. }), "{wrong}");
    store.move_blocks(hashes, &from).unwrap();
}
