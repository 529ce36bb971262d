//! Sandboxes, measured beside what else starts a program.

mod docker;
mod first;
mod floor;
mod noop;
mod stage;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use sandbox::{ExitStatus, Python, Request, Stdio, ZygoteSpec};
use serde::Serialize;

pub use first::first;
pub use floor::floor;
pub use noop::noop;
pub use stage::Stage;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is imported where nothing else is said.
const MODULES: &[&str] = &["json", "asyncio", "ssl", "http.client", "sqlite3"];

const PYTHON: &str = "/usr/bin/python3";

/// How long each rate is measured.
const RATE_TIME: Duration = Duration::from_secs(5);

/// Something that was measured many times.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// What.
    pub name: String,
    /// The unit of the samples.
    pub unit: &'static str,
    /// In the order in which they were taken.
    pub samples: Vec<f64>,
}

impl Figure {
    fn new(name: impl Into<String>, unit: &'static str, samples: Vec<f64>) -> Self {
        let name = name.into();
        Self {
            name,
            unit,
            samples,
        }
    }

    /// Returns the sample that this part of all is below, in thousandths.
    #[must_use]
    pub fn quantile(&self, thousandths: usize) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        let place = (sorted.len() * thousandths / 1000).min(sorted.len().saturating_sub(1));
        sorted.get(place).copied().unwrap_or(f64::NAN)
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            unit,
            samples,
        } = self;
        match samples.as_slice() {
            [one] => write!(f, "{name:<44} {one:>9.2} {unit}"),
            many => write!(
                f,
                "{name:<44} {:>9.2} {unit} p50 {:>9.2} p99  ({} samples)",
                self.quantile(500),
                self.quantile(990),
                many.len()
            ),
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// A program of Python, by a Zygote or by an interpreter of its own.
fn python_request(text: &str, packages: &BTreeSet<String>, stage: &Stage, forked: bool) -> Request {
    let mut request = match forked {
        true => {
            let mut request = Request::new("host", &["-c", text]);
            request.python = Some(Python {
                interpreter: PYTHON.to_owned(),
                packages: packages.clone(),
            });
            request
        }
        false => Request::new("host", &[PYTHON, "-c", text]),
    };
    if !forked && !packages.is_empty() {
        let paths = packages
            .iter()
            .map(|package| format!("/packages/{package}"));
        let paths: Vec<_> = paths.collect();
        request
            .environment
            .insert("PYTHONPATH".to_owned(), paths.join(":"));
    }
    request.packages = (!packages.is_empty()).then(|| stage.store());
    request
}

/// Makes a sandbox, waits for its end, and returns how long it took to be ready and to be gone.
fn made_and_gone(stage: &Stage, request: Request) -> anyhow::Result<[f64; 2]> {
    let began = Instant::now();
    let sandbox = stage.sandboxes.create(request, Stdio::Null)?;
    let ready = began.elapsed();
    let exit = sandbox.wait(PATIENCE).context("it does not end")?;
    let gone = began.elapsed();
    ensure!(exit.status == ExitStatus::Code(0), "it ended with {exit:?}");
    Ok([ready, gone].map(milliseconds))
}

/// Measures Python that imports five modules.
///
/// # Errors
/// If a sandbox cannot be made.
pub fn python(stage: &Stage, rounds: u32) -> anyhow::Result<Vec<Figure>> {
    let zygote = ZygoteSpec::new("host", PYTHON, MODULES);
    let zygote = stage.sandboxes.add_zygote(zygote)?;
    let text = format!("import {}", MODULES.join(", "));
    let none = BTreeSet::new();
    let [mut ready, mut forked, mut fresh] = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        let times = made_and_gone(stage, python_request(&text, &none, stage, true))?;
        ready.push(times[0]);
        forked.push(times[1]);
        fresh.push(made_and_gone(stage, python_request(&text, &none, stage, false))?[1]);
    }
    stage.sandboxes.evict(&zygote.id)?;
    Ok(vec![
        Figure::new("python from a Zygote, ready", "ms", ready),
        Figure::new("python from a Zygote, made and gone", "ms", forked),
        Figure::new("python fresh in a sandbox, made and gone", "ms", fresh),
    ])
}

