//! Scans of a directory that never rests.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use localfs::{Reason, SourceRoot, scan};

/// Creates, fills, moves and removes directories and files as fast as it can.
fn churn(dir: &Path, round: usize) {
    let name = |i: usize| dir.join(format!("churn{}", i % 5));
    let (one, other) = (name(round), name(round * 3 + 1));
    let steps: [fn(&Path, &Path) -> std::io::Result<()>; 6] = [
        |one, _| fs::create_dir_all(one.join("a/b/c")),
        |one, _| fs::write(one.join("a/file"), b"bytes"),
        |one, other| fs::rename(one.join("a/b"), other.join("b")),
        |one, other| fs::hard_link(one.join("a/file"), other.join("link")),
        |one, other| fs::rename(one, other),
        |_, other| fs::remove_dir_all(other),
    ];
    for step in steps {
        // What is not possible right now is skipped.
        step(&one, &other).unwrap_or_default();
    }
}

/// Ends the churn when the test ends, in whatever way.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn what_rests_is_found_and_what_does_not_is_survived() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for i in 0..30 {
        let sub = dir.path().join(format!("rest{i}/x/y"));
        fs::create_dir_all(&sub).unwrap();
        fs::write(sub.join("file"), b"still").unwrap();
    }
    let stop = AtomicBool::new(false);
    let mut changed = 0;
    thread::scope(|scope| {
        let _at_the_end = Stop(&stop);
        scope.spawn(|| {
            let mut round = 0;
            while !stop.load(Ordering::SeqCst) {
                churn(dir.path(), round);
                round += 1;
            }
        });
        // A busy machine may not let the two run side by side for a while.
        let started = Instant::now();
        let mut scans = 0;
        while scans < 100 || changed == 0 {
            scans += 1;
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "{scans} scans of such a directory and nothing to say"
            );
            let root = SourceRoot::open(dir.path()).unwrap();
            let scanned = scan(&root, |_| ()).unwrap();
            for i in 0..30 {
                let path = format!("rest{i}/x/y/file");
                assert!(scanned.tree.resolve(path.as_bytes()).is_some(), "{path}");
            }
            for note in scanned.report.notes() {
                assert_eq!(note.reason, Reason::Changed, "{note:?}");
                changed += 1;
            }
        }
    });
}
