//! Starts during which the service stalls, dies or lies, with the disk to ask instead.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use link_emulator::{Fault, Link};

use super::lab::{Lab, SOURCE};
use super::programs::run_all;
use super::sample::{Point, Way};
use crate::micro::Series;

/// Bytes after which the line is given its fault: in the middle of what a start needs.
const MIDDLE: u64 = 4 << 20;
/// How long a stall lasts.
const STALL: Duration = Duration::from_secs(5);
/// How often the line is looked at.
const LOOK: Duration = Duration::from_millis(1);

/// The faults, with what they are called.
const FAULTS: [(&str, Fault); 4] = [
    ("no fault", Fault::None),
    ("the service stalls for 5 s", Fault::Stalled),
    ("the service dies", Fault::Dead),
    ("the service lies", Fault::Lying),
];

/// Starts with each fault, so many times, with the root on the disk as the origin. Each program checks
/// little of what it reads, so some files are compared with the origin at the end.
///
/// # Errors
/// If a start fails, or a byte is wrong.
pub fn measure(lab: &Lab, point: Point, turns: u32) -> anyhow::Result<Vec<Series>> {
    let name = |what| Series::new(format!("{what}, {point}"), "ms");
    let mut all: Vec<Series> = FAULTS.iter().map(|(what, _)| name(what)).collect();
    for _ in 0..turns {
        for ((_, fault), series) in FAULTS.iter().zip(&mut all) {
            series.values.push(start(lab, point, *fault)?);
        }
    }
    Ok(all)
}

fn start(lab: &Lab, point: Point, fault: Fault) -> anyhow::Result<f64> {
    let (line, machine) = (lab.line(point)?, lab.machine()?);
    let origin = lab.root().display().to_string();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let breaking = scope.spawn(|| break_line(&line.link, fault, &over));
        let work = |root: &Path| {
            let times = run_all(root, &machine.scratch)?;
            lab.compare(root)?;
            Ok(times)
        };
        let flags = ["--origin", &origin];
        let sample = machine.start(Way::BootImage, point, &line, SOURCE, &flags, work);
        over.store(true, Relaxed);
        if breaking.join().is_err() {
            bail!("the thread that breaks the line panicked");
        }
        Ok(sample?.from_call_ms())
    })
}

/// Gives the line its fault in the middle of the start, and mends a stall after its time.
fn break_line(link: &Link, fault: Fault, over: &AtomicBool) {
    while link.counts().to_client < MIDDLE {
        if over.load(Relaxed) {
            return;
        }
        thread::sleep(LOOK);
    }
    link.set_fault(fault);
    let began = Instant::now();
    while fault == Fault::Stalled && !over.load(Relaxed) {
        if began.elapsed() >= STALL {
            link.set_fault(Fault::None);
            return;
        }
        thread::sleep(LOOK);
    }
}
