//! One run of a scenario: its place, its chance, and what is found afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::commands::PATIENCE;
use crate::guests::Visit;
use crate::lab::Lab;
use crate::processes;
use crate::workload::{Mix, Workload};
use crate::{Base, Rng, Tally, Truth};

/// What a run works with.
#[derive(Debug)]
pub struct Bench<'b> {
    pub(crate) lab: Lab,
    pub(crate) rng: Rng,
    /// How long the harm goes on.
    pub(crate) length: Duration,
    /// How many mounts there are where there are many.
    pub(crate) mounts: u64,
    base: &'b Base,
    tally: Tally,
    /// How often harm was done.
    harms: u64,
    figures: Vec<String>,
}

/// One kind of harm.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// What it is called.
    pub name: &'static str,
    /// What is done, and what must hold.
    pub what: &'static str,
    /// Whether it is run only if it is asked for by name.
    pub asked: bool,
    pub(crate) run: fn(&mut Bench<'_>) -> anyhow::Result<()>,
}

impl std::fmt::Debug for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// How much is done in a run.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// How long the harm goes on.
    pub length: Duration,
    /// How many mounts there are where there are many; by default a few for each second, so that
    /// an hour's run has as many as a minute's, and a short test few.
    pub mounts: Option<u64>,
}

impl Scale {
    /// Mounts in a second of a run's length.
    const MOUNTS_A_SECOND: u64 = 20;

    /// The most of them, unless more are asked for.
    const MOST_MOUNTS: u64 = 200;

    fn mounts(self) -> u64 {
        let few = self.length.as_secs().max(1) * Self::MOUNTS_A_SECOND;
        self.mounts.unwrap_or(few.min(Self::MOST_MOUNTS)).max(1)
    }
}

/// What a run came to.
#[derive(Debug)]
pub struct Finding {
    /// What the readers saw.
    pub tally: Tally,
    /// How often harm was done.
    pub harms: u64,
    /// How long it took.
    pub took: Duration,
    /// What was measured beside that, in words.
    pub figures: Vec<String>,
    /// What must hold and does not.
    pub fault: Option<anyhow::Error>,
}

impl<'b> Bench<'b> {
    /// Runs a scenario once and looks for what it left.
    ///
    /// # Errors
    /// If there is no place to run it. What is wrong with yolofs is in the finding.
    pub fn run(
        scenario: &Scenario,
        base: &'b Base,
        seed: u64,
        scale: Scale,
    ) -> anyhow::Result<Finding> {
        let started = Instant::now();
        let mut bench = Self {
            lab: Lab::new(base)?,
            rng: Rng::new(seed),
            length: scale.length,
            mounts: scale.mounts(),
            base,
            tally: Tally::default(),
            harms: 0,
            figures: Vec::new(),
        };
        let result = (scenario.run)(&mut bench)
            .and_then(|()| bench.check_tally())
            .and_then(|()| bench.aftermath())
            .and_then(|()| base.check_source().context("after the run"));
        if result.is_err() {
            bench.keep_logs();
        }
        Ok(Finding {
            tally: std::mem::take(&mut bench.tally),
            harms: bench.harms,
            took: started.elapsed(),
            figures: std::mem::take(&mut bench.figures),
            fault: result.err(),
        })
    }

    pub(crate) fn truth(&self) -> Arc<Truth> {
        self.base.truth()
    }

    pub(crate) const fn base(&self) -> &Base {
        self.base
    }

    /// Starts readers of a mount.
    pub(crate) fn read(&mut self, root: &std::path::Path, mix: Mix) -> anyhow::Result<Workload> {
        let pristine = self.base.source();
        let truth = self.base.truth();
        let mut readers = Workload::start(root, &truth, &pristine, mix, &mut self.rng)?;
        if mix.hosts {
            for guest in self.base.guests() {
                let visit = Visit::start(*guest, &self.lab, root, &truth, &mut self.rng)?;
                readers.host(visit);
            }
        }
        Ok(readers)
    }

    /// Takes what readers saw; errors other than these count as failures of the run.
    pub(crate) fn take(&mut self, tally: &Tally, allowed: &[i32]) -> anyhow::Result<()> {
        self.tally.add(tally);
        ensure!(
            tally.failures_but(allowed) == 0,
            "{} operations failed that must not",
            tally.failures_but(allowed)
        );
        Ok(())
    }

    /// Notes that harm was done.
    pub(crate) const fn harmed(&mut self, times: u64) {
        self.harms += times;
    }

    /// Notes something that was measured.
    pub(crate) fn measured(&mut self, figure: String) {
        self.figures.push(figure);
    }

    /// Does something at random moments for as long as the run is to last; once at least.
    pub(crate) fn at_random(
        &mut self,
        longest_pause: Duration,
        mut harm: impl FnMut(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let end = Instant::now() + self.length;
        loop {
            let pause = self
                .rng
                .below(u64::try_from(longest_pause.as_micros())?.max(1));
            std::thread::sleep(Duration::from_micros(pause));
            harm(self)?;
            self.harms += 1;
            if Instant::now() >= end {
                return Ok(());
            }
        }
    }

    fn check_tally(&self) -> anyhow::Result<()> {
        ensure!(
            self.tally.wrongs() == 0,
            "{} answers were wrong",
            self.tally.wrongs()
        );
        ensure!(self.tally.right > 0, "nobody has read anything");
        Ok(())
    }

    /// Checks that nothing is left: no mount, no process, no thread that cannot be woken.
    fn aftermath(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mounts = self.lab.mounts()?;
            let processes = self.lab.all_processes();
            if mounts.is_empty() && processes.is_empty() {
                break;
            }
            let stuck: Vec<_> = processes
                .iter()
                .flat_map(|process| processes::stuck_threads(process.pid))
                .collect();
            ensure!(
                Instant::now() < deadline,
                "left behind: mounts {mounts:?}, processes {processes:?}, of which cannot be woken \
                 {stuck:?}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        let stuck = processes::stuck_threads(std::process::id());
        // A thread of ours may just be writing to the disk: only one that stays is stuck.
        ensure!(
            stuck.is_empty() || {
                std::thread::sleep(Duration::from_secs(2));
                let still = processes::stuck_threads(std::process::id());
                !stuck.iter().any(|thread| still.contains(thread))
            },
            "threads of the harness cannot be woken: {stuck:?}"
        );
        Ok(())
    }

    /// Copies what the programs have logged to where it outlives the lab.
    fn keep_logs(&self) {
        let to = std::env::temp_dir().join(format!("yolofs-soak-logs-{}", std::process::id()));
        let copied = std::process::Command::new("cp")
            .arg("-rT")
            .args([self.lab.run_dir(), to.clone()])
            .output();
        if copied.is_ok_and(|output| output.status.success()) {
            eprintln!("      the logs are in {}", to.display());
        }
    }
}
