//! Many machines that start from one service at once.

use std::path::Path;
use std::sync::Barrier;
use std::time::Instant;

use anyhow::bail;

use super::lab::Lab;
use super::programs::run_all;
use super::sample::{Point, Way};
use crate::boots::milliseconds;
use crate::micro::Series;

/// Has so many machines start at once, each over a line of its own, and one alone before them. Returns how
/// long the one took, and the last of the many.
///
/// # Errors
/// If a start fails.
pub fn measure(
    lab: &Lab,
    machines: usize,
    point: Point,
    turns: u32,
) -> anyhow::Result<[Series; 2]> {
    let series = |what: String| Series::new(format!("{what}, {point}"), "ms");
    let mut one = series("a machine alone".to_owned());
    let mut last = series(format!("the last of {machines} machines"));
    for _ in 0..turns {
        one.values.push(at_once(lab, 1, point)?);
        last.values.push(at_once(lab, machines, point)?);
    }
    Ok([one, last])
}

/// Returns the milliseconds until the last of them has started everything.
fn at_once(lab: &Lab, machines: usize, point: Point) -> anyhow::Result<f64> {
    let barrier = Barrier::new(machines);
    std::thread::scope(|scope| {
        let start = || -> anyhow::Result<f64> {
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
            machine.start(Way::BootImage, point, &line, super::lab::SOURCE, &[], work)?;
            Ok(took)
        };
        let threads: Vec<_> = (0..machines).map(|_| scope.spawn(start)).collect();
        let mut last = 0.0_f64;
        for thread in threads {
            match thread.join() {
                Ok(took) => last = last.max(took?),
                Err(_) => bail!("the thread of a machine panicked"),
            }
        }
        Ok(last)
    })
}
