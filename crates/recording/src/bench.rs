//! How much faster a boot is for having been recorded: the same start again and again, with cold caches, with the
//! boot image in the page cache, and with everything in the page cache.
//!
//! The three [`Way`]s take turns, so that whatever else the machine does hits all of them alike. One start before
//! them is not counted: it brings the programs of the host that start something into memory.

mod cold;
mod disk_reads;
mod image;
mod tree;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Serialize;

pub use image::bench_image;
pub use tree::{TreeBench, bench_tree, recorded_from};

use crate::until::Until;
use disk_reads::DiskReads;
use host::interrupt::Interrupt;

/// How the caches are emptied before a cold start and before a prewarm, in words for people.
pub const CACHES: &str = "before each cold and each prewarmed start, the source is flushed (syncfs), the content of its \
files is dropped from the page cache (POSIX_FADV_DONTNEED), and then the names and inodes that nobody uses are \
(drop_caches: 2); programs of the host stay in memory, and so does what a running process has mapped";

/// From where a start is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Way {
    /// The disk, with empty caches.
    #[serde(rename = "native-cold")]
    Cold,
    /// The page cache, which a prewarm filled from the boot image.
    #[serde(rename = "yolofs")]
    Prewarmed,
    /// The page cache, which a start just before has filled.
    #[serde(rename = "native-warm")]
    Warm,
}

impl Way {
    /// All of them, in the order in which they are reported.
    pub const ALL: [Self; 3] = [Self::Cold, Self::Prewarmed, Self::Warm];

    /// Whether the start is served from a mount of ours.
    const fn is_ours(self) -> bool {
        matches!(self, Self::Prewarmed)
    }
}

/// One start that was timed.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// What was started.
    pub subject: String,
    /// From where it was served.
    pub mode: Way,
    /// In which round, from 1.
    pub round: u16,
    /// Milliseconds from the start to readiness.
    pub ready_ms: f64,
    /// Milliseconds of mounting and prewarming before the start.
    pub prepare_ms: f64,
    /// Read requests that reached the source's disk, by any program; nothing where no disk is counted.
    pub disk_reads: Option<u64>,
    /// Bytes of these requests.
    pub disk_bytes: Option<u64>,
    /// Reads of content that reached us.
    pub fuse_reads: u64,
    /// Bytes of these reads that the boot image does not have. Reads of what it has are of pages that the kernel
    /// dropped after the prewarm.
    pub missed_bytes: u64,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// What was started.
    pub subject: String,
    /// The name of its boot image, or the reference of the container image, in the store.
    pub recorded_as: String,
    /// What a start waited for.
    pub until: String,
    /// How the caches were emptied.
    pub caches: &'static str,
    /// Every start that was timed.
    pub samples: Vec<Sample>,
    /// What is to be known of the result.
    pub warnings: Vec<String>,
}

impl BenchReport {
    /// Returns the samples of a way.
    pub fn of(&self, way: Way) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| sample.mode == way)
    }

    /// Returns the middle of what `of` tells of the samples of a way; of two in the middle, their mean.
    #[must_use]
    pub fn median(&self, way: Way, of: impl Fn(&Sample) -> f64) -> Option<f64> {
        let mut numbers: Vec<f64> = self.of(way).map(of).collect();
        numbers.sort_by(f64::total_cmp);
        let middle = numbers.len() / 2;
        let upper = *numbers.get(middle)?;
        Some(match numbers.len() % 2 {
            0 => f64::midpoint(numbers[middle - 1], upper),
            _ => upper,
        })
    }
}

/// How the starts are made.
#[derive(Clone, Copy, Debug)]
pub struct BenchSettings {
    /// Starts of each way.
    pub runs: u16,
    /// How long one may take until it is ready.
    pub timeout: Duration,
}

/// What is reported while a bench runs.
#[derive(Clone, Copy, Debug)]
pub enum BenchEvent<'a> {
    /// The condition was not given: this one was chosen.
    Chosen {
        /// What is waited for.
        until: &'a Until,
        /// Why.
        because: &'a str,
    },
    /// The start that is not counted begins.
    WarmingUp,
    /// A start is over.
    Done {
        /// What was found.
        sample: &'a Sample,
        /// How many rounds there are.
        rounds: u16,
    },
}

