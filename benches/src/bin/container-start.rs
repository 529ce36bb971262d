//! Shows where `docker run` and `ctr run` spend their time, in reads and in writes.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use benches::boots::Disk;
use benches::containers::ctr::Keeper;
use benches::containers::lab::{ContainerLab, Neighbourhood, STAGE};
use benches::containers::phases::Phase;
use benches::containers::program::Program;
use benches::containers::sample::Way;
use benches::ending::end;
use benches::lab_args::LabArgs;
use benches::report::count;
use benches::rounds::median;
use clap::{Parser, ValueEnum};

/// Times the parts of a container's start, and counts what they read, write and wait for
#[derive(Debug, Parser)]
#[command(name = "container-start", version, max_term_width = 100)]
struct Args {
    #[command(flatten)]
    lab: LabArgs,
    /// Which of the images is the engine's disk: engines.sh NAME makes one with that program only
    #[arg(long, value_name = "FILE", default_value = STAGE)]
    stage: PathBuf,
    /// What is started
    #[arg(long, value_name = "NAME", default_value = "nginx")]
    image: Program,
    /// How often each condition is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    /// Measure starts by this engine only
    #[arg(long, value_name = "ENGINE")]
    only: Option<Engine>,
    /// Read requests a second of the slow disk
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..))]
    iops: u32,
    /// Requests that the neighbour keeps in flight
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..64))]
    depth: u32,
}

/// Who starts containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    Docker,
    Containerd,
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
    let lab = ContainerLab::open(&places.images.join(&args.stage), &places.bin, around)?;
    if args.only != Some(Engine::Containerd) {
        docker(args, &lab)?;
    }
    if args.only != Some(Engine::Docker) {
        containerd(args, &lab)?;
    }
    Ok(())
}

fn docker(args: &Args, lab: &ContainerLab) -> anyhow::Result<()> {
    lab.record(args.image)?;
    let busy = Disk::Contended(args.iops);
    let conditions = [
        (Way::NativeWarm, Disk::Idle),
        (Way::NativeCold, Disk::Idle),
        (Way::NativeWarm, busy),
        (Way::Yolofs, busy),
        (Way::NativeCold, busy),
    ];
    for (way, disk) in conditions {
        let title = format!("docker run, {way}, {disk}");
        show(args, &title, || lab.phases(args.image, disk, way))?;
    }
    let title = format!("docker run, recorded, {busy}");
    show(args, &title, || lab.phases_recorded(args.image, busy))?;
    print!("docker run: {}", synced(&lab.synced(args.image)?));
    Ok(())
}

fn containerd(args: &Args, lab: &ContainerLab) -> anyhow::Result<()> {
    for keeper in Keeper::ALL {
        let ctr = lab.ctr(keeper, args.image)?;
        for (way, disk) in ways_of(keeper, Disk::Contended(args.iops)) {
            let title = format!("ctr run, {keeper}, {way}, {disk}");
            show(args, &title, || lab.phases_of_ctr(&ctr, disk, way))?;
        }
        print!("ctr run, {keeper}: {}", synced(&lab.synced_by_ctr(&ctr)?));
    }
    Ok(())
}

/// Measures a start some times, and prints the medians of its parts.
fn show(
    args: &Args,
    title: &str,
    start: impl FnMut() -> anyhow::Result<Vec<Phase>>,
) -> anyhow::Result<()> {
    let samples = usize::try_from(args.samples)?;
    let starts = std::iter::repeat_with(start).take(samples);
    let starts = starts.collect::<anyhow::Result<Vec<_>>>()?;
    println!("{}, {title}", args.image.image());
    print!("{}", table(&starts));
    Ok(())
}

/// What is measured of a start by containerd.
fn ways_of(keeper: Keeper, busy: Disk) -> Vec<(Way, Disk)> {
    match keeper {
        Keeper::Overlayfs => vec![(Way::NativeWarm, busy), (Way::NativeCold, busy)],
        Keeper::Yolofs | Keeper::YolofsTmpfs => vec![(Way::Yolofs, busy)],
    }
}

/// Tells which files are waited for in one start.
fn synced(files: &BTreeMap<String, u64>) -> String {
    let mut text = format!(
        "{} waits for a file to be written\n",
        files.values().sum::<u64>()
    );
    for (file, times) in files {
        text.push_str(&format!("  {times:4}  {file}\n"));
    }
    text
}

/// Returns the medians of each part.
fn table(starts: &[Vec<Phase>]) -> String {
    let parts = starts.first().map_or(0, Vec::len);
    let mut text = format!(
        "  {:56} {:>8} {:>6} {:>7}\n",
        "", "median", "reads", "writes"
    );
    for part in 0..parts {
        let phases: Vec<_> = starts.iter().filter_map(|start| start.get(part)).collect();
        let of = |value: fn(&Phase) -> f64| {
            let values: Vec<_> = phases.iter().map(|phase| value(phase)).collect();
            median(&values).unwrap_or_default()
        };
        text.push_str(&format!(
            "  {:56} {:5.0} ms {:6.0} {:7.0}\n",
            phases.first().map_or("", |phase| phase.name),
            of(|phase| phase.ms),
            of(|phase| count(phase.reads)),
            of(|phase| count(phase.writes)),
        ));
    }
    text
}
