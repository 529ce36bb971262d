//! A source that hangs keeps nobody waiting beyond the deadline, and is asked again afterwards.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use blocks::{BackingFile as _, BlockSource, FileId, FileKey, Seek, SourceError, SourceErrorKind};
use blocks::{Sparse as _, Version, prompt};
use localfs::{DirSource, Patience, Prompt, SourceRoot, TimedSource, Timekeeping, scan};

/// Longer than any test may take.
const NEVER: Duration = Duration::from_secs(600);
/// A deadline that a read from a closed source is sure to miss, however slow the machine is.
const SOON: Duration = Duration::from_millis(40);

/// A file of sevens behind a gate: as long as it is closed, no read returns.
#[derive(Default)]
struct Gated {
    open: Mutex<bool>,
    changed: Condvar,
    inside: AtomicUsize,
    most_inside: AtomicUsize,
    by: Mutex<Vec<ThreadId>>,
    prompt: bool,
}

impl Gated {
    fn set(&self, open: bool) {
        *self.open.lock().unwrap() = open;
        self.changed.notify_all();
    }

    fn fill(&self, buf: &mut [u8]) -> usize {
        self.by.lock().unwrap().push(thread::current().id());
        let len = buf.len().min(10);
        buf[..len].fill(7);
        len
    }
}

impl BlockSource for Gated {
    fn read_at(&self, _: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        assert_ne!(offset, u64::MAX, "this panic is part of the test");
        let inside = self.inside.fetch_add(1, SeqCst) + 1;
        self.most_inside.fetch_max(inside, SeqCst);
        let mut open = self.open.lock().unwrap();
        while !*open {
            open = self.changed.wait(open).unwrap();
        }
        drop(open);
        self.inside.fetch_sub(1, SeqCst);
        Ok(self.fill(buf))
    }
}

impl Prompt for Gated {
    fn read_now(&self, _: &FileKey, _: u64, buf: &mut [u8]) -> Option<Result<usize, SourceError>> {
        self.prompt.then(|| Ok(self.fill(buf)))
    }
}

fn patience(deadline: Duration, helpers: usize) -> Patience {
    Patience {
        deadline,
        helpers: NonZeroUsize::new(helpers).unwrap(),
        ..Patience::default()
    }
}

fn closed(deadline: Duration, helpers: usize) -> TimedSource<Gated> {
    TimedSource::new(Arc::default(), patience(deadline, helpers))
}

fn read(source: &impl BlockSource) -> Result<Vec<u8>, SourceErrorKind> {
    let mut buf = vec![0xEE; 20];
    let result = source.read_at(&key(), 0, &mut buf);
    let read = result.map_err(|error| error.kind()).inspect_err(|_| {
        assert!(buf.iter().all(|byte| *byte == 0xEE));
    })?;
    buf.truncate(read);
    Ok(buf)
}

fn key() -> FileKey {
    FileKey {
        file: FileId(1),
        version: Version::default(),
    }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "waiting for {what}"
        );
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_needs_no_waiting_takes_no_other_thread() {
    let gated = Arc::new(Gated {
        prompt: true,
        ..Gated::default()
    });
    let timed = TimedSource::new(Arc::clone(&gated), Patience::default());
    assert_eq!(read(&timed).unwrap(), [7; 10]);
    assert_eq!(*gated.by.lock().unwrap(), [thread::current().id()]);
    assert_eq!(timed.timekeeping().helpers, 0);
}

#[test]
fn what_may_have_to_wait_is_read_by_a_helper() {
    let timed = closed(NEVER, 4);
    timed.source().set(true);
    for _ in 0..20 {
        assert_eq!(read(&timed).unwrap(), [7; 10]);
    }
    let by = timed.source().by.lock().unwrap();
    assert!(!by.contains(&thread::current().id()));
    assert_eq!(timed.timekeeping().late, 0);
}

#[test]
fn a_read_that_hangs_is_given_up_and_the_source_is_asked_again_when_it_is_back() {
    let timed = closed(SOON, 1);
    assert_eq!(read(&timed), Err(SourceErrorKind::TimedOut));
    let times = timed.timekeeping();
    assert_eq!((times.late, times.hung, times.helpers), (1, 1, 1));
    // All helpers hang: nobody asks the source, and nobody waits longer than before.
    assert_eq!(read(&timed), Err(SourceErrorKind::TimedOut));
    let times = timed.timekeeping();
    assert_eq!((times.late, times.hung, times.helpers), (2, 1, 1));
    assert_eq!(timed.source().most_inside.load(SeqCst), 1);

    timed.source().set(true);
    until("the helper to come back", || timed.timekeeping().hung == 0);
    // What was given up is not read any more; a slow machine may be late again.
    until("an answer", || read(&timed) == Ok(vec![7; 10]));
}

