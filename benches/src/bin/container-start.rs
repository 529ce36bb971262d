//! Shows where `docker run` spends its time, in reads and in writes.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use benches::boots::Disk;
use benches::containers::lab::{ContainerLab, Neighbourhood};
use benches::containers::phases::Phase;
use benches::containers::program::Program;
use benches::containers::sample::Way;
use benches::ending::end;
use benches::lab_args::LabArgs;
use benches::report::count;
use benches::rounds::median;
use clap::Parser;

/// Times the parts of a container's start, and counts what they read, write and wait for
#[derive(Debug, Parser)]
#[command(name = "container-start", version, max_term_width = 100)]
struct Args {
    #[command(flatten)]
    lab: LabArgs,
    /// What is started
    #[arg(long, value_name = "NAME", default_value = "nginx")]
    image: Program,
    /// How often each condition is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    /// Read requests a second of the slow disk
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..))]
    iops: u32,
    /// Requests that the neighbour keeps in flight
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..64))]
    depth: u32,
}

fn main() -> ExitCode {
    end(&run(&Args::parse()))
}

fn run(args: &Args) -> anyhow::Result<()> {
    let around = Neighbourhood {
        iops: args.iops,
        depth: args.depth,
    };
    let places = args.lab.set_up()?;
    let lab = ContainerLab::open(&places.images, &places.bin, around)?;
    lab.record(args.image)?;
    let contended = Disk::Contended(args.iops);
    let conditions = [
        (Way::NativeWarm, Disk::Idle),
        (Way::NativeCold, Disk::Idle),
        (Way::NativeWarm, contended),
        (Way::Yolofs, contended),
        (Way::NativeCold, contended),
    ];
    for (way, disk) in conditions {
        let starts = (0..args.samples).map(|_| lab.phases(args.image, disk, way));
        let starts = starts.collect::<anyhow::Result<Vec<_>>>()?;
        println!("{}, {way}, {disk}", args.image.image());
        print!("{}", table(&starts));
    }
    println!("files that the engine waits for, and how often, in one start");
    for (file, times) in lab.synced(args.image)? {
        println!("  {times:4}  {file}");
    }
    Ok(())
}

/// Returns the medians of each part.
fn table(starts: &[Vec<Phase>]) -> String {
    let parts = starts.first().map_or(0, Vec::len);
    let mut text = format!(
        "  {:38} {:>8} {:>6} {:>7}\n",
        "", "median", "reads", "writes"
    );
    for part in 0..parts {
        let phases: Vec<_> = starts.iter().filter_map(|start| start.get(part)).collect();
        let of = |value: fn(&Phase) -> f64| {
            let values: Vec<_> = phases.iter().map(|phase| value(phase)).collect();
            median(&values).unwrap_or_default()
        };
        text.push_str(&format!(
            "  {:38} {:5.0} ms {:6.0} {:7.0}\n",
            phases.first().map_or("", |phase| phase.name),
            of(|phase| phase.ms),
            of(|phase| count(phase.reads)),
            of(|phase| count(phase.writes)),
        ));
    }
    text
}
