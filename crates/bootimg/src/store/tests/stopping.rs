//! The store, stopped at every step: by a kill with a power cut after it, and by a full disk.

use super::*;
use crate::WriteError;
use crate::durable::End;

/// What a store did when it was stopped at some step.
type Change = fn(&Store) -> Result<(), StoreError>;

/// Stops `change` after every number of steps, in a copy of `base`, and hands each copy, opened
/// anew as the next process would, to `check`. Returns how many steps there are.
fn stop_everywhere(base: &Path, end: End, change: Change, check: impl Fn(&Store, bool)) -> u64 {
    for count in 0.. {
        let dir = tempfile::tempdir().unwrap();
        copy_dir(base, dir.path());
        let mut store = store_in(dir.path());
        store.steps = Steps::ending(end, count);
        let result = change(&store);
        let ended = store.steps.ended() && result.is_err();
        if end == End::DiskFull && ended {
            let full = matches!(result, Err(StoreError::Write(WriteError::DiskFull { .. })));
            assert!(full, "step {count}: {result:?}");
            let left = files_in(&dir.path().join("tmp"));
            assert!(
                left.keys().all(|name| name.ends_with(".name")),
                "step {count}: {left:?}"
            );
        }
        store.steps.cut_power();
        drop(store);
        check(&store_in(dir.path()), result.is_ok());
        if result.is_ok() {
            assert!(count > 3, "there are steps to stop at");
            return count;
        }
    }
    unreachable!("there is an end to the steps")
}

fn base() -> TempDir {
    let (dir, store) = fresh();
    add(&store, &Sample::other(0), "first");
    add(&store, &Sample::other(1), "name");
    dir
}

fn replace(store: &Store) -> Result<(), StoreError> {
    store
        .add(&Sample::other(2).image(), Some("name"), &mut unwatched)
        .map(|_| ())
}

fn check_replaced(store: &Store, done: bool) {
    let first = store.find("first").unwrap().info.id;
    assert_right(store, &first, &Sample::other(0));
    // The name is always for one whole image: the old one or the new one.
    let named = store.find("name").unwrap();
    let label = named.info.source.label.as_str();
    let number = if label == "dir:/srv/other-1" { 1 } else { 2 };
    assert!(number == 2 || !done);
    assert_right(store, &named.info.id, &Sample::other(number));
    assert!(store.verify(&mut unwatched).unwrap().is_sound());
    store.gc(GcMode::Apply).unwrap();
    assert_eq!(store.list().unwrap().len(), 2);
    assert_right(store, &named.info.id, &Sample::other(number));
    replace(store).unwrap();
    let named = store.find("name").unwrap().info.id;
    assert_right(store, &named, &Sample::other(2));
}

#[test]
fn killed_at_any_step_of_replacing_an_image_the_store_is_whole() {
    stop_everywhere(base().path(), End::Killed, replace, check_replaced);
}

#[test]
fn a_disk_full_at_any_step_of_replacing_an_image_is_said_and_leaves_the_store_whole() {
    stop_everywhere(base().path(), End::DiskFull, replace, check_replaced);
}

#[test]
fn killed_at_any_step_of_gc_the_store_is_whole() {
    let (dir, store) = fresh();
    let first = add(&store, &Sample::other(0), "first").id;
    let mut part = Sample::other(3);
    part.plan.extents.retain(|extent| extent.range.len() == 36);
    add(&store, &part, "part");
    add(&store, &Sample::other(4), "unused");
    store.remove(&first).unwrap();
    let unused = store.find("unused").unwrap().info.id;
    store.remove(&unused).unwrap();
    fs::write(dir.path().join(left_over(&unused)), b"over").unwrap();
    let plan = store.gc(GcMode::DryRun).unwrap();
    assert_eq!(
        (plan.repacked.len(), plan.segments.len(), plan.leftovers),
        (1, 1, 1)
    );
    let gc: Change = |store| store.gc(GcMode::Apply).map(|_| ());
    stop_everywhere(dir.path(), End::Killed, gc, |store, _| {
        let image = store
            .open_image(&store.find("part").unwrap().info.id)
            .unwrap();
        let blocks = image.info().blocks;
        assert_eq!(part.read_all(Arc::new(image)), blocks);
        store.gc(GcMode::Apply).unwrap();
        let report = store.gc(GcMode::DryRun).unwrap();
        assert_eq!(report.bytes_before, report.bytes_after);
        assert!(store.verify(&mut unwatched).unwrap().is_sound());
    });
}

