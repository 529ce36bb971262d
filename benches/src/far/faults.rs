//! Starts during which a service stalls, dies or lies, with the disk or another service to ask instead.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use link_emulator::{Fault, Link};

use super::lab::{Lab, SOURCE};
use super::programs::run_all;
use super::sample::{Point, Sample, Way};
use crate::micro::Series;

/// Bytes after which the line is given its fault: in the middle of what a start needs.
const MIDDLE: u64 = 4 << 20;
/// How long a stall lasts.
const STALL: Duration = Duration::from_secs(5);
/// How often the line is looked at.
const LOOK: Duration = Duration::from_millis(1);

/// Who else can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    /// The root on the disk.
    Disk,
    /// Another service.
    Service,
    /// Both, and the other service stalls.
    StallingServiceAndDisk,
}

/// The faults, with what they are called.
const FAULTS: [(&str, Fault, Beside); 9] = [
    ("no fault, the disk beside", Fault::None, Beside::Disk),
    (
        "a stall of 5 s, the disk beside",
        Fault::Stalled,
        Beside::Disk,
    ),
    ("death, the disk beside", Fault::Dead, Beside::Disk),
    ("lies, the disk beside", Fault::Lying, Beside::Disk),
    (
        "no fault, another service beside",
        Fault::None,
        Beside::Service,
    ),
    (
        "a stall of 5 s, another service beside",
        Fault::Stalled,
        Beside::Service,
    ),
    (
        "death, another service beside",
        Fault::Dead,
        Beside::Service,
    ),
    (
        "lies, another service beside",
        Fault::Lying,
        Beside::Service,
    ),
    (
        "lies, another service that stalls and the disk beside",
        Fault::Lying,
        Beside::StallingServiceAndDisk,
    ),
];

/// Starts with each fault, so many times. Each program checks
/// little of what it reads, so some files are compared with the origin at the end.
///
/// # Errors
/// If a start fails, or a byte is wrong.
pub fn measure(lab: &Lab, point: Point, turns: u32) -> anyhow::Result<Vec<Series>> {
    let name = |what| Series::new(format!("{what}, {point}"), "ms");
    let mut all: Vec<Series> = FAULTS.iter().map(|(what, ..)| name(what)).collect();
    for _ in 0..turns {
        for ((what, fault, beside), series) in FAULTS.iter().zip(&mut all) {
            let sample = start(lab, point, *fault, *beside)?;
            let (call, wire, status) = (sample.from_call_ms(), &sample.wire, &sample.status["nic"]);
            eprintln!(
                "{what:55} {call:7.0} ms {:9} B {:4} requests; {} lies, {} late, {} of the origin, {} failed",
                wire.down,
                status["requests"],
                status["lies"],
                status["late"],
                status["origin_chunks"],
                status["failed_reads"],
            );
            series.values.push(call);
        }
    }
    Ok(all)
}

fn start(lab: &Lab, point: Point, fault: Fault, beside: Beside) -> anyhow::Result<Sample> {
    let (line, second, machine) = (lab.line(point)?, lab.line(point)?, lab.machine()?);
    let (origin, other) = (lab.root().display().to_string(), second.address.to_string());
    let flags: &[&str] = match beside {
        Beside::Disk => &["--origin", &origin],
        Beside::Service => &["--nic", &other],
        Beside::StallingServiceAndDisk => &["--nic", &other, "--origin", &origin],
    };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let breaking = scope.spawn(|| {
            break_line(&line.link, fault, &over, || {
                if beside == Beside::StallingServiceAndDisk {
                    second.link.set_fault(Fault::Stalled);
                }
            });
        });
        let work = |root: &Path| {
            let times = run_all(root, &machine.scratch)?;
            lab.compare(root)?;
            Ok(times)
        };
        let sample = machine.start(Way::BootImage, point, &line, SOURCE, flags, work);
        over.store(true, Relaxed);
        if breaking.join().is_err() {
            bail!("the thread that breaks the line panicked");
        }
        sample
    })
}

/// Gives the line its fault in the middle of the start, and mends a stall after its time.
fn break_line(link: &Link, fault: Fault, over: &AtomicBool, also: impl FnOnce()) {
    while link.counts().to_client < MIDDLE {
        if over.load(Relaxed) {
            return;
        }
        thread::sleep(LOOK);
    }
    link.set_fault(fault);
    also();
    let began = Instant::now();
    while fault == Fault::Stalled && !over.load(Relaxed) {
        if began.elapsed() >= STALL {
            link.set_fault(Fault::None);
            return;
        }
        thread::sleep(LOOK);
    }
}
