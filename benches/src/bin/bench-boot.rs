//! Times whole boots: native cold, YOLO-style, yolofs, native warm.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use benches::aims;
use benches::boots::{Disk, Sample, Subject};
use benches::caches;
use benches::ending::end;
use benches::lab_args::LabArgs;
use benches::machine::Machine;
use benches::report::{Report, tables};
use benches::suite::{self, Comparison};
use benches::vm::Cache;
use clap::{Parser, ValueEnum};

/// Times whole boots, in turns, and compares them: native cold, answered by a daemon from memory
/// as YOLO does, yolofs, native warm
#[derive(Debug, Parser)]
#[command(
    name = "bench-boot",
    version,
    max_term_width = 100,
    after_help = "\
Prints a table for each condition and the aims. The exit code says only whether it \
could measure. docs/benchmarking.md says how to read the figures."
)]
struct Args {
    #[command(flatten)]
    lab: LabArgs,
    /// How often each mode takes its turn
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure these only
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    only: Vec<Part>,
    /// Read requests a second of the slow disk, for the container
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..))]
    iops: u32,
    /// Read requests a second of the slow disk, for the machine
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    vm_iops: u32,
    /// Write every sample to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    ContainerIdle,
    ContainerContended,
    VmIdle,
    VmSlow,
}

impl Part {
    fn comparisons(self, args: &Args) -> Vec<Comparison> {
        let rounds = args.rounds;
        let container = |disk| {
            vec![Comparison {
                subject: Subject::Container,
                disk,
                rounds,
            }]
        };
        let machine = |disk| {
            let caches = [Cache::Writeback, Cache::None];
            caches
                .map(|cache| Comparison {
                    subject: Subject::Vm(cache),
                    disk,
                    rounds,
                })
                .to_vec()
        };
        match self {
            Self::ContainerIdle => container(Disk::Idle),
            Self::ContainerContended => container(Disk::Contended(args.iops)),
            Self::VmIdle => machine(Disk::Idle),
            Self::VmSlow => machine(Disk::Slow(args.vm_iops)),
        }
    }
}

fn main() -> ExitCode {
    end(&run(&Args::parse()))
}

fn run(args: &Args) -> anyhow::Result<()> {
    let lab = args.lab.open()?;
    let machine = Machine::look();
    let parts = Part::value_variants().iter().copied();
    let wanted = parts.filter(|part| args.only.is_empty() || args.only.contains(part));
    let comparisons: Vec<_> = wanted.flat_map(|part| part.comparisons(args)).collect();
    let mut subjects: Vec<_> = comparisons
        .iter()
        .map(|comparison| comparison.subject)
        .collect();
    // Both uses of the cache share a recording.
    subjects.dedup_by_key(|subject| benches::boots::image_of(*subject));
    subjects.sort_unstable();
    subjects.dedup_by_key(|subject| benches::boots::image_of(*subject));
    for subject in subjects {
        eprintln!("recording the boot of a {subject}");
        lab.record(subject, 2)?;
    }
    let samples = suite::run(&lab, &comparisons, heard)?;
    let aims = aims::of_boots(&samples);
    print!("{}", tables(&samples));
    println!();
    for aim in &aims {
        println!("{aim}");
    }
    args.json.as_ref().map_or(Ok(()), |path| {
        Report::new(machine, caches::PROCEDURE, samples, aims).write(path)
    })
}

fn heard(sample: &Sample) {
    let Sample {
        subject,
        disk,
        mode,
        round,
        ready_ms,
        ..
    } = sample;
    eprintln!("{subject}, {disk}, round {round}: {mode} {ready_ms:.0} ms");
}