#[test]
fn demand_beyond_the_helpers_waits_for_them() {
    let timed = closed(NEVER, 2);
    thread::scope(|scope| {
        let reads: Vec<_> = (0..8).map(|_| scope.spawn(|| read(&timed))).collect();
        until("two reads to hang", || {
            timed.source().inside.load(SeqCst) == 2
        });
        timed.source().set(true);
        for read in reads {
            assert_eq!(read.join().unwrap().unwrap(), [7; 10]);
        }
    });
    assert_eq!(timed.source().most_inside.load(SeqCst), 2);
    let times = timed.timekeeping();
    assert_eq!((times.late, times.hung, times.helpers), (0, 0, 2));
}

#[test]
fn many_readers_of_a_dead_source_hang_no_more_threads_than_agreed() {
    let timed = closed(SOON, 3);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..4 {
                    assert_eq!(read(&timed), Err(SourceErrorKind::TimedOut));
                }
            });
        }
    });
    let times = timed.timekeeping();
    assert_eq!((times.late, times.hung, times.helpers), (64, 3, 3));
    timed.source().set(true);
    until("the helpers to come back", || timed.timekeeping().hung == 0);
    // Of the others, nobody was left in the queue.
    assert_eq!(timed.source().by.lock().unwrap().len(), 3);
}

#[test]
fn helpers_without_work_end() {
    let gated = Arc::<Gated>::default();
    gated.set(true);
    let idle = Duration::from_millis(1);
    let timed = TimedSource::new(
        gated,
        Patience {
            idle,
            ..patience(NEVER, 4)
        },
    );
    for _ in 0..3 {
        assert_eq!(read(&timed).unwrap(), [7; 10]);
        until("the helper to end", || timed.timekeeping().helpers == 0);
    }
}

#[test]
fn a_panic_fails_one_read() {
    let timed = closed(NEVER, 1);
    timed.source().set(true);
    let error = timed.read_at(&key(), u64::MAX, &mut [0]).unwrap_err();
    assert_eq!(error.kind(), SourceErrorKind::Io);
    assert_eq!(read(&timed).unwrap(), [7; 10]);
    assert_eq!(timed.timekeeping().helpers, 1);
}

#[test]
fn nobody_waits_for_a_helper_that_hangs_when_the_source_is_dropped() {
    let timed = closed(SOON, 1);
    assert_eq!(read(&timed), Err(SourceErrorKind::TimedOut));
    let gated = Arc::clone(timed.source());
    drop(timed);
    assert_eq!(gated.inside.load(SeqCst), 1);
    gated.set(true);
    until("the helper to let go", || Arc::strong_count(&gated) == 1);
}

/// Hands reads over, and returns what became of them: how many were answered, and how many were late.
fn hand_over(timed: &Arc<TimedSource<Gated>>, count: usize) -> Arc<[AtomicUsize; 2]> {
    let outcome = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    for _ in 0..count {
        let (source, answered, late) = (Arc::clone(timed), outcome.clone(), outcome.clone());
        timed.waiter().wait_for(
            Box::new(move || {
                if read(&source) == Ok(vec![7; 10]) {
                    answered[0].fetch_add(1, SeqCst);
                }
            }),
            Box::new(move |error| {
                assert_eq!(error.kind(), SourceErrorKind::TimedOut);
                late[1].fetch_add(1, SeqCst);
            }),
        );
    }
    outcome
}

#[test]
fn who_must_not_wait_is_told_and_whoever_waits_in_his_place_is_a_helper() {
    let timed = Arc::new(closed(NEVER, 2));
    for _ in 0..100 {
        let now = prompt::now(|| read(&*timed));
        assert_eq!(now, Err(SourceErrorKind::WouldWait));
    }
    let now = prompt::now(|| timed.within("asking", |_| ())).unwrap_err();
    assert_eq!(now.kind(), SourceErrorKind::WouldWait);
    assert_eq!(timed.timekeeping(), Timekeeping::default());

    let outcome = hand_over(&timed, 50);
    until("two of them to hang", || {
        timed.source().inside.load(SeqCst) == 2
    });
    // What takes no waiting is done meanwhile, by whoever wants it.
    assert_eq!(outcome[0].load(SeqCst), 0);
    timed.source().set(true);
    until("all to be answered", || outcome[0].load(SeqCst) == 50);
    assert_eq!(outcome[1].load(SeqCst), 0);
    assert_eq!(timed.source().most_inside.load(SeqCst), 2);
    let by = timed.source().by.lock().unwrap();
    assert!(!by.contains(&thread::current().id()));
}

