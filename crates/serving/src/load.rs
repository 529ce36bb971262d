//! How hard the machine is pressed, and what is left undone for that.
//!
//! The NIC has work that is more important than ours. The kernel says how much of the time somebody
//! had to wait for a processor, for memory or for a disk (PSI), and how much of the memory that we
//! may have is used. When that is much, first nothing is done that nobody waits for; when it is too
//! much, the mirror fetches nothing more either, and clients go to the registry. What is here is
//! always served: that costs least, and less than a refusal costs those who would go elsewhere.
//!
//! ```text
//! Sources (cgroup's own files, or /proc/pressure) ─► Reading ─► Judge ─► Load ◄─ mirror, service
//! ```

mod sources;
mod watch;

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use watch::LoadWatch;

/// How long a level stays after what caused it has gone: a level that comes and goes with every
/// reading would help nobody.
const HOLD: Duration = Duration::from_secs(5);

/// What is left undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    #[default]
    Normal,
    /// What nobody waits for: prefetching, and bringing images ahead.
    Careful,
    /// Also whatever would have to be fetched from a registry.
    Shedding,
}

impl Level {
    const ALL: [Self; 3] = [Self::Normal, Self::Careful, Self::Shedding];

    /// Returns what it is called in answers and on the log.
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
    /// From here on with care.
    pub careful: u32,
    /// From here on load is shed.
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

/// How much is too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Time in which somebody waited for a processor.
    pub cpu: Threshold,
    /// Time in which somebody waited for memory.
    pub memory: Threshold,
    /// Time in which everybody waited for a disk. That some wait is what a cache on a disk does.
    pub io: Threshold,
    /// The memory that we may have which is used, but for what the kernel can take back at once.
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

/// What was measured, in percent; `None` what nobody says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reading {
    cpu: Option<u32>,
    memory: Option<u32>,
    io: Option<u32>,
    memory_used: Option<u32>,
}

impl Reading {
    /// Returns how bad it is, and what is worst.
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

/// Raises a level at once, and lowers it when nothing has asked for it for a while.
#[derive(Debug, Default)]
struct Judge {
    level: Level,
    /// When something last asked for the level.
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

/// The level, for all who do work. It is [`Level::Normal`] until a [`LoadWatch`] says otherwise.
#[derive(Debug, Default)]
pub struct Load {
    level: AtomicU8,
    shed: AtomicU64,
    put_off: AtomicU64,
    said: Mutex<Said>,
}

#[derive(Clone, Debug, Default)]
struct Said {
    watched: Vec<&'static str>,
    reason: Option<String>,
}

/// What is known about the load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// What is left undone now.
    pub level: Level,
    /// Why; `None` at [`Level::Normal`].
    pub reason: Option<String>,
    /// What is measured: of `cpu`, `memory`, `io` and `memory_used`. Nothing if nobody watches, or
    /// the system does not say.
    pub watched: Vec<&'static str>,
    /// Requests that were refused because they needed something to be fetched.
    pub shed: u64,
    /// Work nobody waited for that was not done.
    pub put_off: u64,
}

impl Load {
    /// Returns what is to be left undone.
    #[must_use]
    pub fn level(&self) -> Level {
        let level = usize::from(self.level.load(Relaxed));
        Level::ALL.get(level).copied().unwrap_or_default()
    }

    /// Returns what is known.
    #[must_use]
    pub fn report(&self) -> LoadReport {
        let said = self.said.lock().clone();
        LoadReport {
            level: self.level(),
            reason: said.reason,
            watched: said.watched,
            shed: self.shed.load(Relaxed),
            put_off: self.put_off.load(Relaxed),
        }
    }

    /// Returns whether something that somebody waits for may be fetched; counts it if not.
    pub fn may_fetch(&self) -> bool {
        let may = self.level() < Level::Shedding;
        if !may {
            self.shed.fetch_add(1, Relaxed);
        }
        may
    }

    /// Returns whether something may be done that nobody waits for; counts it if not.
    pub fn may_prepare(&self) -> bool {
        let may = self.level() < Level::Careful;
        if !may {
            self.put_off.fetch_add(1, Relaxed);
        }
        may
    }

    /// Says from now on what is to be left undone, and why.
    pub fn set(&self, level: Level, reason: Option<String>) {
        self.said.lock().reason = reason;
        self.level.store(level as u8, Relaxed);
    }

    fn set_watched(&self, watched: Vec<&'static str>) {
        self.said.lock().watched = watched;
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
