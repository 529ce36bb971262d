//! Measures what boots are made of, beside the aims.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use benches::boots::{Lab, Subject};
use benches::caches;
use benches::ending::end;
use benches::lab_args::LabArgs;
use benches::machine::Machine;
use benches::micro::hot::HotTree;
use benches::micro::{hot, lookup, memory, prewarm, size};
use benches::results::Results;
use clap::{Parser, ValueEnum};

/// Measures hot reads and names against native, prewarming, memory, size and look-ups
#[derive(Debug, Parser)]
#[command(
    name = "bench-micro",
    version,
    max_term_width = 100,
    after_help = "\
Prints the aims beside what was measured. The exit code says only whether it could \
measure. docs/benchmarking.md says how to read the figures."
)]
struct Args {
    #[command(flatten)]
    lab: LabArgs,
    /// How often each side takes its turn
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Boots over which the daemon's memory is watched
    #[arg(long, value_name = "N", default_value_t = 1000)]
    boots: u32,
    /// Measure these only
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    only: Vec<Part>,
    /// Write every sample to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Hot reads, stat and small files against native
    Hot,
    /// Prewarming from memory
    Prewarm,
    /// Prewarming from a slow disk
    SlowPrewarm,
    /// Size of a boot image
    Size,
    /// The daemon's memory over many boots
    Memory,
    /// Extent look-ups
    Lookup,
}

fn main() -> ExitCode {
    end(&run(&Args::parse()))
}

fn run(args: &Args) -> anyhow::Result<()> {
    let lab = args.lab.open()?;
    let machine = Machine::look();
    let mut results = Results::default();
    measure(args, &lab, &mut results)?;
    results.conclude(machine, caches::PROCEDURE, args.json.as_deref())
}

fn measure(args: &Args, lab: &Lab, results: &mut Results) -> anyhow::Result<()> {
    let wanted = |part| args.only.is_empty() || args.only.contains(&part);
    let at = lab.home().join("mount");
    if wanted(Part::Lookup) {
        let (series, aim) = lookup::measure(args.rounds);
        results.add([series], [aim]);
    }
    if wanted(Part::Hot) || wanted(Part::Prewarm) {
        let tree = HotTree::make(lab)?;
        if wanted(Part::Hot) {
            let (series, aims) = hot::measure(lab.programs(), &tree, &at, args.rounds)?;
            results.add(series, aims);
        }
        if wanted(Part::Prewarm) {
            let (series, aim) = prewarm::from_memory(lab, &tree, &at, args.rounds)?;
            results.add([series], [aim]);
        }
    }
    if wanted(Part::Size) || wanted(Part::Memory) {
        lab.record(Subject::Container, 1)?;
    }
    if wanted(Part::Size) {
        let (series, aim) = size::measure(lab)?;
        results.add([series], [aim]);
    }
    if wanted(Part::SlowPrewarm) {
        let (series, aim) = prewarm::from_slow_disk(lab, args.rounds)?;
        results.add(series, [aim]);
    }
    if wanted(Part::Memory) {
        let (series, aims) = memory::over_boots(lab, args.boots)?;
        results.add([series], aims);
    }
    Ok(())
}
