//! Tests of locks with deadlines.

use super::*;

use std::cell::Cell;
use std::sync::mpsc;

const PURPOSE: Purpose = Purpose {
    holder: "changes what is tested",
    advice: "try again",
};
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(20);

#[test]
fn a_lock_that_is_held_is_given_up_and_the_error_says_by_whom() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    let held = FileLock::take(&path, Duration::ZERO, PURPOSE).unwrap();
    let started = Instant::now();
    let error = FileLock::take(&path, SHORT, PURPOSE).unwrap_err();
    assert!(started.elapsed() >= SHORT, "given up before the deadline");
    let LockError::Busy(busy) = &error else {
        panic!("{error}");
    };
    assert_eq!((busy.waited, &busy.path), (SHORT, &path));
    let text = error.to_string();
    let want = format!(
        " changes what is tested, and holds the lock {} for longer than 20ms: try again",
        path.display()
    );
    assert!(
        text.starts_with("another process") && text.ends_with(&want),
        "{text}"
    );
    drop(held);
    FileLock::take(&path, LONG, PURPOSE).unwrap();
}

/// The system's list has it on all but a few file systems, such as btrfs; what is written is known on all.
#[test]
fn a_signed_lock_names_its_process() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    std::fs::write(&path, "a longer text of somebody else").unwrap();
    let mut held = FileLock::take(&path, Duration::ZERO, PURPOSE).unwrap();
    held.sign().unwrap();
    let written = std::fs::read_to_string(&path).unwrap();
    assert_eq!(written, std::process::id().to_string());
    let busy = match FileLock::take(&path, Duration::ZERO, PURPOSE) {
        Err(LockError::Busy(busy)) => busy,
        other => panic!("{other:?}"),
    };
    assert_eq!(busy.process, Some(std::process::id()));
    assert!(!busy.to_string().contains("longer"), "{busy}");
}

#[test]
fn a_lock_is_taken_when_its_holder_releases_it() {
    let dir = tempfile::tempdir().unwrap();
    let open = || File::open(dir.path()).unwrap();
    let held = FileLock::of(open(), dir.path(), Duration::ZERO, PURPOSE).unwrap();
    // Released by the first attempt that finds it held.
    let held = Cell::new(Some(held));
    let taken = FileLock::unless(open(), LONG, || {
        drop(held.take());
        false
    });
    assert!(taken.unwrap().is_some());
}

#[test]
fn who_gives_up_does_not_wait_for_the_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let open = || File::open(dir.path()).unwrap();
    let _held = FileLock::of(open(), dir.path(), Duration::ZERO, PURPOSE).unwrap();
    let attempts = Cell::new(0);
    let gives_up = || {
        attempts.set(attempts.get() + 1);
        attempts.get() == 3
    };
    assert!(FileLock::unless(open(), LONG, gives_up).unwrap().is_none());
    assert_eq!(attempts.get(), 3);
}

#[test]
fn shared_locks_exclude_exclusive_ones_only() {
    let dir = tempfile::tempdir().unwrap();
    let open = || File::open(dir.path()).unwrap();
    let (first, second) = (open(), open());
    assert!(share(&first, Duration::ZERO).unwrap());
    assert!(share(&second, Duration::ZERO).unwrap());
    assert!(FileLock::unless(open(), SHORT, || false).unwrap().is_none());
    drop((first, second));
    let held = FileLock::unless(open(), SHORT, || false).unwrap();
    assert!(held.is_some() && !share(&open(), SHORT).unwrap());
}

#[test]
fn a_file_that_was_replaced_or_removed_is_not_that_of_the_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    let file = File::create(&path).unwrap();
    let named = || std::fs::symlink_metadata(&path);
    assert!(is_still(&file, named()));
    std::fs::rename(&path, dir.path().join("aside")).unwrap();
    assert!(!is_still(&file, named()));
    File::create(&path).unwrap();
    assert!(!is_still(&file, named()));
}

/// A child that another thread has forked, and that has not executed its program yet, has the descriptor.
#[test]
fn a_copy_of_the_descriptor_does_not_keep_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let file = File::open(dir.path()).unwrap();
    let copy = file.try_clone().unwrap();
    drop(FileLock::of(file, dir.path(), Duration::ZERO, PURPOSE).unwrap());
    let again = File::open(dir.path()).unwrap();
    FileLock::of(again, dir.path(), Duration::ZERO, PURPOSE).unwrap();
    drop(copy);
}

#[test]
fn one_thread_at_a_time_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    let (send, receive) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (send, path) = (send.clone(), &path);
            scope.spawn(move || {
                for _ in 0..10 {
                    let held = FileLock::take(path, LONG, PURPOSE).unwrap();
                    send.send(true).unwrap();
                    send.send(false).unwrap();
                    drop(held);
                }
            });
        }
    });
    drop(send);
    let events: Vec<_> = receive.iter().collect();
    let alternate = events
        .iter()
        .enumerate()
        .all(|(at, taken)| *taken == (at % 2 == 0));
    assert!(alternate && events.len() == 80, "{events:?}");
}
