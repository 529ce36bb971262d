//! Automatic moves of the node: the plan is carried out after starts, without commands of a
//! user.
//!
//! One thread, with idle I/O priority, at a bounded rate, one object at a time.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;
use tiering::Rate;

use super::Tiers;
use super::carry::{Carried, Todo, carry_out, forget_lost};
use super::pace::Paced;
use crate::store::StoreSettings;
use host::interrupt::{Interrupt, Interrupted};
use host::progress::Bar;
use node_api::view::TierView;

/// How often it is looked whether something was started, pinned or recorded.
const LOOK: Duration = Duration::from_secs(2);
/// Heat decays without anybody doing anything: by a hundredth in this time.
const ANYWAY: Duration = Duration::from_mins(20);
/// How long what failed is left alone: a tier may be full, or another process at work.
const REST: Duration = Duration::from_secs(30);
/// How long to wait for another process that moves objects.
const PATIENCE: Duration = Duration::from_secs(1);
/// A boot image of 40 MB is there within a second, and half of a slow disk is left to others.
const BYTES_PER_SECOND: u64 = 64 << 20;

/// What was moved, by the place of the tier.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    bytes: u64,
    failed: u64,
}

/// The thread that moves objects. Dropping this ends it, which takes no longer than the move of a
/// part of an object.
#[derive(Debug)]
pub struct Background {
    watched: Watched,
    end: Interrupt,
    thread: Option<JoinHandle<()>>,
}

/// State that other threads may read while the thread works.
#[derive(Clone, Debug)]
pub struct Watched {
    tiers: Tiers,
    moved: Arc<Mutex<BTreeMap<usize, Moved>>>,
}

impl Background {
    /// Starts it for the boot images of a store.
    ///
    /// # Errors
    /// If the tiers file cannot be parsed, or no thread can be started.
    pub fn start(store: &StoreSettings) -> anyhow::Result<Self> {
        let end = Interrupt::unarmed()?;
        let watched = Watched {
            tiers: store.tiers()?,
            moved: Arc::default(),
        };
        let worker = Worker {
            watched: watched.clone(),
            store: store.clone(),
            end: end.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("tiers".to_owned())
            .spawn(move || worker.run());
        Ok(Self {
            watched,
            end,
            thread: Some(thread.context("starting the thread that moves boot images")?),
        })
    }

    /// Returns what can be looked at.
    pub fn watched(&self) -> Watched {
        self.watched.clone()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.end.ask();
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

impl Watched {
    /// Returns how the tiers are now.
    pub fn view(&self) -> Vec<TierView> {
        let moved = self.moved.lock().clone();
        let seen = self.tiers.look().into_iter().enumerate();
        seen.map(|(place, tier)| {
            let moved = moved.get(&place).copied().unwrap_or_default();
            TierView {
                name: tier.spec.name.clone(),
                away: tier.is.as_ref().err().cloned(),
                room_bytes: tier.room_bytes(),
                used_bytes: tier.used_bytes(),
                objects: tier.objects.len() as u64,
                moved_bytes: moved.bytes,
                failed_moves: moved.failed,
            }
        })
        .collect()
    }

    fn count(&self, place: usize, count: impl FnOnce(&mut Moved)) {
        count(self.moved.lock().entry(place).or_default());
    }
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// All was done that was to be done.
    Done,
    /// Something failed: it is tried again later.
    Failed,
}

#[derive(Debug)]
struct Worker {
    watched: Watched,
    store: StoreSettings,
    end: Interrupt,
}

impl Worker {
    fn run(&self) {
        if let Err(error) = rawio::idle::idle_io() {
            log::debug!("moves between tiers are as urgent as any I/O: {error}");
        }
        let mut said = String::new();
        while !self.end.asked() {
            // Before the round: what changes while it runs is for the next one.
            let stamp = self.stamp();
            let round = self.round().unwrap_or_else(|error| {
                let text = format!("{error:#}");
                if text != said {
                    log::warn!("cannot move boot images between tiers: {text}");
                    said = text;
                }
                Round::Failed
            });
            match round {
                Round::Failed => self.sleep(REST),
                Round::Done => self.until_changed(stamp),
            }
        }
    }

    fn round(&self) -> anyhow::Result<Round> {
        let tiers = &self.watched.tiers;
        let Some(store) = self.store.open_existing()? else {
            return Ok(Round::Done);
        };
        let todo = Todo::now(tiers, &store)?;
        let rate = Rate::per_second(BYTES_PER_SECOND);
        let pace = Paced::new(rate, &self.end, Bar::hidden());
        let mut round = Round::Done;
        for step in &todo.plan.steps {
            let Some(candidate) = todo.candidate(step) else {
                continue;
            };
            pace.read_from(candidate.source_path(&store));
            match carry_out(step, candidate, tiers, &store, &pace, PATIENCE) {
                Ok(Carried::Done(bytes)) => {
                    let (name, change) = (&candidate.label, step.change);
                    let tier = &tiers.specs()[step.place].name;
                    log::info!("{name}: {change:?} on tier {tier}, {bytes} bytes written");
                    self.watched.count(step.place, |moved| moved.bytes += bytes);
                }
                Ok(Carried::Already | Carried::Open) => {}
                Err(error) if error.is::<Interrupted>() => {
                    return Ok(Round::Done);
                }
                Err(error) => {
                    log::warn!("{error:#}");
                    self.watched.count(step.place, |moved| moved.failed += 1);
                    round = Round::Failed;
                }
            }
        }
        forget_lost(tiers, &store)?;
        Ok(round)
    }

    /// When something was started, pinned, recorded, or removed last.
    fn stamp(&self) -> [Option<SystemTime>; 3] {
        let known = self.watched.tiers.known();
        let dirs = known.dirs();
        let images = self.store.absolute().join("images");
        [dirs[0], dirs[1], &images].map(|dir| fs::metadata(dir).and_then(|of| of.modified()).ok())
    }

    fn until_changed(&self, stamp: [Option<SystemTime>; 3]) {
        let begin = Instant::now();
        while !self.end.asked() && begin.elapsed() < ANYWAY && self.stamp() == stamp {
            self.sleep(LOOK);
        }
    }

    /// Sleeps so long, or until the process is asked to end.
    fn sleep(&self, time: Duration) {
        let mut end = [PollFd::new(self.end.fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        // Whatever it says: who calls looks again.
        let _woken = poll(&mut end, timeout);
    }
}
