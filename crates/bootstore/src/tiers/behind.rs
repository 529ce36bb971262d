//! Yielding to other readers of a disk: before each slot of a move, the mover checks whether any
//! other process reads the disk that it reads from.
//!
//! The kernel counts the reads of each disk, by all processes. While the mover sleeps, none of
//! them is its own.

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
/// How long is moved while somebody reads, before others have the disk to themselves again. What is
/// read in that time is more on a fast disk; on one that holds reads back it is one burst.
const SLOT: Duration = Duration::from_millis(20);
/// How many times the time that the last slot took is left to others, while they read: so a move takes
/// some 3 % of the disk's time from them.
const SHARE: u32 = 31;
/// Longest pause of a slot, so that a move finishes in spite of other readers.
const PATIENCE: Duration = Duration::from_secs(10);

/// A disk whose reads are counted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Disk {
    /// Its directory in sysfs.
    dir: PathBuf,
}

/// What is said of a disk at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    /// Reads that it has finished, ever.
    done: u64,
    /// Reads in progress.
    running: u64,
}

impl Disk {
    /// Returns the disk below a path. `None` if it is on none, or on several, as on some file
    /// systems.
    pub(super) fn below(path: &Path) -> Option<Self> {
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

/// A mover with lower priority than all other readers.
#[derive(Debug)]
pub(super) struct Behind {
    disk: Option<Disk>,
    /// When the last wait ended, and how long may be moved from then on.
    slot: Option<(Instant, Duration)>,
    gave_way: u64,
}

impl Behind {
    /// Returns one that does not look yet.
    pub(super) const fn new() -> Self {
        Self {
            disk: None,
            slot: None,
            gave_way: 0,
        }
    }

    /// Sets the disk that is read from now on; without one, the mover does not wait.
    pub(super) fn watch(&mut self, disk: Option<Disk>) {
        if self.disk != disk {
            self.disk = disk;
            self.slot = None;
        }
    }

    /// Returns how often the mover waited for other readers.
    pub(super) const fn gave_way(&self) -> u64 {
        self.gave_way
    }

    /// Waits until more may be moved: not at all within a slot; else until there are no other readers, or
    /// they have had their share. `go_on` ends the wait by returning `false`.
    pub(super) fn turn(&mut self, go_on: &dyn Fn() -> bool) {
        let Some(disk) = &self.disk else {
            return;
        };
        let took = self
            .slot
            .map_or(Duration::ZERO, |(begin, _)| begin.elapsed());
        if self.slot.is_some_and(|(_, may)| took < may) {
            return;
        }
        let waited = wait(&|| disk.look(), left_to_others(took), go_on);
        self.gave_way += u64::from(waited.busy);
        let may = if waited.quiet { FREE } else { SLOT };
        self.slot = Some((Instant::now(), may));
    }
}

/// Returns how long others have a disk to themselves, while they read, after a slot that took so long.
fn left_to_others(took: Duration) -> Duration {
    took.saturating_mul(SHARE).min(PATIENCE)
}

/// How a wait for quiet ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waited {
    /// There were no other reads at the end.
    quiet: bool,
    /// There were other reads at some time.
    busy: bool,
}

/// Waits until no program reads; if one keeps reading, no longer than `share` and a look.
fn wait(look: &dyn Fn() -> Option<Look>, share: Duration, go_on: &dyn Fn() -> bool) -> Waited {
    let begin = Instant::now();
    let (mut before, mut still, mut busy) = (look(), 0, false);
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
        let enough = busy && begin.elapsed() >= share;
        if quiet || enough || !go_on() {
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
        let expected = |quiet, busy| Waited { quiet, busy };
        assert_eq!(wait(&quiet, long, &always), expected(true, false));
        assert_eq!(looks.get(), 1 + STILL);
        // Somebody reads until it was looked ten times.
        looks.set(0);
        let reads = || {
            looks.set(looks.get() + 1);
            let running = 0;
            let done = u64::from(looks.get().min(10));
            Some(Look { done, running })
        };
        assert_eq!(wait(&reads, long, &always), expected(true, true));
        assert_eq!(looks.get(), 10 + STILL, "as many as the one before");
        let gone = || None;
        assert_eq!(wait(&gone, long, &always), expected(true, false));
    }

    #[test]
    fn a_disk_that_is_never_quiet_is_waited_for_no_longer_than_its_share_or_an_end() {
        let looks = Cell::new(0);
        let one_read = || {
            looks.set(looks.get() + 1);
            Some(Look {
                done: 7,
                running: 1,
            })
        };
        let waited = wait(&one_read, LOOK * 5, &|| true);
        assert!(!waited.quiet);
        assert!((2..=10).contains(&looks.get()), "{looks:?}");
        let waited = wait(&one_read, Duration::from_hours(1), &|| false);
        assert_eq!((waited.quiet, waited.busy), (false, true));
    }

    #[test]
    fn a_move_takes_a_thirtieth_of_a_busy_disk_and_is_never_starved() {
        let left = left_to_others(SLOT);
        assert!((SLOT * 30..=SLOT * 33).contains(&left), "{left:?}");
        // One read may hang for long; what follows does not wait for minutes.
        assert_eq!(left_to_others(Duration::from_mins(1)), PATIENCE);
        assert_eq!(left_to_others(Duration::MAX), PATIENCE);
        assert_eq!(left_to_others(Duration::ZERO), Duration::ZERO);
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
        behind.turn(&|| panic!("nothing is watched yet"));
        behind.watch(Some(disk));
        // Others may read all the time: it ends none the less.
        behind.turn(&|| true);
    }
}
