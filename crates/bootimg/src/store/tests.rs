//! The store: what it promises, one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use blocks::BLOCK_SIZE;
use tempfile::TempDir;

use super::*;
use crate::sample::{PLANNED, Sample};
use crate::{OpenError, Variant, unwatched};

mod access;
mod copied;
mod derived;
mod directory;
mod faster;
mod listing;
mod model;
mod other_release;
mod pass;
mod stacks;
mod stopping;
mod unreadable;

const ENDLESS: StoreConfig = StoreConfig {
    max_bytes: u64::MAX,
    lock_timeout: Duration::from_secs(10),
    group: None,
};

fn store_in(dir: &Path) -> Store {
    Store::open(dir, ENDLESS).unwrap()
}

fn fresh() -> (TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(dir.path());
    (dir, store)
}

fn add(store: &Store, sample: &Sample, name: &str) -> AddReport {
    store
        .add(&sample.image(), Some(name), &mut unwatched)
        .unwrap()
}

/// Every image there is must open, be sound, and give the right bytes.
fn assert_right(store: &Store, id: &ImageId, sample: &Sample) {
    let image = store.open_image(id).unwrap();
    assert!(image.verify(&mut unwatched).unwrap().is_sound());
    assert_eq!(sample.read_all(Arc::new(image)), PLANNED);
}

/// What a writer leaves who is killed while it writes an image.
fn left_over(id: &ImageId) -> String {
    format!("tmp/{id}.bimg.4711.0.tmp")
}

