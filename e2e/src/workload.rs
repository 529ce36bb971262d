//! Reading what is mounted, in all the ways that programs do.

mod mapper;
mod reader;
mod runner;
mod walker;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::commands::PATIENCE;
use crate::guests::Visit;
use crate::tally::Outcome;
use crate::{Rng, Tally, Truth, processes};

use mapper::Mapper;
pub use mapper::map_until_told;

/// Who reads what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix {
    /// Threads that read ranges of files.
    pub(crate) readers: u32,
    /// Whether somebody walks through all directories.
    pub(crate) walks: bool,
    /// Whether a program in the tree is run again and again.
    pub(crate) runs: bool,
    /// Whether a process reads through mappings.
    pub(crate) maps: bool,
    /// Whether the guests of the run read, too.
    pub(crate) hosts: bool,
}

impl Mix {
    /// Everybody.
    pub(crate) const ALL: Self = Self {
        readers: 2,
        walks: true,
        runs: true,
        maps: true,
        hosts: true,
    };

    /// Those who survive an error: a mapping that cannot be read kills its process.
    pub(crate) const PLAIN: Self = Self {
        readers: 3,
        walks: true,
        runs: false,
        maps: false,
        hosts: false,
    };
}

/// What all who read share.
#[derive(Debug)]
struct Scene {
    root: PathBuf,
    /// The source below, when what it has in memory is to be forgotten, too.
    below: Option<PathBuf>,
    truth: Arc<Truth>,
    stop: AtomicBool,
}

/// Readers at work.
#[derive(Debug)]
pub struct Workload {
    scene: Arc<Scene>,
    mapper: Option<Mapper>,
    guests: Vec<Visit>,
    tallies: Receiver<Tally>,
    threads: usize,
}

impl Workload {
    /// Starts to read below `root`, where `truth` must be found.
    pub(crate) fn start(
        root: &Path,
        truth: &Arc<Truth>,
        pristine: &Path,
        mix: Mix,
        rng: &mut Rng,
    ) -> anyhow::Result<Self> {
        Self::start_over(root, None, truth, pristine, mix, rng)
    }

    /// The same, of a mount whose source is itself cached in memory at `below`: pages are dropped
    /// there, too.
    pub(crate) fn start_over(
        root: &Path,
        below: Option<&Path>,
        truth: &Arc<Truth>,
        pristine: &Path,
        mix: Mix,
        rng: &mut Rng,
    ) -> anyhow::Result<Self> {
        let scene = Arc::new(Scene {
            root: root.to_owned(),
            below: below.map(Path::to_owned),
            truth: Arc::clone(truth),
            stop: AtomicBool::new(false),
        });
        let mapper = match mix.maps {
            true => Some(Mapper::start(root, pristine, rng.number())?),
            false => None,
        };
        let (sender, tallies) = channel();
        let mut threads = 0;
        let mut begin = |work: fn(&Scene, &mut Rng) -> Outcome| {
            spawn(&scene, &sender, rng.fork(), work);
            threads += 1;
        };
        for _ in 0..mix.readers {
            begin(reader::read_one);
        }
        if mix.walks {
            begin(walker::walk_one);
        }
        if mix.runs {
            begin(runner::run_one);
        }
        Ok(Self {
            scene,
            mapper,
            guests: Vec::new(),
            tallies,
            threads,
        })
    }

    /// Has a guest read, too.
    pub(crate) fn host(&mut self, guest: Visit) {
        self.guests.push(guest);
    }

    /// Ends it, and returns what all of them saw together.
    ///
    /// # Errors
    /// If one of them does not come back: what it asked is not answered.
    pub(crate) fn stop(mut self) -> anyhow::Result<Tally> {
        self.scene.stop.store(true, Relaxed);
        let deadline = Instant::now() + PATIENCE;
        let mut all = Tally::default();
        for _ in 0..self.threads {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.tallies.recv_timeout(left) {
                Ok(tally) => all.add(&tally),
                Err(_) => bail!(
                    "a reader waits for an answer that does not come:\n{}",
                    processes::stuck_threads(std::process::id()).join("\n")
                ),
            }
        }
        if let Some(mapper) = self.mapper.take() {
            all.add(&mapper.stop(deadline)?);
        }
        for visit in std::mem::take(&mut self.guests) {
            let guest = visit.guest();
            all.guests.insert(guest, visit.stop(deadline)?);
        }
        Ok(all)
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        // Threads that wait in the kernel end when the mount does.
        self.scene.stop.store(true, Relaxed);
    }
}

/// Does something again and again, with a pause in between that lets others work.
fn spawn(
    scene: &Arc<Scene>,
    done: &Sender<Tally>,
    mut rng: Rng,
    work: fn(&Scene, &mut Rng) -> Outcome,
) {
    let (scene, done) = (Arc::clone(scene), done.clone());
    thread::spawn(move || {
        let mut tally = Tally::default();
        while !scene.stop.load(Relaxed) {
            let started = Instant::now();
            let outcome = work(&scene, &mut rng);
            tally.note(started.elapsed(), &outcome);
            thread::sleep(Duration::from_micros(rng.below(2000)));
        }
        // Nobody listens any more if the run was given up.
        drop(done.send(tally));
    });
}
