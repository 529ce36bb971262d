//! Many machines that start from one service at once.

use std::path::Path;
use std::sync::Barrier;
use std::time::Instant;

use anyhow::bail;

use super::cpu;
use super::lab::Lab;
use super::programs::run_all;
use super::sample::{Point, Way};
use crate::boots::milliseconds;
use crate::micro::Series;

/// What some machines took that started at once.
#[derive(Clone, Copy, Debug, Default)]
struct Took {
    /// Milliseconds until the last of them had started everything.
    last_ms: f64,
    /// Milliseconds of processor time of the service, the daemons of the mounts, the programs, and the lines.
    cpu_ms: [f64; PARTS.len()],
}

/// The parts of a start.
const PARTS: [&str; 4] = ["the service", "the daemons", "the programs", "the lines"];

/// Has so many machines start at once, each over a line of its own, and one alone before them. Returns how
/// long the one took, and the last of the many, and what the parts took of the processors.
///
/// # Errors
/// If a start fails.
pub fn measure(
    lab: &Lab,
    machines: usize,
    point: Point,
    turns: u32,
) -> anyhow::Result<Vec<Series>> {
    let mut all = Vec::new();
    for (count, what) in [
        (1, "a machine alone".to_owned()),
        (machines, format!("the last of {machines} machines")),
    ] {
        let series = |what: String| Series::new(format!("{what}, {point}"), "ms");
        let mut took = series(what);
        let mut parts =
            PARTS.map(|part| series(format!("processor time of {part}, {count} at once")));
        for _ in 0..turns {
            let of_turn = at_once(lab, count, point)?;
            took.values.push(of_turn.last_ms);
            for (series, cpu_ms) in parts.iter_mut().zip(of_turn.cpu_ms) {
                series.values.push(cpu_ms);
            }
        }
        all.push(took);
        all.extend(parts);
    }
    Ok(all)
}

/// Has machines start at once.
fn at_once(lab: &Lab, machines: usize, point: Point) -> anyhow::Result<Took> {
    let (service, ours) = (lab.service_cpu_ms()?, cpu::of_ours()?);
    let mut took = starts(lab, machines, point)?;
    let after = cpu::of_ours()?;
    took.cpu_ms[0] = lab.service_cpu_ms()? - service;
    took.cpu_ms[2] = after[1] - ours[1];
    took.cpu_ms[3] = after[0] - ours[0];
    Ok(took)
}

fn starts(lab: &Lab, machines: usize, point: Point) -> anyhow::Result<Took> {
    let barrier = Barrier::new(machines);
    std::thread::scope(|scope| {
        let start = || -> anyhow::Result<(f64, f64)> {
            let ready = lab
                .machine()
                .and_then(|machine| Ok((machine, lab.line(point)?)));
            barrier.wait();
            let (machine, line) = ready?;
            let began = Instant::now();
            let mut took = 0.0;
            let work = |root: &Path| {
                let times = run_all(root, &machine.scratch)?;
                took = milliseconds(times.ended - began);
                Ok(times)
            };
            let sample =
                machine.start(Way::BootImage, point, &line, super::lab::SOURCE, &[], work)?;
            Ok((took, sample.daemon_cpu_ms))
        };
        let threads: Vec<_> = (0..machines).map(|_| scope.spawn(start)).collect();
        let mut all = Took::default();
        for thread in threads {
            match thread.join() {
                Ok(took) => {
                    let (took, daemon) = took?;
                    all.last_ms = all.last_ms.max(took);
                    all.cpu_ms[1] += daemon;
                }
                Err(_) => bail!("the thread of a machine panicked"),
            }
        }
        Ok(all)
    })
}
