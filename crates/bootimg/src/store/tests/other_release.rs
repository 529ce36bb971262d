//! What another release wrote may be whole: it is kept, and said.

use super::*;
use crate::layout::PAGE;
use crate::store::segment::Segment;

/// Where the version is in the first page of an image and of a segment.
const VERSION_AT: usize = 8;

/// Makes the next version of a file: with a seal that is right, as a later release would write it.
fn make_newer(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let mut page = bytes[..PAGE - 32].to_vec();
    page[VERSION_AT..VERSION_AT + 4].copy_from_slice(&2u32.to_le_bytes());
    bytes[..PAGE].copy_from_slice(&crate::header::sealed_page(&page));
    fs::write(path, bytes).unwrap();
}

fn image_path(store: &Store, id: &ImageId) -> std::path::PathBuf {
    store.places.image(id)
}

#[test]
fn boot_images_of_another_release_outlive_gc_with_all_that_they_may_need() {
    let (dir, store) = fresh();
    let newer = add(&store, &Sample::other(1), "newer").id;
    let nameless = add(&store, &Sample::other(2), "nameless").id;
    store.pin(&newer).unwrap();
    let known = add(&store, &Sample::other(3), "known").id;
    let kept = add(&store, &Sample::other(4), "kept").id;
    for id in [&newer, &nameless] {
        make_newer(&image_path(&store, id));
    }
    fs::remove_file(dir.path().join("names/nameless")).unwrap();
    store.remove(&known).unwrap();
    let before = files_in(dir.path());
    let small = StoreConfig {
        max_bytes: 1,
        ..ENDLESS
    };
    for store in [&store, &Store::open(dir.path(), small).unwrap()] {
        for mode in [GcMode::DryRun, GcMode::Apply] {
            let report = store.gc(mode).unwrap();
            let foreign: BTreeSet<_> = report.foreign.iter().copied().collect();
            assert_eq!(foreign, BTreeSet::from([newer, nameless]));
            assert_eq!((report.lost, report.evicted), (vec![], vec![]));
            assert_eq!((report.names, report.segments), (vec![], vec![]));
            assert_eq!(report.bytes_before, report.bytes_after);
        }
    }
    assert_eq!(files_in(dir.path()), before, "something was removed");
    let report = store.verify(&mut unwatched).unwrap();
    assert_eq!(report.foreign.len(), 2);
    assert!(report.is_sound(), "{:?}", report.unusable);
    // They may be removed by their ids, and then gc does as always.
    for id in [&newer, &nameless] {
        assert!(matches!(
            store.find(&id.to_string()),
            Err(StoreError::Open(error)) if error.is_of_another_release()
        ));
        store
            .remove(&store.resolve(&id.to_string()).unwrap())
            .unwrap();
    }
    assert_ne!(store.gc(GcMode::Apply).unwrap().segments, []);
    assert_right(&store, &kept, &Sample::other(4));
}

/// Else a store that two releases wrote to would never be collected again: what is of another release keeps everything.
#[test]
fn who_records_under_the_name_of_a_boot_image_of_another_release_replaces_it() {
    let (_dir, store) = fresh();
    let old = add(&store, &Sample::other(1), "name").id;
    let pinned = add(&store, &Sample::other(2), "pinned").id;
    store.pin(&pinned).unwrap();
    for id in [&old, &pinned] {
        make_newer(&image_path(&store, id));
    }
    let new = add(&store, &Sample::other(3), "name");
    assert_eq!(new.replaced, Some(old));
    assert_eq!(add(&store, &Sample::other(4), "pinned").replaced, None);
    assert_eq!(store.verify(&mut unwatched).unwrap().foreign, [pinned]);
    store.remove(&pinned).unwrap();
    let report = store.gc(GcMode::Apply).unwrap();
    assert!(report.foreign.is_empty() && !report.segments.is_empty());
    assert_right(&store, &new.id, &Sample::other(3));
}

#[test]
fn layers_that_a_container_image_of_another_release_may_have_stay() {
    let (_dir, store) = fresh();
    let layer = blocks::Digest([10; 32]);
    add(&store, &Sample::other(1), &crate::layer_name(&layer));
    for (reference, image) in [("known", 1), ("newer", 2)] {
        store
            .put_stack(&stacks::stack(reference, image, &[10]))
            .unwrap();
    }
    let path = store.places.stack("newer");
    let text = fs::read_to_string(&path).unwrap();
    let newer = text.replace("\"version\": 1", "\"version\": 2");
    assert_ne!(newer, text);
    fs::write(&path, newer).unwrap();
    assert_eq!(store.remove_stack("known").unwrap(), []);
    assert!(store.layer(&layer).unwrap().is_some());
    assert!(path.exists());
}

#[test]
fn an_image_that_was_damaged_is_still_garbage() {
    let (_dir, store) = fresh();
    let id = add(&store, &Sample::other(1), "damaged").id;
    let path = image_path(&store, &id);
    let mut bytes = fs::read(&path).unwrap();
    bytes[VERSION_AT + 8] ^= 1;
    fs::write(&path, bytes).unwrap();
    let report = store.gc(GcMode::Apply).unwrap();
    assert_eq!((report.lost, report.foreign), (vec![id], vec![]));
}

#[test]
fn segments_of_another_release_outlive_gc() {
    let (_dir, store) = fresh();
    add(&store, &Sample::other(1), "name");
    let segment = store.places.segments().unwrap()[0];
    let path = store.places.segment(&segment);
    make_newer(&path);
    assert!(Segment::open(&path).is_err());
    for mode in [GcMode::DryRun, GcMode::Apply] {
        let report = store.gc(mode).unwrap();
        assert_eq!((report.segments, report.foreign), (vec![], vec![]));
        assert_eq!(report.foreign_segments, [segment]);
    }
    assert!(path.exists());
    assert_eq!(store.verify(&mut unwatched).unwrap().segments.len(), 0);
    // One whose version is damaged has no right seal.
    let mut bytes = fs::read(&path).unwrap();
    bytes[VERSION_AT] ^= 4;
    fs::write(&path, bytes).unwrap();
    assert_eq!(store.gc(GcMode::Apply).unwrap().segments, [segment]);
}
