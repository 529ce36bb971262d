//! Measures nicfetch beside what it replaces, and prints the aims.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use benches::ending::end;
use benches::lab_args::{LabArgs, Places};
use benches::machine::Machine;
use benches::nic::service::Nicfetch;
use benches::nic::site::Site;
use benches::nic::{blocks, connections, crowd, lazy, pulls};
use benches::results::Results;
use clap::{Parser, ValueEnum};

/// What "cold" and "warm" mean here, in words, for the report.
const PROCEDURE: &str = "the host's page cache is warm throughout; cold means that the server \
under test was started with an empty store, warm that it has served the image before";

/// Times nicfetch's blocks and mirror in turns with a registry, a pull-through proxy and tarballs
#[derive(Debug, Parser)]
#[command(
    name = "bench-nic",
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
    samples: u32,
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
    /// Reads of chunks over loopback, beside ranges of docker-registry
    Blocks,
    /// Pulls of an image over a slow line, beside other ways
    Pulls,
    /// Sixteen machines that pull at once, beside one
    Crowd,
    /// Starts of a container whose image is on the NIC, beside a local one and a tarball
    Lazy,
    /// Memory of the servers with a thousand connections
    Connections,
}

fn main() -> ExitCode {
    end(&run(&Args::parse()))
}

fn run(args: &Args) -> anyhow::Result<()> {
    let machine = Machine::look();
    let places = args.lab.set_up()?;
    let mut results = Results::default();
    measure(args, &places, &mut results)?;
    results.conclude(machine, PROCEDURE, args.json.as_deref())
}

fn measure(args: &Args, places: &Places, results: &mut Results) -> anyhow::Result<()> {
    let wanted = |part| args.only.is_empty() || args.only.contains(&part);
    let nicfetch = Nicfetch::new(&places.bin)?;
    let home = home(&places.images)?;
    if wanted(Part::Blocks) {
        let content = places.images.join("root.tar");
        let dir = home.path().join("blocks");
        let (series, aims) = blocks::measure(&nicfetch, &content, &dir, args.samples)?;
        results.add(series, aims);
    }
    if [Part::Pulls, Part::Crowd, Part::Lazy]
        .into_iter()
        .any(wanted)
    {
        let layout = places.images.join("oci");
        let site = Site::build(&home.path().join("site"), &layout)?;
        if wanted(Part::Pulls) {
            let (series, aims) = pulls::measure(&nicfetch, &site, args.samples)?;
            results.add(series, aims);
        }
        if wanted(Part::Crowd) {
            let (series, aims) = crowd::measure(&nicfetch, &site, args.samples)?;
            results.add(series, aims);
        }
        if wanted(Part::Lazy) {
            let image = lazy::Image::unpack(&layout, site.home())?;
            let (bin, samples) = (&places.bin, args.samples);
            let (series, aims) = lazy::measure(&nicfetch, &site, bin, &image, samples)?;
            results.add(series, aims);
        }
    }
    if wanted(Part::Connections) {
        let dir = home.path().join("connections");
        let (series, aims) = connections::measure(&nicfetch, &dir)?;
        results.add(series, aims);
    }
    Ok(())
}

/// Makes a directory on the disk that has the images: there is room, and `/tmp` may be memory.
fn home(images: &Path) -> anyhow::Result<tempfile::TempDir> {
    let beside = images
        .parent()
        .context("the directory of images has no parent")?;
    let home = tempfile::Builder::new().prefix("rig.").tempdir_in(beside);
    home.with_context(|| format!("making a directory in {}", beside.display()))
}
