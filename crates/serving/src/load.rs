//! The load of the machine, and what a server stops doing because of it.
//!
//! Other work of the machine has priority. The kernel reports for how much of the time tasks waited
//! for a processor, for memory or for a disk (PSI), and how much of the memory limit is used. Under
//! high load, background work is not started; under very high load, the mirror fetches
//! nothing from registries either, and clients go there themselves. Cached data is always served:
//! that costs less than a refusal costs the client.
//!
//! ```text
//! Sources (files of the control group, or /proc/pressure) ─► Reading ─► Judge ─► Load ◄─ mirror, service
//! ```

mod sources;
mod watch;

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use watch::LoadWatch;

/// How long a level is kept after its cause ended, so that it does not change with every
/// measurement.
const HOLD: Duration = Duration::from_secs(5);

/// Which work is not done because of the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// All work is done.
    #[default]
    Normal,
    /// Work that no client waits for is not done: prefetching, and prewarming of images.
    Careful,
    /// Nothing is fetched from registries either.
    Shedding,
}

impl Level {
    const ALL: [Self; 3] = [Self::Normal, Self::Careful, Self::Shedding];

    /// Returns its name in responses and in the log.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Careful => "careful",
            Self::Shedding => "shedding",
        }
    }
}

/// Two limits of one measure, in percent. One above 100 is never reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// From this value on the level is [`Level::Careful`].
    pub careful: u32,
    /// From this value on the level is [`Level::Shedding`].
    pub shedding: u32,
}

impl Threshold {
    fn judge(self, percent: u32) -> Level {
        if percent >= self.shedding {
            Level::Shedding
        } else if percent >= self.careful {
            Level::Careful
        } else {
            Level::Normal
        }
    }
}

/// The thresholds of all measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Time in which some task waited for a processor.
    pub cpu: Threshold,
    /// Time in which some task waited for memory.
    pub memory: Threshold,
    /// Time in which all tasks waited for a disk. A cache on a disk always has some that do.
    pub io: Threshold,
    /// The used part of the memory limit, without page cache that the kernel can reclaim at once.
    pub memory_used: Threshold,
}

impl Default for Thresholds {
    fn default() -> Self {
        let threshold = |careful, shedding| Threshold { careful, shedding };
        Self {
            cpu: threshold(20, 40),
            // Who waits for memory at all is near the end of it.
            memory: threshold(10, 20),
            io: threshold(40, 80),
            memory_used: threshold(85, 95),
        }
    }
}

/// Measurements in percent; `None` for those that the system does not provide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reading {
    cpu: Option<u32>,
    memory: Option<u32>,
    io: Option<u32>,
    memory_used: Option<u32>,
}

impl Reading {
    /// Returns the level, and the measurement that causes it.
    fn judge(&self, thresholds: &Thresholds) -> (Level, Option<String>) {
        let measures = [
            (self.cpu, thresholds.cpu, "waiting for a processor"),
            (self.memory, thresholds.memory, "waiting for memory"),
            (self.io, thresholds.io, "waiting for a disk"),
            (self.memory_used, thresholds.memory_used, "of memory in use"),
        ];
        let judged = measures.into_iter().filter_map(|(percent, at, what)| {
            let percent = percent?;
            Some((at.judge(percent), percent, what))
        });
        // The first of the worst: what is scarcest is named first.
        let worst = judged.reduce(|worst, next| if next.0 > worst.0 { next } else { worst });
        match worst {
            Some((level, percent, what)) if level > Level::Normal => {
                (level, Some(format!("{percent} % {what}")))
            }
            _ => (Level::Normal, None),
        }
    }
}

/// Raises the level at once, and lowers it when no measurement has called for it for a while.
#[derive(Debug, Default)]
struct Judge {
    level: Level,
    /// When a measurement last called for the level.
    asked: Option<Instant>,
}

impl Judge {
    fn next(&mut self, wanted: Level, now: Instant) -> Level {
        let held = self.asked.is_some_and(|asked| now < asked + HOLD);
        if wanted >= self.level || !held {
            self.level = wanted;
            self.asked = Some(now);
        }
        self.level
    }
}

/// The current level, shared by all servers of the process. It is [`Level::Normal`] until a
/// [`LoadWatch`] sets it.
#[derive(Debug, Default)]
pub struct Load {
    level: AtomicU8,
    shed: AtomicU64,
    put_off: AtomicU64,
    measured: Mutex<Measured>,
}