/// Measures how many sandboxes a second are made and gone.
///
/// # Errors
/// If a sandbox cannot be made.
pub fn rates(stage: &Stage) -> anyhow::Result<Vec<Figure>> {
    let zygote = ZygoteSpec::new("host", PYTHON, MODULES);
    let zygote = stage.sandboxes.add_zygote(zygote)?;
    let text = format!("import {}", MODULES.join(", "));
    let none = BTreeSet::new();
    let mut figures = Vec::new();
    for threads in [1_u32, 2, 10] {
        let rate = rate_of(threads, || {
            made_and_gone(stage, stage.noop_request()).map(drop)
        })?;
        let name = format!("no-ops, {threads} at once");
        figures.push(Figure::new(name, "a second", vec![rate]));
    }
    for threads in [1_u32, 2, 10] {
        let rate = rate_of(threads, || {
            made_and_gone(stage, python_request(&text, &none, stage, true)).map(drop)
        })?;
        let name = format!("python from one Zygote, {threads} at once");
        figures.push(Figure::new(name, "a second", vec![rate]));
    }
    for other in stage.others()? {
        let rate = rate_of(10, || other.run())?;
        let name = format!("{}, 10 at once", other.name());
        figures.push(Figure::new(name, "a second", vec![rate]));
    }
    stage.sandboxes.evict(&zygote.id)?;
    Ok(figures)
}

/// Does something again and again on several threads, and returns how often it was done a second.
fn rate_of(threads: u32, act: impl Fn() -> anyhow::Result<()> + Sync) -> anyhow::Result<f64> {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let began = Instant::now();
    let results: Vec<anyhow::Result<()>> = std::thread::scope(|scope| {
        let turn = || {
            while !stop.load(Relaxed) {
                act()?;
                done.fetch_add(1, Relaxed);
            }
            Ok(())
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(turn)).collect();
        std::thread::sleep(RATE_TIME);
        stop.store(true, Relaxed);
        let ended = threads.into_iter().map(|thread| thread.join());
        ended
            .map(|ended| ended.unwrap_or_else(|_| anyhow::bail!("a thread panicked")))
            .collect()
    });
    results.into_iter().collect::<anyhow::Result<()>>()?;
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let done = done.load(Relaxed) as f64;
    Ok(done / began.elapsed().as_secs_f64())
}

/// Measures handlers that all import one large package: SOCK's experiment with its caches.
///
/// # Errors
/// If a sandbox cannot be made.
pub fn package(stage: &Stage, rounds: u32) -> anyhow::Result<Vec<Figure>> {
    let packages = BTreeSet::from(["large==1".to_owned()]);
    stage.write_large_package("large==1")?;
    let text = "import large; large.answer()";
    let mut spec = ZygoteSpec::new("host", PYTHON, &[]);
    spec.packages.clone_from(&packages);
    spec.store = Some(stage.store());
    let zygote = stage.sandboxes.add_zygote(spec)?;
    let [mut forked, mut fresh] = [const { Vec::new() }; 2];
    for _ in 0..rounds {
        forked.push(made_and_gone(stage, python_request(text, &packages, stage, true))?[1]);
        fresh.push(made_and_gone(stage, python_request(text, &packages, stage, false))?[1]);
    }
    stage.sandboxes.evict(&zygote.id)?;
    Ok(vec![
        Figure::new("large package, from its Zygote", "ms", forked),
        Figure::new("large package, without Zygotes", "ms", fresh),
    ])
}

/// Measures many sandboxes that are alive and paused.
///
/// # Errors
/// If a sandbox cannot be made.
pub fn alive(stage: &Stage, count: u32) -> anyhow::Result<Vec<Figure>> {
    let mut times = Vec::new();
    let mut unshared = Vec::new();
    let mut all = Vec::new();
    for _ in 0..count {
        let began = Instant::now();
        let request = Request::new("host", &["/bin/sleep", "1000"]);
        let sandbox = stage.sandboxes.create(request, Stdio::Null)?;
        times.push(milliseconds(began.elapsed()));
        sandbox.pause()?;
        all.push(sandbox);
    }
    for sandbox in &all {
        unshared.push(unshared_kib(sandbox.pid())?);
    }
    stage.end_all()?;
    let part = times.len().div_ceil(10);
    let last = times.split_off(times.len() - part);
    times.truncate(part);
    Ok(vec![
        Figure::new("creation of the first tenth", "ms", times),
        Figure::new(format!("creation of the last tenth of {count}"), "ms", last),
        Figure::new("unshared memory of each, paused", "KiB", unshared),
    ])
}

/// Returns the memory of a process that it shares with no other.
fn unshared_kib(pid: u32) -> anyhow::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let of = |line: &str| -> Option<f64> {
        let is_private = line.starts_with("Private_Clean:") || line.starts_with("Private_Dirty:");
        line.split_whitespace()
            .nth(1)?
            .parse()
            .ok()
            .filter(|_| is_private)
    };
    Ok(text.lines().filter_map(of).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_sorted_samples() {
        let samples = (0..1000).rev().map(f64::from).collect();
        let figure = Figure::new("x", "ms", samples);
        assert_eq!((figure.quantile(500), figure.quantile(990)), (500.0, 990.0));
    }
}
