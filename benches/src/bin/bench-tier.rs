//! Times cold starts of images on tiers: disk, NVM, hot files and hot blocks.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use benches::ending::end;
use benches::lab_args::LabArgs;
use benches::machine::Machine;
use benches::report::Report;
use benches::tier::{Footprint, PROCEDURE, Start, TierLab, of_starts, tables};
use clap::Parser;
use serde::Serialize;

/// Times cold starts of images that lie on a slow disk, on NVM, or of which only what a start
/// needs lies on NVM, in turns, and compares times and bytes
#[derive(Debug, Parser)]
#[command(
    name = "bench-tier",
    version,
    max_term_width = 100,
    after_help = "\
Prints a line for each image and what issue 6 asks for. The exit code says only whether it could \
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
    /// Measure these images only
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    image: Vec<String>,
    /// Read requests a second of the disk
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..))]
    iops: u32,
    /// Write every sample to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What was measured.
#[derive(Debug, Serialize)]
struct Measured {
    starts: Vec<Start>,
    footprints: Vec<Footprint>,
}

fn main() -> ExitCode {
    end(&run(&Args::parse()))
}

fn run(args: &Args) -> anyhow::Result<()> {
    let places = args.lab.set_up()?;
    let lab = TierLab::open(&places.images.join(&args.stage), &places.bin, args.iops)?;
    let machine = Machine::look();
    for image in &args.image {
        ensure!(
            lab.images().contains_key(image),
            "the stage has no {image}; it has {}",
            lab.images().keys().cloned().collect::<Vec<_>>().join(", ")
        );
    }
    let (mut starts, mut footprints) = (Vec::new(), Vec::new());
    for image in lab.images().keys() {
        if !args.image.is_empty() && !args.image.contains(image) {
            continue;
        }
        let (footprint, measured) = lab.measure(image, args.rounds, &mut heard)?;
        footprints.push(footprint);
        starts.extend(measured);
    }
    footprints.sort_by_key(|footprint| (footprint.category, footprint.image.clone()));
    let aims = of_starts(&starts, &footprints);
    println!("{}", tables(&starts, &footprints));
    for aim in &aims {
        println!("{aim}");
    }
    args.json.as_ref().map_or(Ok(()), |path| {
        let measured = Measured { starts, footprints };
        Report::new(machine, PROCEDURE, measured, aims).write(path)
    })
}

fn heard(start: &Start) {
    let Start {
        image,
        place,
        round,
        ready_ms,
        disk_reads,
        ..
    } = start;
    eprintln!("{image}, round {round}: {place} {ready_ms:.0} ms, {disk_reads} disk reads");
}
