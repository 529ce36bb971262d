//! The demonstration behind scripts/demo.sh: records two real boots and shows them again, served
//! from a cold disk, from a daemon, and from the page cache; then with a slow and busy disk.

#![forbid(unsafe_code)]

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use benches::boots::{Disk, Lab, Sample, Subject};
use benches::ending::end;
use benches::lab_args::LabArgs;
use benches::report::tables;
use benches::suite::{self, Comparison};
use benches::vm::Cache;
use clap::Parser;

/// Read requests a second of a busy disk's share.
const SLOW_IOPS: u32 = 150;
const CONTAINER: Subject = Subject::Container;
const MACHINE: Subject = Subject::Vm(Cache::Writeback);

/// Records the boots of a container and of a virtual machine, and compares how they go
#[derive(Debug, Parser)]
#[command(name = "demo", version, max_term_width = 100)]
struct Args {
    #[command(flatten)]
    lab: LabArgs,
    /// How often each mode takes its turn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

fn main() -> ExitCode {
    end(&run(&Args::parse()))
}

fn run(args: &Args) -> anyhow::Result<()> {
    let lab = args.lab.open()?;
    println!("Recording: each boot runs once on a mount that notes what it reads.");
    for subject in [CONTAINER, MACHINE] {
        let said = lab.record(subject, 1)?;
        println!("  {subject}: {}", recorded(&said));
    }
    println!(
        "\nBooting, with the disk to itself (medians of {}):\n",
        args.rounds
    );
    compare(&lab, args.rounds, Disk::Idle)?;
    let busy = Disk::Contended(SLOW_IOPS);
    if let Err(error) = suite::throttle(&lab, busy) {
        println!("The comparison on a slow disk is left out: this machine cannot slow one down.");
        println!("  {error:#}");
        return Ok(());
    }
    println!("\nBooting again, with {SLOW_IOPS} reads a second and a neighbour that reads, too:\n");
    compare(&lab, args.rounds, busy)?;
    println!("{LEGEND}");
    Ok(())
}

const LEGEND: &str = "
native cold   from the disk, with empty caches
YOLO-style    a daemon answers each read from the boot image in memory
yolofs        the boot image was pushed into the page cache before the boot
native warm   from the disk's own page cache after a boot: as fast as it goes

x warm: time over native warm. requests, READ: what the boot asked the daemon.
docs/benchmarking.md says how to measure with more rounds, and how to read it.";

/// Carries out one comparison of each subject, and prints its table.
fn compare(lab: &Lab, rounds: u32, disk: Disk) -> anyhow::Result<()> {
    for subject in [CONTAINER, MACHINE] {
        let samples = suite::run(
            lab,
            &[Comparison {
                subject,
                disk,
                rounds,
            }],
            heard,
        )?;
        forget_progress();
        println!("{}", tables(&samples));
    }
    Ok(())
}

/// Shows on a terminal how far it is.
fn heard(sample: &Sample) {
    if std::io::stderr().is_terminal() {
        let Sample {
            subject,
            disk,
            mode,
            round,
            ready_ms,
            ..
        } = sample;
        eprint!("\r\x1b[K{subject}, {disk}, round {round}: {mode} {ready_ms:.0} ms");
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
