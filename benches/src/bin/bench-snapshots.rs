//! Restores of a saved machine, whose memory is mapped from a file.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use benches::aims::Aim;
use benches::caches;
use benches::ending::end;
use benches::lab_args::LabArgs;
use benches::machine::Machine;
use benches::report::Report;
use benches::rounds::{Shuffle, median};
use benches::yolo::Mode;
use benches::yolo::snapshot::{Memory, Restored, Snapshots, restore};
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
    if let [word, qemu, guest, dir] = &words[..]
        && word == RESTORE
    {
        let done = restore(Path::new(qemu), Path::new(guest), Path::new(dir));
        return end(&done.map(drop));
    }
    end(&run(&Args::parse()))
}

fn run(args: &Args) -> anyhow::Result<()> {
    let places = args.lab.set_up()?;
    let machine = Machine::look();
    eprintln!("saving a machine, and recording its restores");
    let snapshots = Snapshots::take(&places, &args.qemu, RESTORE)?;
    let all = Memory::value_variants().iter();
    let cells: Vec<_> = all
        .flat_map(|memory| MODES.map(|mode| (*memory, mode)))
        .collect();
    let mut shuffle = Shuffle::from_clock();
    let mut samples = Vec::new();
    for round in 1..=args.rounds {
        for (memory, mode) in shuffle.order(&cells) {
            let sample = snapshots.sample(memory, mode, args.iops);
            let sample = sample.with_context(|| format!("{memory:?}, {mode}"))?;
            let Restored {
                answer_ms,
                disk_reads,
                ..
            } = sample;
            eprintln!("round {round}: {memory:?}, {mode}: {answer_ms:.0} ms, {disk_reads} reads");
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
fn tell(cells: &[(Memory, Mode)], samples: &[Restored]) -> Vec<Aim> {
    let of = |memory, mode| {
        let mine = move |one: &&Restored| one.memory == memory && one.mode == mode;
        samples.iter().filter(mine)
    };
    let answer = |memory, mode| {
        let times: Vec<_> = of(memory, mode).map(|one| one.answer_ms).collect();
        median(&times)
    };
    for (memory, mode) in cells {
        let most = of(*memory, *mode).max_by_key(|one| one.disk_reads);
        let (Some(ms), Some(most)) = (answer(*memory, *mode), most) else {
            continue;
        };
        println!(
            "{memory:?}, {mode}: {ms:.0} ms, at most {} reads of the disk for {} bytes",
            most.disk_reads, most.disk_bytes
        );
    }
    println!();
    let ratio = |memory, over, under| Some(answer(memory, over)? / answer(memory, under)?);
    let aims = Memory::value_variants().iter().map(|memory| {
        let name = |what: &str| format!("{memory:?}: {what}");
        let to_warm = ratio(*memory, Mode::Yolofs, Mode::Warm);
        let from_cold = ratio(*memory, Mode::Native, Mode::Yolofs);
        [
            Aim::at_most(1.2, name("answer to warm"), to_warm),
            Aim::at_least(10.0, name("cold to yolofs"), from_cold),
        ]
    });
    aims.flatten().collect()
}
