//! Restores of a saved machine, whose memory is mapped from a file.

#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use benches::aims::Aim;
use benches::caches;
use benches::ending::end;
use benches::lab_args::LabArgs;
use benches::machine::Machine;
use benches::report::Report;
use benches::rounds::{Shuffle, median};
use benches::vm::small_pages;
use benches::yolo::Mode;
use benches::yolo::snapshot::{Monitor, Restored, Snapshots, restore};
use clap::{Parser, ValueEnum as _};

/// Restores a machine of 512 MiB from a slow disk, from the page cache, and from a mount with a boot image
#[derive(Debug, Parser)]
#[command(
    name = "bench-snapshots",
    version,
    max_term_width = 100,
    after_help = "It drops the page cache of the whole machine before each sample."
)]
struct Args {
    #[command(flatten)]
    lab: LabArgs,
    /// QEMU, of version 8.2 or later
    #[arg(long, value_name = "PATH", default_value = "qemu-system-x86_64")]
    qemu: PathBuf,
    /// How often each cell takes its turn
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,
    /// Read requests a second of the disk
    #[arg(long, value_name = "N", default_value_t = 150)]
    iops: u32,
    /// By how much the kernel reads ahead of the disk; 128 is its default
    #[arg(long, value_name = "KIB", default_value_t = 128)]
    read_ahead: u32,
    /// Write what was measured to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The word with which this program restores a machine once: what is recorded.
const RESTORE: &str = "restore-once";
/// From where machines are restored.
const MODES: [Mode; 3] = [Mode::Native, Mode::Yolofs, Mode::Warm];

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    match &words[..] {
        [word, program @ ..] if word == small_pages::WORD => {
            return end(&small_pages::become_program(program));
        }
        [word, monitor, paths @ ..] if word == RESTORE => {
            return end(&restore_once(monitor, paths));
        }
        _ => {}
    }
    end(&run(&Args::parse()))
}

/// What is recorded.
fn restore_once(monitor: &OsStr, paths: &[OsString]) -> anyhow::Result<()> {
    let monitor = monitor.to_string_lossy();
    let monitor = Monitor::from_str(&monitor, false).map_err(anyhow::Error::msg)?;
    let [qemu, guest, dir] = paths else {
        bail!("{RESTORE} takes a monitor, a QEMU, and the directories of a guest and a snapshot");
    };
    restore(monitor, Path::new(qemu), Path::new(guest), Path::new(dir)).map(drop)
}

fn run(args: &Args) -> anyhow::Result<()> {
    let places = args.lab.set_up()?;
    let machine = Machine::look();
    eprintln!("saving a machine, and recording its restores");
    let snapshots = Snapshots::take(&places, &args.qemu, RESTORE, args.read_ahead)?;
    let all = Monitor::value_variants().iter();
    let cells: Vec<_> = all
        .flat_map(|monitor| MODES.map(|mode| (*monitor, mode)))
        .collect();
    let mut shuffle = Shuffle::from_clock();
    let mut samples = Vec::new();
    for round in 1..=args.rounds {
        for (monitor, mode) in shuffle.order(&cells) {
            let sample = snapshots.sample(monitor, mode, args.iops);
            let sample = sample.with_context(|| format!("{monitor:?}, {mode}"))?;
            let Restored {
                answer_ms,
                disk_reads,
                qemu_bytes,
                ..
            } = sample;
            eprintln!(
                "round {round}: {monitor:?}, {mode}: {answer_ms:.0} ms, {disk_reads} reads, {qemu_bytes} bytes of QEMU itself"
            );
            samples.push(sample);
        }
    }
    let aims = tell(&cells, &samples);
    for aim in &aims {
        println!("{aim}");
    }
    args.json.as_ref().map_or(Ok(()), |path| {
        Report::new(machine, caches::PROCEDURE, samples, aims).write(path)
    })
}

/// Prints the median of each cell, and returns the aims.
fn tell(cells: &[(Monitor, Mode)], samples: &[Restored]) -> Vec<Aim> {
    let of = |monitor, mode| {
        let mine = move |one: &&Restored| one.monitor == monitor && one.mode == mode;
        samples.iter().filter(mine)
    };
    let answer = |monitor, mode| {
        let times: Vec<_> = of(monitor, mode).map(|one| one.answer_ms).collect();
        median(&times)
    };
    for (monitor, mode) in cells {
        let most = of(*monitor, *mode).max_by_key(|one| one.disk_reads);
        let (Some(ms), Some(most)) = (answer(*monitor, *mode), most) else {
            continue;
        };
        println!(
            "{monitor:?}, {mode}: {ms:.0} ms, at most {} reads of the disk for {} bytes",
            most.disk_reads, most.disk_bytes
        );
    }
    println!();
    let ratio = |monitor, over, under| Some(answer(monitor, over)? / answer(monitor, under)?);
    let aims = Monitor::value_variants().iter().map(|monitor| {
        let name = |what: &str| format!("{monitor:?}: {what}");
        let to_warm = ratio(*monitor, Mode::Yolofs, Mode::Warm);
        let from_cold = ratio(*monitor, Mode::Native, Mode::Yolofs);
        [
            Aim::at_most(1.2, name("answer to warm"), to_warm),
            Aim::at_least(10.0, name("cold to yolofs"), from_cold),
        ]
    });
    aims.flatten().collect()
}