fn files_in(dir: &Path) -> BTreeMap<String, u64> {
    let mut files = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let meta = entry.path().symlink_metadata().unwrap();
            if meta.is_dir() {
                dirs.push(entry.path());
            } else {
                files.insert(entry.path().display().to_string(), meta.len());
            }
        }
    }
    files
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            copy_dir(&entry.path(), &target);
        } else if kind.is_symlink() {
            let link = fs::read_link(entry.path()).unwrap();
            std::os::unix::fs::symlink(link, target).unwrap();
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn what_is_added_is_listed_found_and_read() {
    let (_dir, store) = fresh();
    let sample = Sample::new();
    let report = add(&store, &sample, "first");
    assert_eq!(report.shared_bytes, 0);
    assert_right(&store, &report.id, &sample);
    let list = store.list().unwrap();
    assert_eq!(list.len(), 1);
    assert_eq!(list[0].names, ["first"]);
    assert_eq!(
        list[0].own_bytes,
        list[0].info.file_bytes + report.new_bytes
    );
    for what in ["first", &report.id.to_string(), &report.id.short()] {
        assert_eq!(store.find(what).unwrap().info.id, report.id);
    }
    let by_source = store.find_source(sample.info.id).unwrap().unwrap();
    assert_eq!(by_source, report.id);
    assert_eq!(store.names_of(&by_source).unwrap(), ["first"]);
    assert!(matches!(
        store.find("second"),
        Err(StoreError::NotFound { .. })
    ));
    assert!(matches!(store.find(""), Err(StoreError::NotFound { .. })));
}

#[test]
fn adding_again_changes_nothing() {
    let (dir, store) = fresh();
    let sample = Sample::new();
    let first = add(&store, &sample, "name");
    let before = files_in(dir.path());
    let again = add(&store, &sample, "name");
    assert_eq!(
        (again.id, again.new_bytes, again.replaced),
        (first.id, 0, None)
    );
    assert_eq!(files_in(dir.path()), before);
}

#[test]
fn images_share_equal_blocks() {
    let (_dir, store) = fresh();
    let samples = [Sample::new(), Sample::other(1), Sample::other(2)];
    let reports: Vec<_> = (0..3)
        .map(|i| add(&store, &samples[i], &format!("image-{i}")))
        .collect();
    // The application has 14 blocks in the plan; all else is the same.
    let app = 14 * BLOCK_SIZE as u64;
    assert_eq!((reports[1].new_bytes, reports[2].new_bytes), (app, app));
    assert_eq!(reports[1].shared_bytes, reports[0].new_bytes - app);
    for (report, sample) in reports.iter().zip(&samples) {
        assert_right(&store, &report.id, sample);
        let stored = store.find(&report.name).unwrap();
        assert_eq!(stored.own_bytes, stored.info.file_bytes + app);
        assert_eq!(stored.shared_bytes, reports[1].shared_bytes);
    }
}

#[test]
fn a_few_blocks_are_shared_if_they_are_all_of_an_image() {
    let (_dir, store) = fresh();
    let mut small = Sample::other(0);
    small.plan.extents.truncate(1);
    let few = &mut small.plan.extents[0].range;
    *few = blocks::BlockRange::with_len(few.start(), 2);
    let first = add(&store, &small, "first");
    assert!(first.new_bytes > 0 && first.new_bytes <= 2 * 4096);
    // The same layer in another directory: other metadata, the same blocks.
    small.info.label = "dir:/srv/elsewhere".to_owned();
    let second = add(&store, &small, "second");
    assert_ne!(first.id, second.id);
    assert_eq!(
        (second.new_bytes, second.shared_bytes),
        (0, first.new_bytes)
    );
}

#[test]
fn a_name_moves_to_the_new_image_and_the_old_one_goes() {
    let (_dir, store) = fresh();
    let old = add(&store, &Sample::other(1), "name");
    let new = add(&store, &Sample::other(2), "name");
    assert_eq!(new.replaced, Some(old.id));
    assert!(store.open_image(&old.id).is_err());
    assert_right(&store, &new.id, &Sample::other(2));
    // Unless it has another name, or is pinned.
    add(&store, &Sample::other(2), "alias");
    assert_eq!(add(&store, &Sample::other(3), "name").replaced, None);
    store.pin(&new.id).unwrap();
    assert_eq!(add(&store, &Sample::other(3), "alias").replaced, None);
    assert_right(&store, &new.id, &Sample::other(2));
}

/// Looking at all images for each layer of an image that is recorded again would take a store of many a long time.
#[test]
fn recording_again_looks_at_the_whole_store_only_where_that_may_free_something() {
    let (_dir, store) = fresh();
    let mut small = Sample::other(1);
    small.plan.extents.retain(|extent| extent.range.len() != 36);
    let old = add(&store, &small, "name");
    // Garbage, which a look at the whole store finds.
    let garbage = add(&store, &Sample::other(5), "garbage").id;
    store.places.remove_name("garbage", &store.steps).unwrap();
    let is_there = || {
        store
            .list()
            .unwrap()
            .iter()
            .any(|image| image.info.id == garbage)
    };

    let more = add(&store, &Sample::other(1), "name");
    assert_eq!(more.replaced, Some(old.id));
    assert!(
        is_there(),
        "all was looked at to keep what the former had, and more"
    );
    assert_right(&store, &more.id, &Sample::other(1));
    let segments = || BTreeSet::from_iter(store.places.segments().unwrap());
    let before = segments();
    let other = add(&store, &Sample::other(2), "name");
    assert_eq!(other.replaced, Some(more.id));
    assert!(!is_there());
    assert!(!before.is_subset(&segments()), "no segment went");
    let left = store.gc(GcMode::DryRun).unwrap();
    assert!(left.segments.is_empty() && left.lost.is_empty(), "{left:?}");
    assert_right(&store, &other.id, &Sample::other(2));
}

#[test]
fn names_are_made_of_labels() {
    let (_dir, store) = fresh();
    let name_of = |sample: &Sample| {
        let report = store.add(&sample.image(), None, &mut unwatched).unwrap();
        report.name
    };
    assert_eq!(name_of(&Sample::new()), "srv-sample");
    let mut namesake = Sample::other(1);
    namesake.info.label = "disk:/srv/sample".to_owned();
    let other = name_of(&namesake);
    assert!(other.starts_with("srv-sample-"), "{other}");
    assert_eq!(store.list().unwrap().len(), 2);
}

#[test]
fn an_open_image_outlives_its_removal() {
    let (_dir, store) = fresh();
    let sample = Sample::new();
    let id = add(&store, &sample, "name").id;
    let image = store.open_image(&id).unwrap();
    store.remove(&id).unwrap();
    assert_eq!(store.gc(GcMode::Apply).unwrap().segments.len(), 1);
    assert!(store.list().unwrap().is_empty());
    assert_eq!(sample.read_all(Arc::new(image)), PLANNED);
    assert!(matches!(
        store.remove(&id),
        Err(StoreError::NotFound { .. })
    ));
}

#[test]
fn gc_says_the_same_dry_and_wet_and_frees_what_it_says() {
    let (dir, store) = fresh();
    let keep = add(&store, &Sample::other(1), "keep").id;
    let gone = add(&store, &Sample::other(2), "gone").id;
    store.remove(&gone).unwrap();
    fs::write(dir.path().join(left_over(&gone)), [1; 500]).unwrap();
    std::os::unix::fs::symlink("../images/none.bimg", dir.path().join("names/lost")).unwrap();
    let before = files_in(dir.path());
    let taken = || -> u64 {
        let parts = ["images", "segments", "tmp"].map(|part| files_in(&dir.path().join(part)));
        parts.iter().flat_map(|files| files.values()).sum()
    };
    let disk = taken();
    let dry = store.gc(GcMode::DryRun).unwrap();
    assert_eq!(files_in(dir.path()), before);
    let wet = store.gc(GcMode::Apply).unwrap();
    assert_eq!(dry, wet);
    assert_eq!((wet.leftovers, wet.segments.len()), (1, 1));
    assert_eq!(wet.names, ["lost"]);
    assert_eq!((wet.bytes_before, wet.bytes_after), (disk, taken()));
    assert_right(&store, &keep, &Sample::other(1));
    let idle = store.gc(GcMode::Apply).unwrap();
    assert_eq!(idle.bytes_before, idle.bytes_after);
}

#[test]
fn mostly_dead_segments_are_repacked() {
    let (_dir, store) = fresh();
    // The first image's segment holds the library too, which the others share.
    let first = add(&store, &Sample::other(0), "first").id;
    let second = add(&store, &Sample::other(1), "second").id;
    let third = add(&store, &Sample::other(2), "third").id;
    let used = store.find("second").unwrap().last_used;
    store.remove(&first).unwrap();
    let small = store.gc(GcMode::DryRun).unwrap();
    assert_eq!(small.repacked.len(), 0, "most of the segment lives");
    // An image that wants 13 of its 30 blocks.
    let mut part = Sample::other(3);
    part.plan.extents.retain(|extent| extent.range.len() == 36);
    let part_id = add(&store, &part, "part").id;
    store.remove(&second).unwrap();
    store.remove(&third).unwrap();
    let open = store.open_image(&part_id).unwrap();
    let report = store.gc(GcMode::Apply).unwrap();
    assert_eq!((report.repacked.len(), report.segments.len()), (1, 2));
    let image = store.open_image(&part_id).unwrap();
    let blocks = image.info().blocks;
    assert!(image.verify(&mut unwatched).unwrap().is_sound());
    assert_eq!(part.read_all(Arc::new(image)), blocks);
    assert_eq!(
        part.read_all(Arc::new(open)),
        blocks,
        "readers do not notice"
    );
    assert!(store.find("part").unwrap().last_used >= used);
    assert!(store.gc(GcMode::DryRun).unwrap().repacked.is_empty());
}

#[test]
fn a_store_that_is_too_large_gives_up_what_is_worth_least() {
    let (dir, big) = fresh();
    let ids: Vec<_> = (0..4)
        .map(|i| add(&big, &Sample::other(i), &format!("image-{i}")).id)
        .collect();
    let day = Duration::from_secs(24 * 3600);
    for (id, age) in ids.iter().zip([4, 3, 2, 1]) {
        big.places.set_last_used(id, SystemTime::now() - age * day);
    }
    big.pin(&ids[0]).unwrap();
    let listed: Vec<_> = big.list().unwrap().iter().map(|i| i.info.id).collect();
    assert_eq!(listed, [ids[3], ids[2], ids[1], ids[0]]);
    let size = big.gc(GcMode::DryRun).unwrap().bytes_after;
    let config = StoreConfig {
        max_bytes: size - 1,
        ..ENDLESS
    };
    let small = Store::open(dir.path(), config).unwrap();
    assert_eq!(small.gc(GcMode::Apply).unwrap().evicted, [ids[1]]);
    // The one that is added stays, whatever the bound is.
    let tiny = Store::open(
        dir.path(),
        StoreConfig {
            max_bytes: 1,
            ..ENDLESS
        },
    )
    .unwrap();
    let added = add(&tiny, &Sample::other(9), "new");
    assert_eq!(added.evicted, [ids[2], ids[3]]);
    let left: BTreeSet<_> = tiny.list().unwrap().iter().map(|i| i.info.id).collect();
    assert_eq!(left, BTreeSet::from([ids[0], added.id]));
    tiny.unpin(&ids[0]).unwrap();
    assert_eq!(tiny.gc(GcMode::Apply).unwrap().evicted.len(), 2);
}

#[test]
fn a_locked_store_can_be_read_but_not_changed() {
    let (dir, store) = fresh();
    let id = add(&store, &Sample::new(), "name").id;
    let _lock = store.lock().unwrap();
    let config = StoreConfig {
        lock_timeout: Duration::ZERO,
        group: None,
        ..ENDLESS
    };
    let other = Store::open(dir.path(), config).unwrap();
    assert_eq!(other.list().unwrap().len(), 1);
    assert_right(&other, &id, &Sample::new());
    assert!(matches!(other.remove(&id), Err(StoreError::Locked { .. })));
    assert!(matches!(
        other.gc(GcMode::DryRun),
        Err(StoreError::Locked { .. })
    ));
}

#[test]
fn a_rotten_segment_is_noticed_not_shared_and_healed_by_recording_again() {
    let (dir, store) = fresh();
    let sample = Sample::new();
    let id = add(&store, &sample, "name").id;
    let segments = files_in(&dir.path().join("segments"));
    let path = segments.keys().next().unwrap();
    let mut bytes = fs::read(path).unwrap();
    bytes[BLOCK_SIZE + 10] ^= 1;
    fs::write(path, &bytes).unwrap();
    let report = store.verify(&mut unwatched).unwrap();
    assert!(!report.is_sound());
    assert_eq!(report.images[0].report.damaged.len(), 1);
    let image = Arc::new(store.open_image(&id).unwrap());
    let attached = image.attach(&sample.tree);
    assert!(sample.read_through(&attached) < PLANNED);
    assert!(attached.counts().damaged_reads > 0);
    // Another image with the same library gets a block of its own.
    let other = Sample::other(1);
    let other_id = add(&store, &other, "other").id;
    assert_right(&store, &other_id, &other);
    // The same image is not taken for one that is there already.
    let healed = add(&store, &sample, "name");
    assert_eq!(healed.id, id);
    assert!(healed.new_bytes > 0);
    assert_right(&store, &id, &sample);
}

#[test]
fn damaged_images_do_not_hide_the_others() {
    let (dir, store) = fresh();
    let bad = add(&store, &Sample::other(1), "bad").id;
    let good = add(&store, &Sample::other(2), "good").id;
    let path = dir.path().join(format!("images/{bad}.bimg"));
    fs::write(&path, b"short").unwrap();
    let listed: Vec<_> = store.list().unwrap().iter().map(|i| i.info.id).collect();
    assert_eq!(listed, [good]);
    assert_eq!(store.verify(&mut unwatched).unwrap().unusable.len(), 1);
    // Recording it again brings it back; else it is garbage.
    add(&store, &Sample::other(1), "bad");
    assert_right(&store, &bad, &Sample::other(1));
    fs::write(&path, b"short").unwrap();
    assert_eq!(store.gc(GcMode::Apply).unwrap().lost, [bad]);
    assert!(!path.exists());
    assert_right(&store, &good, &Sample::other(2));
}

#[test]
fn images_go_out_and_come_back_the_same() {
    let (dir, store) = fresh();
    let (_other_dir, other) = fresh();
    let sample = Sample::new();
    let id = add(&store, &sample, "name").id;
    for (variant, file) in [(Variant::Mapped, "m"), (Variant::Packed, "p")] {
        let path = dir.path().join(file);
        store.export(&id, &path, variant, &mut unwatched).unwrap();
        let report = other.import(&path, Some(file), &mut unwatched).unwrap();
        assert_eq!(report.id, id);
        let mut bytes = fs::read(&path).unwrap();
        bytes[BLOCK_SIZE + 1000] ^= 4;
        fs::write(&path, bytes).unwrap();
        assert!(other.import(&path, Some(file), &mut unwatched).is_err());
    }
    assert_right(&other, &id, &sample);
    let thin = store.places.image(&id);
    assert!(matches!(Image::open(thin), Err(OpenError::Thin { .. })));
}

#[test]
fn readers_beside_writers_see_whole_images_or_none() {
    let (dir, store) = fresh();
    let samples = [Sample::other(1), Sample::other(2)];
    let id = add(&store, &samples[0], "stays").id;
    let gone = samples[1].image();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for _ in 0..20 {
                store.add(&gone, Some("comes"), &mut unwatched).unwrap();
                store.remove(&gone.info().id).unwrap();
                store.gc(GcMode::Apply).unwrap();
            }
        });
        let reader = store_in(dir.path());
        let mut opened = 0;
        while !writer.is_finished() || opened == 0 {
            assert_right(&reader, &id, &samples[0]);
            opened += 1;
            match reader.open_image(&gone.info().id) {
                Ok(image) => {
                    assert_eq!(samples[1].read_all(Arc::new(image)), PLANNED);
                }
                // Between its removal and the next time it is added.
                Err(StoreError::NotFound { .. } | StoreError::Open(OpenError::Io { .. })) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
}
