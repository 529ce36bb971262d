//! Measures lean sandboxes beside runc, crun, `docker run` and a plain process, in turns.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use benches::lab_args::LabArgs;
use benches::machine::Machine;
use benches::sandboxes::{self, Figure, Stage};
use clap::{Parser, ValueEnum};
use serde::Serialize;

/// How often the first request is measured: a cold one takes 17 seconds at 150 reads a second.
const FIRST_ROUNDS: u32 = 5;

/// Measures how long sandboxes take, how many there can be, and what Zygotes save
#[derive(Debug, Parser)]
#[command(name = "bench-sandbox", version, max_term_width = 100)]
struct Args {
    /// How often each side takes its turn
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How many sandboxes are alive at a time, paused
    #[arg(long, value_name = "N", default_value_t = 1000)]
    alive: u32,
    /// Measure these only
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    only: Vec<Part>,
    /// Read requests a second of the disk that the first request meets
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..))]
    iops: u32,
    #[command(flatten)]
    lab: LabArgs,
    /// Write every sample to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A no-op, made and gone
    Noop,
    /// Python with five modules, from a Zygote and fresh
    Python,
    /// How many a second, with several at once
    Rate,
    /// How many bare processes the kernel makes a second, by their namespaces
    Floor,
    /// One large package that all handlers import
    Package,
    /// Many that are alive
    Alive,
    /// The first request of a machine whose disk is slow and busy; needs the images of `scripts/images/stage.sh`
    First,
}

/// What a run found.
#[derive(Serialize)]
struct Found {
    machine: Machine,
    load_after: String,
    figures: Vec<Figure>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-sandbox: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    let wants = |part| args.only.is_empty() || args.only.contains(&part);
    let machine = Machine::look();
    println!(
        "load before {:.1}, {} processors",
        machine.load, machine.processors
    );
    // Before there are threads: it gives this process mounts of its own.
    let lab = wants(Part::First).then(|| args.lab.open()).transpose()?;
    let stage = Stage::set()?;
    let mut figures = Vec::new();
    let mut add = |found: Vec<Figure>| {
        for figure in &found {
            println!("{figure}");
        }
        figures.extend(found);
    };
    if wants(Part::Noop) {
        add(sandboxes::noop(&stage, args.rounds)?);
    }
    if wants(Part::Python) {
        add(sandboxes::python(&stage, args.rounds)?);
    }
    if wants(Part::Rate) {
        add(sandboxes::rates(&stage)?);
    }
    if wants(Part::Floor) {
        add(sandboxes::floor(&stage)?);
    }
    if wants(Part::Package) {
        add(sandboxes::package(&stage, args.rounds.min(100))?);
    }
    if wants(Part::Alive) {
        add(sandboxes::alive(&stage, args.alive)?);
    }
    if let Some(lab) = &lab {
        add(sandboxes::first(
            lab,
            args.iops,
            args.rounds.min(FIRST_ROUNDS),
        )?);
    }
    let load_after = std::fs::read_to_string("/proc/loadavg")?;
    println!("load after {}", load_after.trim());
    let found = Found {
        machine,
        load_after,
        figures,
    };
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_vec_pretty(&found)?)?;
    }
    Ok(())
}
