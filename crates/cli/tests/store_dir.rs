//! `--store DIR`, where DIR is somebody's directory, or a store that others write to.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fixture;

use std::fs::{self, File};
use std::path::PathBuf;

use fixture::{Fixture, content, files_below};
use lab::{fails, json, ok};

/// Everything that takes a store, reading or writing.
const VERBS: [&[&str]; 14] = [
    &["ls"],
    &["ls", "--images"],
    &["gc"],
    &["gc", "--dry-run"],
    &["inspect", "one"],
    &["verify", "one"],
    &["rm", "one"],
    &["pin", "one"],
    &["unpin", "one"],
    &["prewarm", "one"],
    &["export", "one", "out.bimg"],
    &["import", "one.bimg"],
    &["merge", "one", "two", "--name", "both"],
    &["from-trace", "disk.raw", "--qemu", "one.log", "--name", "x"],
];

fn names_in(fixture: &Fixture, dir: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(fixture.path(dir)).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// `--store /var` would have meant the files in `/var/tmp`.
#[test]
fn a_directory_that_is_no_store_is_refused_and_left_as_it_is() {
    let fixture = Fixture::with_images();
    ok(&mut fixture.bootimg(&["export", "one", "one.bimg"]));
    fs::create_dir_all(fixture.path("var/tmp")).unwrap();
    fs::create_dir_all(fixture.path("var/lib")).unwrap();
    fs::write(fixture.path("var/tmp/mine"), b"mine").unwrap();
    for args in VERBS {
        let why = fails(
            1,
            fixture
                .bootimg(args)
                .env("YOLOFS_STORE", fixture.path("var")),
        );
        assert!(why.contains("is not a store"), "{args:?}: {why}");
    }
    assert_eq!(
        files_below(&fixture.path("var")),
        [fixture.path("var/tmp/mine")]
    );
    assert_eq!(names_in(&fixture, "var").len(), 2);
}

#[test]
fn reading_makes_no_store_of_an_empty_directory() {
    let fixture = Fixture::with_images();
    fs::create_dir(fixture.path("empty")).unwrap();
    for args in &VERBS[..11] {
        let empty = fixture.path("empty");
        let output = fixture.bootimg(args).env("YOLOFS_STORE", &empty).output();
        let output = output.unwrap();
        let expected = matches!(args[0], "ls" | "gc");
        assert_eq!(output.status.success(), expected, "{args:?}");
        assert!(names_in(&fixture, "empty").is_empty(), "{args:?}");
    }
    let record = VERBS[13];
    ok(fixture
        .bootimg(record)
        .env("YOLOFS_STORE", fixture.path("empty")));
    assert!(fixture.path("empty/yolofs-store").is_file());
}

/// To look at an image is no reason to keep it, and a store on a disk that nobody may write to can be
/// looked at.
#[test]
fn reading_changes_no_byte_and_no_time_of_a_store() {
    let fixture = Fixture::with_images();
    let state = || -> Vec<_> {
        let files = files_below(&fixture.path("store")).into_iter();
        files
            .map(|path| {
                let meta = path.symlink_metadata().unwrap();
                (meta.modified().unwrap(), content(&path), path)
            })
            .collect()
    };
    let before = state();
    for args in [
        &["ls"][..],
        &["ls", "--images"],
        &["gc", "--dry-run"],
        &["inspect", "one"],
        &["verify", "one"],
        &["rm", "one", "--dry-run"],
    ] {
        ok(&mut fixture.bootimg(args));
        assert_eq!(state(), before, "{args:?}");
    }
}

#[test]
fn gc_leaves_a_users_files_in_a_store() {
    let fixture = Fixture::with_images();
    for name in ["tmp/mine", "names/mine", "pulling/mine", "notes.txt"] {
        let path = fixture.path("store").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"mine").unwrap();
    }
    assert_eq!(
        json(&mut fixture.bootimg(&["gc", "--json"]))["leftovers"],
        0
    );
    for name in ["tmp/mine", "names/mine", "pulling/mine", "notes.txt"] {
        assert_eq!(fs::read(fixture.path("store").join(name)).unwrap(), b"mine");
    }
    assert_eq!(fixture.names(), ["one", "two"]);
}

/// The files of a recorder that lives, in whatever PID namespace, stay; those of a dead one go.
#[test]
fn what_others_are_writing_is_swept_when_they_are_dead_and_not_before() {
    let fixture = Fixture::with_images();
    let place = |name: &str| fixture.path("store").join(name);
    let number = "0123456789abcdef".repeat(2);
    let lock_path = place(&format!("recording-{number}"));
    let image = place(&format!("recording-{number}.bimg"));
    let lock = File::create(&lock_path).unwrap();
    lock.try_lock().unwrap();
    fs::write(&image, b"half an image").unwrap();
    // An earlier release named it by its process, which may be alive in another namespace.
    let earlier = place(&format!("recording-{}", u32::MAX));
    fs::write(&earlier, b"half an image").unwrap();
    fixture.record("one");
    assert!(lock_path.exists() && image.exists() && earlier.exists());
    drop(lock);
    fixture.record("one");
    assert!(!lock_path.exists() && !image.exists());
    assert!(earlier.exists());
    assert_eq!(fixture.names(), ["one", "two"]);
}

/// A recording may take long: where it cannot be kept, it is not begun.
#[test]
fn nothing_is_recorded_for_what_is_no_store() {
    let fixture = Fixture::with_images();
    fs::create_dir_all(fixture.path("var/tmp")).unwrap();
    fs::write(fixture.path("var/tmp/mine"), b"mine").unwrap();
    fs::create_dir(fixture.path("tree")).unwrap();
    let marker = fixture.path("begun");
    let begin = ["record", "tree", "--no-chroot", "--", "touch"];
    let mut record = fixture.bootimg(&begin);
    record.arg(&marker).env("YOLOFS_STORE", fixture.path("var"));
    let why = fails(1, &mut record);
    assert!(why.contains("is not a store"), "{why}");
    assert!(!marker.exists());
}
