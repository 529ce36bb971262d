//! Images that are made of others, and how often the whole store is looked at for them.

use super::*;
use crate::sample::APP;

#[test]
fn a_derived_image_shares_what_its_origin_has_however_little_that_is() {
    let (_dir, store) = fresh();
    add(&store, &Sample::other(0), "first");
    // One block of its application, in a segment of its own, and the library.
    let mut sample = Sample::other(1);
    let kept = |extent: &blocks::Extent| extent.file != APP || extent.range.len() == 1;
    sample.plan.extents.retain(kept);
    let origin = add(&store, &sample, "origin");
    assert_eq!(origin.new_bytes, BLOCK_SIZE as u64);
    sample.info.label = "dir:/srv/elsewhere".to_owned();
    let derived = store.for_derived(origin.id);
    let report = derived.add(&sample.image(), Some("derived"), &mut unwatched);
    let report = report.unwrap();
    assert_eq!(report.new_bytes, 0);
    let image = store.open_image(&report.id).unwrap();
    assert_ne!(report.id, origin.id);
    assert!(image.verify(&mut unwatched).unwrap().is_sound());
    assert_eq!(sample.read_all(Arc::new(image)), PLANNED - 13);
}

#[test]
fn what_a_derived_image_has_beside_its_origin_is_found_in_the_whole_store() {
    let (_dir, store) = fresh();
    let origin = add(&store, &Sample::other(0), "origin").id;
    let whole = add(&store, &Sample::other(1), "other");
    let mut sample = Sample::other(1);
    sample.info.label = "dir:/srv/elsewhere".to_owned();
    for gone in [false, true] {
        if gone {
            store.remove(&origin).unwrap();
            sample.info.label.push('2');
        }
        let derived = store.for_derived(origin);
        let report = derived.add(&sample.image(), Some("derived"), &mut unwatched);
        let report = report.unwrap();
        assert_eq!(report.new_bytes, 0);
        assert!(report.id != whole.id && report.shared_bytes > whole.new_bytes);
        assert_right(&store, &report.id, &sample);
    }
}

/// Both look at all files only now and then.
#[test]
fn two_processes_that_add_keep_to_the_size_of_a_store() {
    const MAX: u64 = 5 << 20;
    let config = StoreConfig {
        max_bytes: MAX,
        ..ENDLESS
    };
    let dir = tempfile::tempdir().unwrap();
    let open = || Store::open(dir.path(), config).unwrap();
    let stores = [open(), open()];
    let mut evicted = 0;
    for number in 0..100 {
        let store = &stores[usize::from(number % 2 == 1)];
        evicted += add(store, &Sample::other(number), &format!("{number}"))
            .evicted
            .len();
        let bytes = store.places.bytes().unwrap();
        assert!(bytes <= MAX + MAX / 64, "{number}: {bytes}");
    }
    assert!(evicted > 10, "{evicted}");
}

/// Looking at all images for each that is added would make a full store slow to add to.
#[test]
fn a_full_store_makes_room_for_several_images_at_once() {
    const MAX: u64 = 5 << 20;
    let config = StoreConfig {
        max_bytes: MAX,
        ..ENDLESS
    };
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), config).unwrap();
    let (mut evicted, mut times) = (0, 0);
    for number in 0..150 {
        let gone = add(&store, &Sample::other(number), &format!("{number}")).evicted;
        evicted += gone.len();
        times += usize::from(!gone.is_empty());
        if !gone.is_empty() {
            let left = store.places.bytes().unwrap();
            assert!(left <= MAX - MAX / 10, "{left}");
            assert!(left > MAX / 2, "no more than needed: {left}");
        }
    }
    assert!(evicted > 40, "{evicted}");
    assert!(evicted >= 5 * times, "{evicted} images at {times} times");
}
