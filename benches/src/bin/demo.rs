//! The demonstration behind scripts/demo.sh: records two real boots and shows them again, served
//! from a cold disk, from a daemon, and from the page cache; then with a slow and busy disk; then
//! an image under Docker on such a disk.

#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use benches::boots::{Disk, Lab, Sample, Subject};
use benches::containers::lab::{ContainerLab, Neighbourhood};
use benches::containers::program::Program;
use benches::containers::sample::{self, Group, Way};
use benches::containers::turns;
use benches::ending::end;
use benches::interrupt;
use benches::lab_args::{LabArgs, Places};
use benches::report::tables;
use benches::suite::{self, Comparison};
use benches::vm::Cache;
use clap::Parser;

/// Read requests a second of a busy disk's share.
const SLOW_IOPS: u32 = 150;
const CONTAINER: Subject = Subject::Container;
const MACHINE: Subject = Subject::Vm(Cache::Writeback);
const BUSY: Disk = Disk::Contended(SLOW_IOPS);
/// What Docker runs.
const IMAGE: Program = Program::Nginx;
/// How many reads a neighbour keeps in flight while Docker runs it: a cold start takes seconds.
const LIGHT_DEPTH: u32 = 2;

/// Records the boots of a container and of a virtual machine, and compares how they go
#[derive(Debug, Parser)]
#[command(name = "demo", version, max_term_width = 100)]
struct Args {
    #[command(flatten)]
    lab: LabArgs,
    /// How often each mode takes its turn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Which of the images is the disk of the Docker that is shown
    #[arg(long, value_name = "FILE", default_value = "engines-nginx.ext4")]
    stage: PathBuf,
    /// Which part is shown: boots of the rig itself, which need less, or Docker
    #[arg(long, value_name = "PART", default_value = "all")]
    part: Part,
}

/// A part of the demonstration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// A container and a virtual machine, booted by the rig itself.
    Boots,
    /// `docker run`.
    Docker,
    /// Both.
    All,
}

fn main() -> ExitCode {
    end(&run(&Args::parse()))
}

fn run(args: &Args) -> anyhow::Result<()> {
    let places = args.lab.set_up()?;
    if args.part != Part::Docker {
        boots(args, &places)?;
    }
    if args.part != Part::Boots
        && let Err(error) = containers(args, &places)
    {
        interrupt::check()?;
        forget_progress();
        println!("\nDocker is left out: it cannot be shown here.\n  {error:#}");
    }
    if args.part != Part::Boots {
        println!("{LEGEND}");
    }
    Ok(())
}

/// Shows a container and a virtual machine, booted by the rig itself.
fn boots(args: &Args, places: &Places) -> anyhow::Result<()> {
    let lab = Lab::open(&places.images, &places.bin)?;
    println!(
        "Each boot runs once on a mount that notes what it reads, and is repeated then, with the disk \
         to itself\n(medians of {}):\n",
        args.rounds
    );
    for subject in [CONTAINER, MACHINE] {
        let said = lab.record(subject, 1)?;
        println!("{subject}: recorded {}", recorded(&said));
        compare(&lab, args.rounds, Disk::Idle, subject)?;
    }
    if let Err(error) = suite::throttle(&lab, BUSY) {
        println!("The comparison on a slow disk is left out: this machine cannot slow one down.");
        println!("  {error:#}");
        return Ok(());
    }
    println!("\nBooting again, with {SLOW_IOPS} reads a second and a neighbour that reads, too:\n");
    for subject in [CONTAINER, MACHINE] {
        compare(&lab, args.rounds, BUSY, subject)?;
    }
    Ok(())
}

/// Shows `docker run` by a Docker of the rig's own, whose layers are cold, served, or warm.
fn containers(args: &Args, places: &Places) -> anyhow::Result<()> {
    let image = IMAGE.image();
    println!("\nDocker: docker run {image} until it answers, on such a disk:\n");
    let around = Neighbourhood {
        iops: SLOW_IOPS,
        depth: LIGHT_DEPTH,
    };
    let lab = ContainerLab::open(&places.images.join(&args.stage), &places.bin, around)?;
    lab.record(IMAGE)?;
    let mut samples = Vec::new();
    let comparison = turns::Comparison {
        subject: image,
        programs: &[IMAGE],
        disk: BUSY,
        ways: &Way::COMPARED,
        rounds: args.rounds,
    };
    comparison.run(&lab, |sample| {
        let sample::Sample {
            mode,
            round,
            ready_ms,
            ..
        } = &sample;
        progress(format_args!(
            "{image}, round {round}: {mode} {ready_ms:.0} ms"
        ));
        samples.push(sample);
    })?;
    forget_progress();
    let groups = Group::all(&samples);
    let group = groups.first().context("nothing was measured")?;
    println!("{}", group.table());
    let [cold, ours, _] = Way::COMPARED.map(|way| group.ready(way));
    if let Some((cold, ours)) = cold.zip(ours) {
        let faster = cold / ours;
        println!("docker run {image} on a busy disk is {faster:.1} times as fast with yolofs.");
    }
    Ok(())
}

const LEGEND: &str = "
native cold   from the disk, with empty caches
YOLO-style    a daemon answers each read from the boot image in memory
yolofs        the boot image was pushed into the page cache before the boot
native warm   from the disk's own page cache after a boot: as fast as it goes

x warm: time over native warm. requests, READ: what the boot asked the daemon.
docs/benchmarking.md says how to measure with more rounds, and how to read it.";

/// Carries out a comparison, and prints its table.
fn compare(lab: &Lab, rounds: u32, disk: Disk, subject: Subject) -> anyhow::Result<()> {
    let comparison = Comparison {
        subject,
        disk,
        rounds,
    };
    let samples = suite::run(lab, &[comparison], heard)?;
    forget_progress();
    println!("{}", tables(&samples));
    Ok(())
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
    progress(format_args!(
        "{subject}, {disk}, round {round}: {mode} {ready_ms:.0} ms"
    ));
}

/// Shows on a terminal how far it is.
fn progress(text: impl Display) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
        let _only_looks = std::io::stderr().flush();
    }
}

fn forget_progress() {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

/// Says in words what `bootimg record --json` said.
fn recorded(said: &serde_json::Value) -> String {
    let number = |key: &str| said[key].as_u64().unwrap_or(0);
    let ready = said["runs"][0]["ready_ms"].as_u64().unwrap_or(0);
    let mib = number("blocks") * 4096 / (1 << 20);
    format!(
        "{} files, {mib} MiB of them read, ready after {ready} ms",
        number("files")
    )
}
