//! Letting those who read a disk go first: before each piece of a move it is looked whether anybody
//! but the mover reads the disk that the piece comes from.
//!
//! The kernel counts the reads of each disk, whoever makes them: a worker of ours, or somebody who
//! has never heard of us. While the mover sleeps, none of them is its own.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::stat::{major, minor};

/// How often is looked.
const LOOK: Duration = Duration::from_millis(50);
/// Looks in a row that must find nobody for a disk to be quiet: half a second. A limit of a control group
/// lets reads through in bursts, 300 ms apart on a disk with 150 a second (Linux 6.18), and where it
/// holds them nobody sees them.
const STILL: u32 = 10;
/// How long is moved after that before the next look.
const FREE: Duration = Duration::from_secs(1);
/// What may be moved while somebody reads, before others have their share again.
const PIECE: u64 = 256 << 10;
/// How many reads of others there have to be for each that the disk did during the last piece, while
/// others read: so a move takes some 3 % of the disk's reads from them. Requests are counted, and not
/// time, because a disk that is limited to so many a second holds back those of everybody.
const OTHERS: u64 = 31;
/// What one piece waits at most: a move that gives way ends all the same.
const PATIENCE: Duration = Duration::from_secs(10);

/// A disk whose reads are counted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Disk {
    /// Its directory in sysfs.
    dir: PathBuf,
}

/// What is said of a disk at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    /// Reads that it has finished, ever.
    done: u64,
    /// Reads that run.
    running: u64,
}

impl Disk {
    /// Returns the disk that a path lies on. `None` if it lies on none, or on several, as on some
    /// file systems.
    pub(crate) fn below(path: &Path) -> Option<Self> {
        let device = fs::metadata(path).ok()?.dev();
        let number = format!("{}:{}", major(device), minor(device));
        let disk = Self {
            dir: Path::new("/sys/dev/block").join(number),
        };
        disk.look().map(|_| disk)
    }

    fn look(&self) -> Option<Look> {
        let first = |file| {
            let text = fs::read_to_string(self.dir.join(file)).ok()?;
            text.split_whitespace().next()?.parse().ok()
        };
        let (done, running) = (first("stat")?, first("inflight")?);
        Some(Look { done, running })
    }
}

impl Look {
    /// Returns how many reads the disk has finished since this one.
    fn until(self, later: Option<Self>) -> u64 {
        later.map_or(0, |later| later.done.saturating_sub(self.done))
    }
}

/// Whoever moves something, behind all others.
#[derive(Debug)]
pub(crate) struct Behind {
    disk: Option<Disk>,
    /// Bytes that may be moved before the next look.
    credit: u64,
    /// Until when all may be moved, because the disk was quiet.
    free: Option<Instant>,
    /// What the disk had done when the last look ended: what it did since then was for what was moved,
    /// or had to wait for it.
    before: Option<Look>,
    gave_way: u64,
}

impl Behind {
    /// Returns one that does not look yet.
    pub(crate) const fn new() -> Self {
        Self {
            disk: None,
            credit: 0,
            free: None,
            before: None,
            gave_way: 0,
        }
    }

    /// Says which disk is read from now on; without, nobody is waited for.
    pub(crate) fn watch(&mut self, disk: Option<Disk>) {
        if self.disk != disk {
            self.disk = disk;
            self.credit = 0;
            self.free = None;
            self.before = None;
        }
    }

    /// Returns how many pieces waited for somebody's reads.
    pub(crate) const fn gave_way(&self) -> u64 {
        self.gave_way
    }

    /// Waits until `bytes` may be moved: at once, if nobody read when it was looked last; else until
    /// nobody does, or others have had their share. `go_on` ends the wait by `false`.
    pub(crate) fn turn(&mut self, bytes: u64, go_on: &dyn Fn() -> bool) {
        let Some(disk) = &self.disk else {
            return;
        };
        if self.free.is_some_and(|until| Instant::now() < until) {
            return;
        }
        if self.credit >= bytes {
            self.credit -= bytes;
            return;
        }
        let look = || disk.look();
        let cost = self.before.map_or(0, |before| before.until(look()));
        let waited = wait(&look, cost.saturating_mul(OTHERS), PATIENCE, go_on);
        self.gave_way += u64::from(waited.busy);
        self.free = waited.quiet.then(|| Instant::now() + FREE);
        let piece = if waited.quiet { 0 } else { PIECE };
        self.credit = piece.saturating_sub(bytes);
        self.before = look();
    }
}

