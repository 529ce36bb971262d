//! Who may read a store: it has blocks of files that only root may read.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;

use super::*;

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// All directories and files of a place, without links, and itself.
fn all_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![dir.to_owned()];
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let of = path.symlink_metadata().unwrap();
        if of.is_dir() {
            found.extend(all_below(&path));
        } else if of.is_file() {
            found.push(path);
        }
    }
    found
}

fn assert_modes(dir: &Path, of_dirs: u32, of_files: u32) {
    for path in all_below(dir) {
        let want = if path.is_dir() { of_dirs } else { of_files };
        assert_eq!(mode(&path), want, "{}", path.display());
    }
}

/// What an earlier release made: everybody could read all of it.
fn open_to_all(dir: &Path) {
    for path in all_below(dir) {
        chmod(&path, if path.is_dir() { 0o755 } else { 0o644 });
    }
}

/// A store with everything that there can be in one.
fn full(dir: &Path, config: StoreConfig) -> Store {
    let store = Store::open(dir, config).unwrap();
    let id = add(&store, &Sample::new(), "first").id;
    store.pin(&id).unwrap();
    fs::create_dir_all(dir.join("tiers/disk")).unwrap();
    fs::write(dir.join("tiers/disk/copy"), b"content").unwrap();
    store
}

/// What is made beside the store's own while it is closed follows when it is opened the next time.
fn remade(dir: &Path) {
    chmod(&dir.join("tiers"), 0o700);
    chmod(&dir.join("tiers/disk"), 0o700);
    chmod(&dir.join("tiers/disk/copy"), 0o600);
}

#[test]
fn a_store_is_for_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("new/store");
    drop(full(&place, ENDLESS));
    remade(&place);
    assert_modes(&place, 0o700, 0o600);
    // Only the store is closed, and not the way to it.
    assert_eq!(mode(&dir.path().join("new")) & 0o055, 0o055);
}

#[test]
fn a_directory_that_becomes_a_store_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    chmod(dir.path(), 0o755);
    let store = store_in(dir.path());
    assert_eq!(mode(dir.path()), 0o755, "nothing was written yet");
    store.make().unwrap();
    assert_modes(dir.path(), 0o700, 0o600);
}

#[test]
fn a_store_of_an_earlier_release_is_closed_when_it_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    drop(full(dir.path(), ENDLESS));
    open_to_all(dir.path());
    assert_eq!(store_in(dir.path()).list().unwrap().len(), 1);
    assert_modes(dir.path(), 0o700, 0o600);
    // By whatever way.
    open_to_all(dir.path());
    let link = tempfile::tempdir().unwrap();
    symlink(dir.path(), link.path().join("store")).unwrap();
    assert_eq!(
        store_in(&link.path().join("store")).list().unwrap().len(),
        1
    );
    assert_modes(dir.path(), 0o700, 0o600);
}

#[test]
fn where_others_keep_something_only_what_is_the_stores_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    drop(full(dir.path(), ENDLESS));
    let foreign = dir.path().join("theirs");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("file"), b"theirs").unwrap();
    open_to_all(dir.path());
    // `--store /var`, once.
    chmod(&dir.path().join("tmp"), 0o1777);
    drop(store_in(dir.path()));
    assert_eq!(mode(dir.path()), 0o755);
    assert_eq!(mode(&foreign), 0o755);
    assert_eq!(mode(&foreign.join("file")), 0o644);
    assert_eq!(mode(&dir.path().join("tmp")), 0o1777);
    for part in ["images", "segments", "names", "pins", "stacks", "tiers"] {
        assert_modes(&dir.path().join(part), 0o700, 0o600);
    }
}

#[test]
fn a_group_reads_the_store_if_that_is_asked_for_once() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("store");
    let group = Some(fs::metadata(dir.path()).unwrap().gid());
    let config = StoreConfig { group, ..ENDLESS };
    drop(full(&place, ENDLESS));
    open_to_all(&place);
    drop(Store::open(&place, config).unwrap());
    assert_modes(&place, 0o2750, 0o640);
    // Who is not told of it keeps it so.
    let store = store_in(&place);
    let sample = Sample::new();
    store
        .add(&sample.image(), Some("second"), &mut unwatched)
        .unwrap();
    store.gc(GcMode::Apply).unwrap();
    assert_modes(&place, 0o2750, 0o640);
    // A store that is to be.
    let new = dir.path().join("new");
    Store::open(&new, config).unwrap().make().unwrap();
    assert_modes(&new, 0o2750, 0o640);
}