#[derive(Clone, Debug, Default)]
struct Measured {
    watched: Vec<&'static str>,
    reason: Option<String>,
}

/// The load, and the work that was not done because of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// The current level.
    pub level: Level,
    /// The cause; `None` at [`Level::Normal`].
    pub reason: Option<String>,
    /// Which of `cpu`, `memory`, `io` and `memory_used` are measured. Empty if there is no
    /// [`LoadWatch`], or the system provides none.
    pub watched: Vec<&'static str>,
    /// Requests that were refused because they needed a fetch from a registry.
    pub shed: u64,
    /// Background work that was not done.
    pub put_off: u64,
}

impl Load {
    /// Returns the current level.
    #[must_use]
    pub fn level(&self) -> Level {
        let level = usize::from(self.level.load(Relaxed));
        Level::ALL.get(level).copied().unwrap_or_default()
    }

    /// Returns the load, and the work that was not done because of it.
    #[must_use]
    pub fn report(&self) -> LoadReport {
        let measured = self.measured.lock().clone();
        LoadReport {
            level: self.level(),
            reason: measured.reason,
            watched: measured.watched,
            shed: self.shed.load(Relaxed),
            put_off: self.put_off.load(Relaxed),
        }
    }

    /// Returns whether a client's request may fetch from a registry; counts the request as shed if
    /// not.
    pub fn may_fetch(&self) -> bool {
        let may = self.level() < Level::Shedding;
        if !may {
            self.shed.fetch_add(1, Relaxed);
        }
        may
    }

    /// Returns whether background work may be done; counts it as put off if not.
    pub fn may_prepare(&self) -> bool {
        let may = self.level() < Level::Careful;
        if !may {
            self.put_off.fetch_add(1, Relaxed);
        }
        may
    }

    /// Sets the level, and its cause.
    pub fn set(&self, level: Level, reason: Option<String>) {
        self.measured.lock().reason = reason;
        self.level.store(level as u8, Relaxed);
    }

    fn set_watched(&self, watched: Vec<&'static str>) {
        self.measured.lock().watched = watched;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_measure_decides_and_is_named() {
        let thresholds = Thresholds::default();
        let calm = Reading {
            cpu: Some(19),
            memory: Some(9),
            io: None,
            memory_used: Some(84),
        };
        assert_eq!(calm.judge(&thresholds), (Level::Normal, None));
        let busy = Reading {
            cpu: Some(20),
            ..calm
        };
        let (level, reason) = busy.judge(&thresholds);
        assert_eq!(level, Level::Careful);
        assert_eq!(reason.unwrap(), "20 % waiting for a processor");
        let full = Reading {
            memory_used: Some(95),
            ..busy
        };
        let (level, reason) = full.judge(&thresholds);
        assert_eq!(level, Level::Shedding);
        assert_eq!(reason.unwrap(), "95 % of memory in use");
        assert_eq!(Reading::default().judge(&thresholds).0, Level::Normal);
    }

    #[test]
    fn a_level_rises_at_once_and_falls_after_a_while() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut judge = Judge::default();
        assert_eq!(judge.next(Level::Shedding, start), Level::Shedding);
        assert_eq!(judge.next(Level::Normal, after(1)), Level::Shedding);
        assert_eq!(judge.next(Level::Shedding, after(4)), Level::Shedding);
        assert_eq!(judge.next(Level::Normal, after(8)), Level::Shedding);
        assert_eq!(judge.next(Level::Careful, after(9)), Level::Careful);
        assert_eq!(judge.next(Level::Normal, after(10)), Level::Careful);
        assert_eq!(judge.next(Level::Normal, after(14)), Level::Normal);
    }

    #[test]
    fn what_is_left_undone_is_counted() {
        let load = Load::default();
        assert!(load.may_fetch() && load.may_prepare());
        load.set(Level::Careful, None);
        assert!(load.may_fetch() && !load.may_prepare());
        load.set(Level::Shedding, Some("a reason".to_owned()));
        assert!(!load.may_fetch() && !load.may_prepare());
        let report = load.report();
        assert_eq!((report.shed, report.put_off), (1, 2));
        assert_eq!(report.reason.as_deref(), Some("a reason"));
    }
}