/// How a wait for quiet ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waited {
    /// Nobody read in the end.
    quiet: bool,
    /// Somebody read at some time.
    busy: bool,
}

/// Waits until nobody reads, or others have done `owed` reads, for no longer than `patience` and a
/// look.
fn wait(
    look: &dyn Fn() -> Option<Look>,
    owed: u64,
    patience: Duration,
    go_on: &dyn Fn() -> bool,
) -> Waited {
    let begin = Instant::now();
    let first = look();
    let (mut before, mut still, mut busy) = (first, 0, false);
    loop {
        std::thread::sleep(LOOK);
        let after = look();
        // A disk that is gone is not waited for.
        let gone = after.is_none();
        if before == after && after.is_none_or(|after| after.running == 0) {
            still += 1;
        } else {
            (still, busy) = (0, true);
        }
        let quiet = gone || still >= STILL;
        let others = first.map_or(0, |first| first.until(after));
        let enough = busy && others >= owed;
        if quiet || enough || !go_on() || begin.elapsed() >= patience {
            return Waited { quiet, busy };
        }
        before = after;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_quiet_disk_is_not_waited_for_and_a_busy_one_until_it_is_quiet() {
        let looks = Cell::new(0);
        let quiet = || {
            looks.set(looks.get() + 1);
            Some(Look {
                done: 7,
                running: 0,
            })
        };
        let always = || true;
        let long = Duration::from_hours(1);
        let (never, expected) = (u64::MAX, |quiet, busy| Waited { quiet, busy });
        assert_eq!(wait(&quiet, never, long, &always), expected(true, false));
        assert_eq!(looks.get(), 1 + STILL);
        // Somebody reads until it was looked ten times.
        looks.set(0);
        let reads = || {
            looks.set(looks.get() + 1);
            let running = 0;
            let done = u64::from(looks.get().min(10));
            Some(Look { done, running })
        };
        assert_eq!(wait(&reads, never, long, &always), expected(true, true));
        assert_eq!(looks.get(), 10 + STILL, "as many as the one before");
        let gone = || None;
        assert_eq!(wait(&gone, never, long, &always), expected(true, false));
    }

    #[test]
    fn others_have_their_reads_and_then_it_goes_on() {
        let looks = Cell::new(0);
        let busy = || {
            looks.set(looks.get() + 1);
            let (done, running) = (100 * looks.get(), 1);
            Some(Look { done, running })
        };
        let waited = wait(&busy, 250, Duration::from_hours(1), &|| true);
        assert_eq!((waited.quiet, waited.busy), (false, true));
        assert_eq!(looks.get(), 4, "three times a hundred reads");
    }

    #[test]
    fn a_disk_that_is_never_quiet_is_waited_for_no_longer_than_patience_or_an_end() {
        let looks = Cell::new(0);
        let one_read = || {
            looks.set(looks.get() + 1);
            Some(Look {
                done: 7,
                running: 1,
            })
        };
        let waited = wait(&one_read, 1, LOOK * 5, &|| true);
        assert!(!waited.quiet);
        assert!((2..=10).contains(&looks.get()), "{looks:?}");
        let waited = wait(&one_read, 1, Duration::from_hours(1), &|| false);
        assert_eq!((waited.quiet, waited.busy), (false, true));
    }

    #[test]
    fn reads_of_a_disk_are_seen() {
        // Where temporary files lie on no disk there is none to be watched.
        let file = tempfile::NamedTempFile::new().unwrap();
        let Some(disk) = Disk::below(file.path()) else {
            assert!(Disk::below(Path::new("/proc")).is_none());
            return;
        };
        let before = disk.look().unwrap();
        assert!(disk.look().unwrap().done >= before.done);
        let mut behind = Behind::new();
        behind.turn(1 << 30, &|| panic!("nothing is watched yet"));
        behind.watch(Some(disk));
        // Others may read all the time: it ends none the less.
        behind.turn(1 << 20, &|| true);
    }
}