fn derive(store: &Store) -> Result<(), StoreError> {
    let store = store.for_derived(Sample::other(0).image().info().id);
    let image = Sample::other(2).image();
    store.add(&image, Some("derived"), &mut unwatched)?;
    Ok(())
}

#[test]
fn a_derived_image_that_a_power_cut_damaged_is_refused_and_made_again() {
    stop_everywhere(base().path(), End::Killed, derive, |store, done| {
        for (name, number) in [("first", 0), ("name", 1)] {
            let id = store.find(name).unwrap().info.id;
            assert_right(store, &id, &Sample::other(number));
        }
        let derived = store.resolve("derived");
        if done {
            // The harness cuts what was not synced: there is something to refuse.
            assert!(store.open_image(derived.as_ref().unwrap()).is_err());
        }
        if let Ok(id) = derived
            && store.open_image(&id).is_ok()
        {
            assert_right(store, &id, &Sample::other(2));
        }
        derive(store).unwrap();
        let id = store.find("derived").unwrap().info.id;
        assert_right(store, &id, &Sample::other(2));
        assert!(store.verify(&mut unwatched).unwrap().is_sound());
    });
}

#[test]
fn of_a_derived_image_only_new_blocks_are_synced() {
    let (_dir, mut store) = fresh();
    add(&store, &Sample::other(0), "first");
    store.steps = Steps::ending(End::Killed, 1000);
    derive(&store).unwrap();
    let id = store.resolve("derived").unwrap();
    let derived = BTreeSet::from([store.places.image(&id)]);
    assert_eq!(store.steps.unsynced(), derived);
    // Others are, as ever.
    add(&store, &Sample::other(1), "name");
    assert_eq!(store.steps.unsynced(), derived);
}

/// A later image of the store may have blocks of a derived one.
#[test]
fn what_shares_blocks_with_a_damaged_derived_image_is_whole() {
    let (dir, mut store) = fresh();
    store.steps = Steps::ending(End::Killed, 1000);
    derive(&store).unwrap();
    let id = add(&store, &Sample::other(1), "name").id;
    store.steps.cut_power();
    let store = store_in(dir.path());
    assert!(
        store
            .open_image(&store.resolve("derived").unwrap())
            .is_err()
    );
    store.gc(GcMode::Apply).unwrap();
    assert_right(&store, &id, &Sample::other(1));
}

fn copy(store: &Store) -> Result<(), StoreError> {
    let origin = store.open_image(&Sample::other(0).image().info().id)?;
    let added = copied::add_copy(store, &origin, &copied::copy_of(0))?;
    assert!(added.is_some());
    Ok(())
}

/// A file that is created, written in two parts and renamed, and a link that is created and renamed; nothing is synced.
#[test]
fn six_changes_make_an_image_for_a_copy_and_a_power_cut_costs_no_other() {
    let steps = stop_everywhere(base().path(), End::Killed, copy, |store, done| {
        for (name, number) in [("first", 0), ("name", 1)] {
            let id = store.find(name).unwrap().info.id;
            assert_right(store, &id, &Sample::other(number));
        }
        let copied = store.resolve("copy");
        assert!(copied.is_ok() || !done);
        if let Ok(id) = copied
            && store.open_image(&id).is_ok()
        {
            assert_right(store, &id, &copied::copy_of(0));
        }
        copy(store).unwrap();
        let id = store.find("copy").unwrap().info.id;
        assert_right(store, &id, &copied::copy_of(0));
        assert!(store.verify(&mut unwatched).unwrap().is_sound());
    });
    assert_eq!(steps, 6);
}

fn stack(ready_ms: u64) -> crate::Stack {
    crate::Stack {
        reference: "docker.io/library/nginx:1".to_owned(),
        image: blocks::Digest([1; 32]),
        manifest: None,
        layers: vec![blocks::Digest([2; 32])],
        recorded_at: 0,
        ready_ms: vec![ready_ms],
        command: Vec::new(),
    }
}

#[test]
fn stopped_at_any_step_of_describing_an_image_the_old_or_the_new_is_there() {
    for end in [End::Killed, End::DiskFull] {
        let dir = base();
        store_in(dir.path()).put_stack(&stack(1)).unwrap();
        let change: Change = |store| store.put_stack(&stack(2));
        stop_everywhere(dir.path(), end, change, |store, done| {
            let found = store.stacks().unwrap();
            assert!(found == [stack(2)] || !done && found == [stack(1)]);
        });
    }
}