/// One start, as its subject tells of it.
#[derive(Clone, Copy, Debug)]
struct Started {
    /// From the start to readiness.
    ready: Duration,
    /// Mounting and prewarming before it.
    prepared: Duration,
    /// What reached us meanwhile.
    asked: Asked,
    /// Read requests of the disk, and their bytes.
    disk: Option<(u64, u64)>,
}

/// What we were asked for content.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    reads: u64,
    missed_bytes: u64,
}

impl Asked {
    const fn since(self, before: Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            missed_bytes: self.missed_bytes - before.missed_bytes,
        }
    }
}

/// What is started.
trait Subject {
    /// Returns the directories or the file whose content is dropped, all on one disk.
    fn places(&self) -> Vec<PathBuf>;

    /// Starts it once, and ends it when it is ready.
    fn start(
        &mut self,
        way: Way,
        disk: &DiskReads,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Started>;
}

/// Starts something in turns.
fn take_turns(
    name: &str,
    subject: &mut dyn Subject,
    settings: BenchSettings,
    interrupt: &Interrupt,
    tell: &dyn Fn(BenchEvent<'_>),
) -> anyhow::Result<Vec<Sample>> {
    let places = subject.places();
    let disk = DiskReads::of(places.first().context("the source has no files")?)?;
    tell(BenchEvent::WarmingUp);
    subject
        .start(Way::Warm, &disk, interrupt)
        .context("starting it once, before what is counted")?;
    let mut samples = Vec::new();
    for round in 1..=settings.runs {
        for way in turn(round) {
            interrupt.check()?;
            if way != Way::Warm {
                cold::forget(&places, interrupt)?;
            }
            let started = subject.start(way, &disk, interrupt);
            let started = started.with_context(|| format!("round {round} of {}", settings.runs))?;
            let sample = Sample {
                subject: name.to_owned(),
                mode: way,
                round,
                ready_ms: started.ready.as_secs_f64() * 1e3,
                prepare_ms: started.prepared.as_secs_f64() * 1e3,
                disk_reads: started.disk.map(|(requests, _)| requests),
                disk_bytes: started.disk.map(|(_, bytes)| bytes),
                fuse_reads: started.asked.reads,
                missed_bytes: started.asked.missed_bytes,
            };
            let rounds = settings.runs;
            tell(BenchEvent::Done {
                sample: &sample,
                rounds,
            });
            samples.push(sample);
        }
    }
    Ok(samples)
}

/// Returns the order of a round: a warm start comes right after the cold one that fills the page cache for it.
const fn turn(round: u16) -> [Way; 3] {
    match round % 2 {
        1 => [Way::Cold, Way::Warm, Way::Prewarmed],
        _ => [Way::Prewarmed, Way::Cold, Way::Warm],
    }
}

/// Refuses conditions that a start from the disk cannot be seen to reach, or that no way reaches faster.
fn check_until(until: &Until) -> anyhow::Result<()> {
    match until {
        Until::Quiet(_) => bail!(
            "{until} is seen by a recorder only, and a cold start has none: wait for something else (`until`), \
             such as a line, a port or a health check"
        ),
        Until::After(_) => bail!(
            "{until} takes the same time in each way: wait for something that the start brings about (`until`)"
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_start_follows_a_cold_one() {
        for round in 1..=4 {
            let turn = turn(round);
            let at = |way| turn.iter().position(|one| *one == way).unwrap();
            assert_eq!(at(Way::Warm), at(Way::Cold) + 1);
            assert!(turn.contains(&Way::Prewarmed));
        }
        assert_ne!(turn(1), turn(2));
    }

    #[test]
    fn what_no_start_shows_is_refused() {
        for (until, fine) in [
            ("exit", true),
            ("tcp:80", true),
            ("quiet:1", false),
            ("after:1", false),
        ] {
            assert_eq!(
                check_until(&until.parse().unwrap()).is_ok(),
                fine,
                "{until}"
            );
        }
    }
}
