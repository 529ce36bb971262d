//! Times containers as people run them: native cold, yolofs, native warm.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use benches::aims::Aim;
use benches::boots::Disk;
use benches::containers::aims;
use benches::containers::lab::{ContainerLab, Neighbourhood, PROCEDURE, STAGE};
use benches::containers::program::Program;
use benches::containers::sample::{Group, Sample, Way};
use benches::containers::snapshots;
use benches::containers::turns::Comparison;
use benches::ending::end;
use benches::lab_args::LabArgs;
use benches::machine::Machine;
use benches::micro::Series;
use benches::report::Report;
use clap::{Parser, ValueEnum};

/// How often each snapshotter prepares a root: they take milliseconds.
const SNAPSHOTS: u32 = 300;

/// Times `docker run` until the program answers, in turns: native cold, yolofs, native warm
#[derive(Debug, Parser)]
#[command(
    name = "bench-containers",
    version,
    max_term_width = 100,
    after_help = "\
Prints a table for each image and condition, and the aims. The exit code says only \
whether it could measure. docs/benchmarking.md says how to read the figures."
)]
struct Args {
    #[command(flatten)]
    lab: LabArgs,
    /// Which of the images is the engine's disk: engines.sh NAME makes one with that program only
    #[arg(long, value_name = "FILE", default_value = STAGE)]
    stage: PathBuf,
    /// Measure these images only
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    image: Vec<Program>,
    /// How often each way takes its turn
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    /// Measure these only
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    only: Vec<Part>,
    /// Measure these ways only
    #[arg(long, value_name = "WAY", value_delimiter = ',')]
    ways: Vec<WayName>,
    /// Read requests a second of the disk
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..))]
    iops: u32,
    /// Requests that the neighbour keeps in flight
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..64))]
    depth: u32,
    /// Write every sample to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Each image alone, with the disk to itself
    Idle,
    /// Each image alone, contended
    Images,
    /// Ten containers of five images at once, contended
    Crowd,
    /// The first start of an image while it is recorded, contended
    Recording,
    /// How long a snapshotter takes to prepare a container's root
    Snapshots,
}

/// A way by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WayName {
    Cold,
    Yolofs,
    Warm,
}

fn main() -> ExitCode {
    end(&run(&Args::parse()))
}

fn run(args: &Args) -> anyhow::Result<()> {
    let machine = Machine::look();
    let Results {
        samples,
        series,
        mut aims,
    } = Bench::open(args)?.run()?;
    aims.splice(0..0, aims::of_samples(&samples));
    for group in Group::all(&samples) {
        println!("{}", group.table());
    }
    for one in &series {
        println!("{one}");
    }
    for aim in &aims {
        println!("{aim}");
    }
    args.json.as_ref().map_or(Ok(()), |path| {
        Report::new(machine, PROCEDURE, samples, aims)
            .with_series(series)
            .write(path)
    })
}

#[derive(Default)]
struct Results {
    samples: Vec<Sample>,
    series: Vec<Series>,
    /// Of what is not a start.
    aims: Vec<Aim>,
}

struct Bench<'a> {
    args: &'a Args,
    lab: ContainerLab,
    results: Results,
}

impl<'a> Bench<'a> {
    fn open(args: &'a Args) -> anyhow::Result<Self> {
        let around = Neighbourhood {
            iops: args.iops,
            depth: args.depth,
        };
        let places = args.lab.set_up()?;
        Ok(Self {
            args,
            lab: ContainerLab::open(&places.images.join(&args.stage), &places.bin, around)?,
            results: Results::default(),
        })
    }

    fn run(mut self) -> anyhow::Result<Results> {
        let args = self.args;
        let wanted =
            |part| args.only.contains(&part) || (args.only.is_empty() && part != Part::Idle);
        let images = if args.image.is_empty() {
            &Program::ALL[..]
        } else {
            &args.image
        };
        let contended = Disk::Contended(args.iops);
        // The shortest come first: whoever ends the run early has most of it.
        if wanted(Part::Snapshots) {
            let (series, aim) = snapshots::measure(&self.lab.containerd()?, SNAPSHOTS)?;
            self.results.series.extend(series);
            self.results.aims.push(aim);
        }
        if wanted(Part::Recording) {
            let subject = format!("first start of {}", images[0].image());
            let ways = [Way::NativeCold, Way::Recording];
            self.compare((&subject, &images[..1]), contended, &ways)?;
        }
        let starts = [Part::Idle, Part::Images, Part::Crowd]
            .into_iter()
            .any(wanted);
        for program in images
            .iter()
            .filter(|_| starts && self.is_wanted(Way::Yolofs))
        {
            eprintln!("recording {}", program.image());
            self.lab.record(*program)?;
        }
        if wanted(Part::Crowd) {
            let five = &images[..images.len().min(5)];
            let subject = format!(
                "{} containers of {} images at once",
                five.len() * 2,
                five.len()
            );
            self.compare((&subject, &five.repeat(2)), contended, &Way::COMPARED)?;
        }
        for (part, disk) in [(Part::Idle, Disk::Idle), (Part::Images, contended)] {
            for program in images.iter().filter(|_| wanted(part)) {
                self.compare((program.image(), &[*program]), disk, &Way::COMPARED)?;
            }
        }
        Ok(self.results)
    }

    /// Has the wanted ways take turns.
    fn compare(
        &mut self,
        (subject, programs): (&str, &[Program]),
        disk: Disk,
        ways: &[Way],
    ) -> anyhow::Result<()> {
        let ways: Vec<_> = ways
            .iter()
            .copied()
            .filter(|way| self.is_wanted(*way))
            .collect();
        let comparison = Comparison {
            subject,
            programs,
            disk,
            ways: &ways,
            rounds: self.args.samples,
        };
        comparison.run(&self.lab, |sample| {
            let Sample {
                subject,
                disk,
                mode,
                round,
                ready_ms,
                ..
            } = &sample;
            eprintln!("{subject}, {disk}, round {round}: {mode} {ready_ms:.0} ms");
            self.results.samples.push(sample);
        })
    }

    fn is_wanted(&self, way: Way) -> bool {
        let name = match way {
            Way::NativeCold | Way::Recording => WayName::Cold,
            Way::Yolofs => WayName::Yolofs,
            Way::NativeWarm => WayName::Warm,
        };
        self.args.ways.is_empty() || self.args.ways.contains(&name)
    }
}