#[test]
fn what_was_handed_over_and_hangs_is_late_once_however_many_there_are() {
    for count in [2, 8, 64] {
        let timed = Arc::new(closed(SOON, 3));
        let outcome = hand_over(&timed, count);
        until("all to be late", || outcome[1].load(SeqCst) == count);
        let times = timed.timekeeping();
        let hung = count.min(3);
        assert_eq!(
            (times.late, times.hung, times.helpers),
            (count as u64, hung, hung)
        );
        assert_eq!(timed.source().inside.load(SeqCst), hung);
        timed.source().set(true);
        until("the helpers to come back", || timed.timekeeping().hung == 0);
        // Of the others none was begun, and what is handed over now is answered.
        let more = hand_over(&timed, 1);
        until("an answer", || {
            more[0].load(SeqCst) + more[1].load(SeqCst) == 1
        });
        assert_eq!(outcome[1].load(SeqCst), count);
        assert!(outcome[0].load(SeqCst) <= hung);
    }
}

#[test]
fn more_than_can_wait_is_refused_at_once() {
    let timed = Arc::new(closed(NEVER, 1));
    let outcome = hand_over(&timed, 8192);
    assert_eq!(outcome[1].load(SeqCst), 0);
    assert_eq!(hand_over(&timed, 1)[1].load(SeqCst), 1);
    timed.source().set(true);
    until("all to be answered", || outcome[0].load(SeqCst) == 8192);
    assert_eq!(timed.timekeeping().late, 1);
}

#[test]
fn any_question_has_the_deadline() {
    let timed = closed(SOON, 1);
    let asked = timed.within("asking", |gated| gated.read_at(&key(), 0, &mut [0]).is_ok());
    assert_eq!(asked.unwrap_err().kind(), SourceErrorKind::TimedOut);
    timed.source().set(true);
    until("the helper to come back", || timed.timekeeping().hung == 0);
}

#[test]
fn a_directory_is_read_the_same_with_and_without_a_deadline() {
    let dir = tempfile::tempdir_in(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap();
    let bytes: Vec<u8> = (0..50_000_u32).map(|i| (i % 251) as u8).collect();
    fs::write(dir.path().join("f"), &bytes).unwrap();
    let root = Arc::new(SourceRoot::open(dir.path()).unwrap());
    let tree = Arc::new(scan(&root, |_| ()).unwrap().tree);
    let key = tree.key(tree.resolve(b"f").unwrap()).unwrap();
    let plain = Arc::new(DirSource::new(root, tree));
    let timed = TimedSource::new(Arc::clone(&plain), patience(NEVER, 2));
    // The first read opens the file, which may wait.
    assert_eq!(
        plain.read_now(&key, 0, &mut [0; 8]).map(Result::unwrap),
        None
    );
    for offset in [0, 1, 4096, 49_999, 50_000, 60_000, u64::MAX] {
        for len in [0, 1, 4096, 70_000] {
            let mut bufs = [vec![0xEE; len], vec![0xEE; len]];
            let want = plain.read_at(&key, offset, &mut bufs[0]).unwrap();
            let got = timed.read_at(&key, offset, &mut bufs[1]).unwrap();
            assert_eq!(got, want, "{offset} {len}");
            assert_eq!(bufs[0][..want], bufs[1][..got], "{offset} {len}");
        }
    }
    assert_eq!(timed.seek(&key, 10, Seek::Data).unwrap(), Some(10));
    assert!(timed.open_backing(&key).is_ok());

    fs::write(dir.path().join("f"), b"changed").unwrap();
    for source in [&*plain as &dyn BlockSource, &timed] {
        let error = source.read_at(&key, 0, &mut [0; 8]).unwrap_err();
        assert!(matches!(error.kind(), SourceErrorKind::Stale { .. }));
    }
    assert!(timed.open_backing(&key).is_err());
    assert!(timed.seek(&key, 0, Seek::Data).is_err());
}
