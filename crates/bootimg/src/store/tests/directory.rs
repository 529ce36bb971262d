//! Which directories are stores, and what of them is the store's.

use super::*;

const MARKER: &str = "yolofs-store";

fn open(dir: &Path) -> Result<Store, StoreError> {
    Store::open(dir, ENDLESS)
}

fn refused(dir: &Path) {
    let before = files_in(dir);
    let error = open(dir).unwrap_err();
    assert!(matches!(error, StoreError::NotAStore { .. }), "{error}");
    assert_eq!(files_in(dir), before);
}

#[test]
fn looking_makes_nothing_and_the_first_write_makes_a_marked_store() {
    let dir = tempfile::tempdir().unwrap();
    for place in [dir.path().to_owned(), dir.path().join("new/store")] {
        let store = open(&place).unwrap();
        assert!(!store.is_there().unwrap());
        assert_eq!(store.list().unwrap(), []);
        assert_eq!(store.stacks().unwrap(), []);
        assert!(store.verify(&mut unwatched).unwrap().is_sound());
        assert_eq!(store.gc(GcMode::DryRun).unwrap(), GcReport::default());
        assert!(matches!(store.find("x"), Err(StoreError::NotFound { .. })));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
    let place = dir.path().join("new/store");
    let store = open(&place).unwrap();
    let id = add(&store, &Sample::new(), "first").id;
    assert!(store.is_there().unwrap());
    assert_eq!(
        fs::read_to_string(place.join(MARKER)).unwrap(),
        "yolofs boot image store, version 1\n"
    );
    assert_right(&open(&place).unwrap(), &id, &Sample::new());
}

#[test]
fn what_is_no_store_is_refused_and_left_alone() {
    for foreign in [
        "notes.txt",
        "tmp/mine",
        "images/photo.jpg",
        "lib/a/b",
        "yolofs-store.txt",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(foreign);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, b"mine").unwrap();
        refused(dir.path());
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), b"x").unwrap();
    assert!(open(&dir.path().join("file")).is_err());
}

/// What earlier releases made of a directory that they were only asked to look into.
#[test]
fn an_empty_layout_in_somebodys_directory_makes_no_store_of_it() {
    let dir = tempfile::tempdir().unwrap();
    for part in ["images", "segments", "names", "pins", "stacks", "tmp"] {
        fs::create_dir(dir.path().join(part)).unwrap();
    }
    assert!(open(dir.path()).unwrap().is_there().unwrap());
    fs::write(dir.path().join("tmp/mine"), b"mine").unwrap();
    fs::write(dir.path().join("notes.txt"), b"mine").unwrap();
    refused(dir.path());
}

/// Whole files are on tiers without any boot image.
#[test]
fn what_commands_keep_beside_a_store_is_there_without_one() {
    for beside in ["tiers", "pulling"] {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(beside)).unwrap();
        assert!(open(dir.path()).unwrap().is_there().unwrap(), "{beside}");
    }
}

#[test]
fn a_store_without_a_marker_gets_one_with_the_first_write() {
    let (dir, store) = fresh();
    let id = add(&store, &Sample::new(), "first").id;
    fs::remove_file(dir.path().join(MARKER)).unwrap();
    // Whatever else its owner keeps there.
    fs::write(dir.path().join("notes.txt"), b"mine").unwrap();
    let store = open(dir.path()).unwrap();
    assert_right(&store, &id, &Sample::new());
    assert_eq!(store.list().unwrap().len(), 1);
    assert!(!dir.path().join(MARKER).exists());
    store.pin(&id).unwrap();
    assert!(dir.path().join(MARKER).exists());
    // From now on it is a store whatever is in it.
    store.remove(&id).unwrap();
    store.gc(GcMode::Apply).unwrap();
    assert!(open(dir.path()).unwrap().is_there().unwrap());
}

