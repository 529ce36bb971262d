//! Measures block images, beside the aims.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use benches::aims::Aim;
use benches::block::{convert, index, loading, reads, starts, subject::Subject};
use benches::ending::end;
use benches::lab_args::LabArgs;
use benches::machine::Machine;
use benches::micro::Series;
use benches::results::Results;
use clap::{Parser, ValueEnum};

/// Measures look-ups, random reads, starts and conversions of block images
#[derive(Debug, Parser)]
#[command(
    name = "bench-block",
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
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
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
    /// Look-ups in the index, and opening a layer with a long one
    Index,
    /// Random reads of the file export, of NBD, and of ublk devices if the kernel has them
    Reads,
    /// Starts over a line of 25 Mbit/s and 20 ms, and warm ones
    Starts,
    /// Conversions of a container image
    Convert,
}

const PROCEDURE: &str = "starts over the line are of machines that have nothing of the image, with the \
registry's blobs in the page cache; everything else is warm";

fn main() -> ExitCode {
    end(&run(&Args::parse()))
}

fn run(args: &Args) -> anyhow::Result<()> {
    let machine = Machine::look();
    let places = args.lab.set_up()?;
    let wanted = |part| args.only.is_empty() || args.only.contains(&part);
    let mut results = Results::default();
    let mut add = |(series, aims): (Vec<Series>, Vec<Aim>)| results.add(series, aims);
    if wanted(Part::Index) {
        add(index::measure(args.rounds)?);
        add(loading::measure(args.rounds)?);
    }
    if wanted(Part::Reads) {
        add(reads::measure(&places, args.rounds)?);
    }
    if wanted(Part::Starts) {
        add(starts::measure(Subject::new(&places)?, args.rounds)?);
    }
    if wanted(Part::Convert) {
        add(convert::measure(&places, args.rounds)?);
    }
    results.conclude(machine, PROCEDURE, args.json.as_deref())
}
