//! Times starts of programs whose root is far away, and prints the aims.

#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use benches::ending::end;
use benches::far::lab::{Lab, Line, PROCEDURE};
use benches::far::sample::{Point, Sample, Way};
use benches::far::table::Measured;
use benches::far::{crowd, faults, plot};
use benches::interrupt;
use benches::lab_args::LabArgs;
use benches::machine::Machine;
use benches::micro::Series;
use benches::report::Report;
use benches::rounds::Shuffle;
use clap::Parser;

/// Times starts from a block service behind lines of several lengths and rates
#[derive(Debug, Parser)]
#[command(
    name = "bench-far",
    version,
    max_term_width = 100,
    after_help = "\
Prints the aims beside what was measured. The exit code says only whether it could \
measure. docs/benchmarking.md says how to read the figures."
)]
struct Args {
    #[command(flatten)]
    lab: LabArgs,
    /// How often each way takes its turn on each line
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    /// So many samples, on a line of 20 ms and 1000 Mbit/s only
    #[arg(long, value_name = "N", conflicts_with_all = ["samples", "rtt", "mbit"], value_parser = clap::value_parser!(u32).range(1..))]
    quick: Option<u32>,
    /// Round trips, in milliseconds
    #[arg(
        long,
        value_name = "MS",
        value_delimiter = ',',
        default_value = "0,1,5,20,80"
    )]
    rtt: Vec<u64>,
    /// Rates, in millions of bits a second
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "25,100,1000,10000"
    )]
    mbit: Vec<u64>,
    /// Measure these ways only
    #[arg(
        long,
        value_name = "WAY",
        value_delimiter = ',',
        default_value = "native,boot-image,on-demand"
    )]
    ways: Vec<Way>,
    /// So many machines start at once, too, on the first line of the table (of 20 ms with --quick)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=64))]
    machines: Option<u32>,
    /// Start while the service stalls, dies or lies, too, on that line
    #[arg(long)]
    faults: bool,
    /// Pass this on to `nicfetch serve`; can be repeated
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    serve: Vec<String>,
    /// Write every sample to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the tables to this file
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Draw the tables to this file (SVG)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Write the frames of the last sample of each way to files with this prefix
    #[arg(long, value_name = "PREFIX")]
    frames: Option<PathBuf>,
}

fn main() -> ExitCode {
    end(&run(&Args::parse()))
}

fn run(args: &Args) -> anyhow::Result<()> {
    let machine = Machine::look();
    let places = args.lab.set_up()?;
    let lab = Lab::open(&places, &args.serve)?;
    let (samples, mut series) = (samples(args, &lab)?, Vec::new());
    let first = points(args)
        .first()
        .copied()
        .context("no line is to be measured")?;
    let turns = args.quick.unwrap_or(args.samples);
    if let Some(machines) = args.machines {
        let machines = usize::try_from(machines).context("so many machines")?;
        show(&mut series, crowd::measure(&lab, machines, first, turns)?);
    }
    if args.faults {
        show(&mut series, faults::measure(&lab, first, turns)?);
    }
    let measured = Measured {
        samples: &samples,
        floor: lab.floor(),
    };
    let tables = measured.markdown();
    println!("{tables}");
    let aims = measured.aims();
    aims.iter().for_each(|aim| println!("{aim}"));
    write(args.markdown.as_deref(), &tables)?;
    write(args.plot.as_deref(), &plot::svg(&measured))?;
    args.json.as_ref().map_or(Ok(()), |path| {
        Report::new(machine, PROCEDURE, &samples, aims)
            .with_series(series)
            .write(path)
    })
}

fn points(args: &Args) -> Vec<Point> {
    if args.quick.is_some() {
        return vec![Point {
            rtt_ms: 20,
            mbit: 1000,
        }];
    }
    let rates = |rtt_ms| args.mbit.iter().map(move |&mbit| Point { rtt_ms, mbit });
    args.rtt.iter().copied().flat_map(rates).collect()
}

/// Has all ways take their turns on all lines, in a shuffled order in each round.
fn samples(args: &Args, lab: &Lab) -> anyhow::Result<Vec<Sample>> {
    let mut shuffle = Shuffle::from_clock();
    let mut samples = Vec::new();
    for round in 0..args.quick.unwrap_or(args.samples) {
        for point in shuffle.order(&points(args)) {
            for way in shuffle.order(&args.ways) {
                interrupt::check()?;
                let (sample, line) = lab.sample(way, point)?;
                let (call, after) = (sample.from_call_ms(), sample.after_ms);
                let wire = &sample.wire;
                eprintln!(
                    "{round} {way:15} {point:20} {call:7.0} {after:7.0} ms {:9} B {:4} requests {:3} twice",
                    wire.down, wire.requests, wire.twice
                );
                write_frames(args, way, line.as_ref())?;
                samples.push(sample);
            }
        }
    }
    Ok(samples)
}

fn write_frames(args: &Args, way: Way, line: Option<&Line>) -> anyhow::Result<()> {
    let Some((prefix, line)) = args.frames.as_ref().zip(line) else {
        return Ok(());
    };
    let mut path = prefix.clone().into_os_string();
    path.push(format!("{way:?}.log"));
    write(Some(Path::new(&path)), &line.frames.log())
}

fn write(path: Option<&Path>, text: &str) -> anyhow::Result<()> {
    path.map_or(Ok(()), |path| {
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    })
}

fn show(all: &mut Vec<Series>, more: impl IntoIterator<Item = Series>) {
    for series in more {
        println!("{series}");
        all.push(series);
    }
}
