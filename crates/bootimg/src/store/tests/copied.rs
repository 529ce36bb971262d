//! Images for copies of a source, whose blocks the store has already.

use super::*;
use crate::WriteRequest;
use crate::sample::{APP, LIB, nodes};

/// The source of `Sample::other(number)`, unpacked again: other inodes and times, and the same content.
pub(super) fn copy_of(number: u64) -> Sample {
    let mut nodes = nodes();
    for node in &mut nodes {
        node.attr.ctime.secs += 1000;
    }
    let was = Sample::other(number);
    let mut sample = Sample::with_nodes(&nodes);
    sample.content = was.content;
    sample.info.label = "dir:/srv/copy".to_owned();
    sample.info.id = blocks::SourceId::of_label(b"dir:/srv/copy");
    sample
}

/// Adds an image for a copy, as `copy`.
pub(super) fn add_copy(
    store: &Store,
    origin: &Image,
    copy: &Sample,
) -> Result<Option<Image>, StoreError> {
    let plan = origin.hint_for(&copy.tree).plan;
    let source = copy.source();
    let request = WriteRequest {
        tree: &copy.tree,
        info: &copy.info,
        plan: &plan,
        blocks: &source,
        variant: Variant::Mapped,
    };
    store.add_copy(origin, "copy", &request, &mut unwatched)
}

#[test]
fn of_an_image_for_a_copy_only_metadata_is_written() {
    let (dir, store) = fresh();
    // The library is in the segment of the first, and the application in one of its own.
    add(&store, &Sample::other(0), "first");
    let id = add(&store, &Sample::other(1), "origin").id;
    let origin = store.open_image(&id).unwrap();
    let segments = files_in(&dir.path().join("segments"));
    assert_eq!(segments.len(), 2);
    let copy = copy_of(1);
    let image = add_copy(&store, &origin, &copy).unwrap().unwrap();
    assert_eq!(files_in(&dir.path().join("segments")), segments);
    assert_eq!(store.resolve("copy").unwrap(), image.info().id);
    assert_ne!(image.info().id, id);
    assert_eq!(image.info().source, copy.info);
    assert_eq!(image.plan(), origin.plan());
    let id = image.info().id;
    assert_eq!(copy.read_all(Arc::new(image)), PLANNED);
    assert_right(&store, &id, &copy);
    // It is the very image that is written in whole.
    let plan = origin.hint_for(&copy.tree).plan;
    let whole = Sample { plan, ..copy }.image();
    assert_eq!(whole.info().id, id);
    // It keeps the blocks when its origin goes.
    store.remove(&store.resolve("origin").unwrap()).unwrap();
    store.remove(&store.resolve("first").unwrap()).unwrap();
    store.gc(GcMode::Apply).unwrap();
    assert_right(&store, &id, &copy_of(1));
}

/// What hinders that a copy shares the blocks of its origin.
#[test]
fn a_copy_that_differs_and_an_origin_that_is_damaged_change_nothing() {
    type Hinder = fn(&Path, &mut Sample);
    let segment = |dir: &Path| {
        let files = files_in(&dir.join("segments"));
        files.into_keys().next().unwrap()
    };
    let hinders: [(&str, Hinder); 5] = [
        ("another block", |_, copy| {
            copy.content.get_mut(&APP).unwrap()[6 * BLOCK_SIZE] ^= 1;
        }),
        ("no hole", |_, copy| {
            copy.content.get_mut(&LIB).unwrap()[12 * BLOCK_SIZE] = 1;
        }),
        ("another length", |_, copy| {
            let mut nodes = nodes();
            let longer = copy.content.get_mut(&APP).unwrap();
            longer.push(1);
            nodes[APP.index()].attr.size += 1;
            copy.tree = blocks::testing::tree(&nodes).unwrap();
        }),
        ("a file that cannot be read", |_, copy| {
            copy.content.remove(&LIB);
        }),
        ("nothing", |_, _| {}),
    ];
    for (what, hinder) in hinders {
        let (dir, store) = fresh();
        let id = add(&store, &Sample::other(1), "origin").id;
        let origin = store.open_image(&id).unwrap();
        let mut copy = copy_of(1);
        hinder(dir.path(), &mut copy);
        let before = files_in(dir.path());
        let added = add_copy(&store, &origin, &copy).unwrap();
        assert_eq!(added.is_some(), what == "nothing", "{what}");
        assert_eq!(files_in(dir.path()) == before, what != "nothing", "{what}");
    }
    for rot in [true, false] {
        let (dir, store) = fresh();
        let id = add(&store, &Sample::other(1), "origin").id;
        let origin = store.open_image(&id).unwrap();
        let segment = segment(dir.path());
        if rot {
            let mut bytes = fs::read(&segment).unwrap();
            bytes[2 * BLOCK_SIZE] ^= 1;
            fs::write(&segment, bytes).unwrap();
        } else {
            // Collected as garbage since the origin was opened.
            fs::remove_file(&segment).unwrap();
        }
        assert!(add_copy(&store, &origin, &copy_of(1)).unwrap().is_none());
        assert!(store.resolve("copy").is_err());
    }
}