/// It may have blocks, or know of container images, and its owner may keep something else there, too.
#[test]
fn a_store_without_images_and_marker_is_known_by_what_only_a_store_has() {
    for kept in ["images", "segments", "stacks"] {
        let (dir, store) = fresh();
        add(&store, &Sample::new(), "first");
        store.put_stack(&stacks::stack("nginx", 1, &[10])).unwrap();
        fs::remove_file(dir.path().join(MARKER)).unwrap();
        for part in ["images", "segments", "stacks"] {
            for entry in fs::read_dir(dir.path().join(part)).unwrap() {
                let path = entry.unwrap().path();
                if part != kept {
                    fs::remove_file(path).unwrap();
                }
            }
        }
        fs::write(dir.path().join("notes.txt"), b"mine").unwrap();
        let store = open(dir.path()).unwrap();
        assert!(store.is_there().unwrap(), "{kept}");
        store.gc(GcMode::Apply).unwrap();
        assert!(dir.path().join(MARKER).exists(), "{kept}");
        assert_eq!(fs::read(dir.path().join("notes.txt")).unwrap(), b"mine");
        // With nothing of this kind it is nothing to lose, and may be anybody's.
        fs::remove_file(dir.path().join(MARKER)).unwrap();
        for part in ["images", "segments", "stacks"] {
            for entry in fs::read_dir(dir.path().join(part)).unwrap() {
                fs::remove_file(entry.unwrap().path()).unwrap();
            }
        }
        refused(dir.path());
    }
}

#[test]
fn a_store_of_a_later_version_is_refused() {
    let (dir, store) = fresh();
    add(&store, &Sample::new(), "first");
    fs::write(
        dir.path().join(MARKER),
        "yolofs boot image store, version 2\n",
    )
    .unwrap();
    let error = open(dir.path()).unwrap_err();
    assert!(
        matches!(error, StoreError::Version { version: 2, .. }),
        "{error}"
    );
    // One that was torn says nothing, and is written again.
    fs::write(dir.path().join(MARKER), "yolofs bo").unwrap();
    let store = open(dir.path()).unwrap();
    store.make().unwrap();
    let text = fs::read_to_string(dir.path().join(MARKER)).unwrap();
    assert!(text.ends_with("version 1\n"), "{text}");
}

#[test]
fn gc_removes_what_writers_left_and_nothing_of_anybody_else() {
    let (dir, store) = fresh();
    let id = add(&store, &Sample::new(), "first").id;
    let hash = "0".repeat(64);
    let ours = [
        left_over(&id),
        format!("tmp/{hash}.seg.1.2.tmp"),
        format!("tmp/{hash}.json.1.2.tmp"),
        format!("tmp/{hash}.1.2.tmp"),
        format!("tmp/{MARKER}.1.2.tmp"),
    ];
    let others = [
        "tmp/mine".to_owned(),
        "tmp/mine.tmp".to_owned(),
        "tmp/mine.1.2.tmp".to_owned(),
        format!("tmp/{hash}.bimg"),
        format!("tmp/{hash}.bimg.1.x.tmp"),
        "tmp/file.name".to_owned(),
        "names/notes".to_owned(),
        "images/photo.jpg".to_owned(),
        "segments/mine".to_owned(),
        "pins/mine".to_owned(),
    ];
    for file in ours.iter().chain(&others) {
        fs::write(dir.path().join(file), b"x").unwrap();
    }
    fs::create_dir(dir.path().join("tmp/dir.1.2.tmp")).unwrap();
    std::os::unix::fs::symlink("/etc/hosts", dir.path().join("names/elsewhere")).unwrap();
    std::os::unix::fs::symlink("/etc/hosts", dir.path().join("tmp/link.name")).unwrap();
    let image = format!("../images/{id}.bimg");
    std::os::unix::fs::symlink(&image, dir.path().join("tmp/second.name")).unwrap();
    let dry = store.gc(GcMode::DryRun).unwrap();
    let report = store.gc(GcMode::Apply).unwrap();
    assert_eq!(dry, report);
    assert_eq!(report.leftovers, ours.len() + 1);
    assert_eq!(report.names, [""; 0]);
    for file in &ours {
        assert!(!dir.path().join(file).exists(), "{file}");
    }
    assert!(
        dir.path()
            .join("tmp/second.name")
            .symlink_metadata()
            .is_err()
    );
    for file in &others {
        assert_eq!(fs::read(dir.path().join(file)).unwrap(), b"x", "{file}");
    }
    for link in ["names/elsewhere", "tmp/link.name"] {
        assert!(dir.path().join(link).symlink_metadata().is_ok(), "{link}");
    }
    assert!(dir.path().join("tmp/dir.1.2.tmp").is_dir());
    assert_right(&store, &id, &Sample::new());
}
