//! Times pulls and cold starts of images on tiers: disk, NVM, and what LASS and HIF put there.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use benches::ending::end;
use benches::interrupt;
use benches::lab_args::{LabArgs, Places};
use benches::machine::Machine;
use benches::report::Report;
use benches::rounds::Shuffle;
use benches::tier::deploy::{DeployLab, Pull, Rates, Strategy};
use benches::tier::lab::TierLab;
use benches::tier::{
    Footprint, Foreground, PROCEDURE, Start, WriteRate, of_migration, of_pulls, of_starts,
    pulls_table, starts_table,
};
use clap::{Parser, ValueEnum};
use serde::Serialize;

/// Times pulls and cold starts of images on a slow disk, on NVM, and with only what a pull or a
/// start needs on NVM, in turns, and compares times and bytes
#[derive(Debug, Parser)]
#[command(
    name = "bench-tier",
    version,
    max_term_width = 100,
    after_help = "\
Prints a line for each image and the aims. The exit code says only whether it could \
measure. docs/benchmarking.md says how to read the figures."
)]
struct Args {
    #[command(flatten)]
    lab: LabArgs,
    /// The stage, of those that scripts/images/tiers.sh makes
    #[arg(long, value_name = "FILE", default_value = "tiers.ext4")]
    stage: PathBuf,
    /// How often each way takes its turn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure these only
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    only: Vec<Part>,
    /// Measure these images only
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    image: Vec<String>,
    /// Requests a second of the disk, in either direction
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..))]
    iops: u32,
    /// Megabytes a second that the disk writes at most
    #[arg(long, value_name = "N", default_value_t = 126, value_parser = clap::value_parser!(u64).range(1..))]
    disk: u64,
    /// Megabits a second from the registry
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    line: u64,
    /// Write every sample to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Cold starts
    Starts,
    /// Pulls
    Pulls,
    /// Reads of the disk while something is moved
    Migration,
}

/// What was measured.
#[derive(Debug, Default, Serialize)]
struct Measured {
    starts: Vec<Start>,
    footprints: Vec<Footprint>,
    pulls: Vec<Pull>,
    migration: Vec<Foreground>,
}

fn main() -> ExitCode {
    end(&run(&Args::parse()))
}

fn run(args: &Args) -> anyhow::Result<()> {
    let places = args.lab.set_up()?;
    let machine = Machine::look();
    let wanted = |part| args.only.is_empty() || args.only.contains(&part);
    let mut measured = Measured::default();
    let lab = TierLab::open(&places.images.join(&args.stage), &places.bin, args.iops)?;
    let names = starts(args, &lab, wanted(Part::Starts), &mut measured)?;
    if wanted(Part::Migration) {
        let first = names.first().context("the stage has no images")?;
        measured.migration = lab.migration(first, &names, args.rounds, &mut read)?;
    }
    drop(lab);
    if wanted(Part::Pulls) {
        measured.pulls = pulls(args, &places, &names)?;
    }
    let mut aims = Vec::new();
    if !measured.starts.is_empty() {
        println!("{}", starts_table(&measured.starts, &measured.footprints));
        aims.extend(of_starts(&measured.starts, &measured.footprints));
    }
    if !measured.pulls.is_empty() {
        println!("{}", pulls_table(&measured.pulls));
        aims.extend(of_pulls(&measured.pulls));
    }
    if !measured.migration.is_empty() {
        aims.extend(of_migration(&measured.migration));
    }
    for aim in &aims {
        println!("{aim}");
    }
    args.json.as_ref().map_or(Ok(()), |path| {
        Report::new(machine, PROCEDURE, measured, aims).write(path)
    })
}

/// Times starts, if they are wanted, and returns the names of the images.
fn starts(
    args: &Args,
    lab: &TierLab,
    wanted: bool,
    measured: &mut Measured,
) -> anyhow::Result<Vec<String>> {
    let all: Vec<_> = lab.images().keys().cloned().collect();
    for image in &args.image {
        ensure!(
            all.contains(image),
            "the stage has no {image}; it has {}",
            all.join(", ")
        );
    }
    let chosen = |image: &String| args.image.is_empty() || args.image.contains(image);
    let names: Vec<_> = all.into_iter().filter(chosen).collect();
    for image in names.iter().filter(|_| wanted) {
        let (footprint, starts) = lab.measure(image, args.rounds, &mut started)?;
        measured.footprints.push(footprint);
        measured.starts.extend(starts);
    }
    let footprints = &mut measured.footprints;
    footprints.sort_by_key(|footprint| (footprint.category, footprint.image.clone()));
    Ok(names)
}

fn pulls(args: &Args, places: &Places, names: &[String]) -> anyhow::Result<Vec<Pull>> {
    let rates = Rates {
        disk: WriteRate {
            requests: args.iops,
            bytes: args.disk * 1_000_000,
        },
        line: args.line * 125_000,
    };
    let lab = DeployLab::open(&places.images, names, &places.bin, rates)?;
    lab.acquaint(names)?;
    let (mut pulls, mut shuffle) = (Vec::new(), Shuffle::from_clock());
    for image in names {
        for round in 1..=args.rounds {
            for strategy in shuffle.order(&Strategy::ALL) {
                interrupt::check()?;
                let pull = lab.pull(image, strategy, round)?;
                pulled(&pull);
                pulls.push(pull);
            }
        }
    }
    Ok(pulls)
}

fn started(start: &Start) {
    let Start {
        image,
        place,
        round,
        ready_ms,
        disk_reads,
        requests,
        ..
    } = start;
    let asked: u64 = requests.values().sum();
    eprintln!(
        "{image}, round {round}: {place} {ready_ms:.0} ms, {disk_reads} disk reads, {asked} requests"
    );
}

fn read(sample: &Foreground) {
    let Foreground {
        round,
        reads,
        p50_ms,
        moved_bytes,
        ..
    } = sample;
    let moved = moved_bytes / 1_000_000;
    eprintln!("round {round}: {reads} reads, {p50_ms:.1} ms the middle one, {moved} MB moved");
}

fn pulled(pull: &Pull) {
    let Pull {
        image,
        strategy,
        round,
        total_ms,
        storing_ms,
        ..
    } = pull;
    eprintln!(
        "{image}, round {round}: {strategy} {total_ms:.0} ms, {storing_ms:.0} ms of it storing after the download"
    );
}
