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

/// Opening a pipe to read waits for somebody who writes to it.
#[test]
fn a_pipe_in_the_place_of_a_file_is_not_waited_for() {
    let (dir, store) = fresh();
    let id = add(&store, &Sample::other(1), "name").id;
    let segment = store.places.segment(&store.places.segments().unwrap()[0]);
    let image = store.places.image(&id);
    let own = ["yolofs-store", "lock"].map(|name| dir.path().join(name));
    for path in [segment, image].into_iter().chain(own) {
        let aside = path.with_extension("aside");
        fs::rename(&path, &aside).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        let (tell, told) = std::sync::mpsc::channel();
        let (at, id) = (dir.path().to_owned(), id);
        std::thread::spawn(move || {
            if let Ok(store) = Store::open(&at, ENDLESS) {
                drop((store.list(), store.open_image(&id)));
                drop(store.gc(GcMode::DryRun));
            }
            let _late = tell.send(());
        });
        let done = told.recv_timeout(std::time::Duration::from_secs(30));
        assert!(done.is_ok(), "{} is waited for", path.display());
        fs::remove_file(&path).unwrap();
        fs::rename(&aside, &path).unwrap();
    }
}
