//! The evaluation of the YOLO paper, in small.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use benches::caches;
use benches::ending::end;
use benches::lab_args::LabArgs;
use benches::machine::Machine;
use benches::report::Report;
use benches::rounds::Shuffle;
use benches::yolo::{Cache, Cell, Disk, Images, Mode, Sample, Site, figures};
use clap::{Parser, ValueEnum};
use serde_json::Value;

/// Boots light machines as the YOLO paper does: many at once, and one beside noisy neighbours, from a slow disk and from
/// yolofs
#[derive(Debug, Parser)]
#[command(
    name = "bench-yolo",
    version,
    max_term_width = 100,
    after_help = "\
Prints a table and the aims; the exit code says only whether it could measure. It drops the page cache of the whole \
machine before each sample."
)]
struct Args {
    #[command(flatten)]
    lab: LabArgs,
    /// How often each cell takes its turn; with 0, only samples of earlier runs are told
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u32,
    /// Measure this part only
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Disks that are imitated
    #[arg(long, value_delimiter = ',', default_values = ["hdd", "ssd"])]
    disks: Vec<Disk>,
    /// How QEMU reads, with neighbours
    #[arg(long, value_delimiter = ',', default_values = ["writeback", "writethrough", "none"])]
    caches: Vec<Cache>,
    /// Numbers of neighbours of one machine
    #[arg(long, value_delimiter = ',', default_values = ["0", "1", "5", "15"])]
    neighbours: Vec<u32>,
    /// Numbers of machines at once
    #[arg(long, value_delimiter = ',', default_values = ["1", "16"])]
    machines: Vec<usize>,
    /// Take the samples of this report of an earlier run, too
    #[arg(long, value_name = "FILE")]
    with: Vec<PathBuf>,
    /// Write every sample to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the figures into this directory
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
}

/// What can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Many machines at once.
    Machines,
    /// One machine beside neighbours.
    Neighbours,
}

impl Args {
    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for disk in &self.disks {
            for mode in Mode::value_variants() {
                let cell = Cell {
                    disk: *disk,
                    cache: Cache::Writeback,
                    images: Images::Shared,
                    machines: 1,
                    neighbours: 0,
                    mode: *mode,
                };
                let has = |part| self.only.is_none_or(|only| only == part);
                // Warm machines read through the page cache, whatever the others do.
                let caches: &[Cache] = match mode {
                    Mode::Warm => &[Cache::Writeback],
                    _ => &self.caches,
                };
                for cache in caches.iter().filter(|_| has(Part::Neighbours)) {
                    let beside = self.neighbours.iter().map(|neighbours| Cell {
                        cache: *cache,
                        neighbours: *neighbours,
                        ..cell
                    });
                    cells.extend(beside);
                }
                // What is warm is so from clones, too.
                let images: &[Images] = match mode {
                    Mode::Warm => &[Images::Shared],
                    _ => &[Images::Shared, Images::Clones],
                };
                for images in images.iter().filter(|_| has(Part::Machines)) {
                    let many = self.machines.iter().map(|machines| Cell {
                        images: *images,
                        machines: *machines,
                        ..cell
                    });
                    cells.extend(many);
                }
            }
        }
        cells.sort_unstable();
        cells.dedup();
        cells
    }
}

fn main() -> ExitCode {
    end(&run(&Args::parse()))
}

fn run(args: &Args) -> anyhow::Result<()> {
    let places = args.lab.set_up()?;
    let machine = Machine::look();
    let cells = match args.rounds {
        0 => Vec::new(),
        _ => args.cells(),
    };
    let mut shuffle = Shuffle::from_clock();
    let mut samples: Vec<Sample> = Vec::new();
    for path in &args.with {
        samples.extend(earlier(path)?);
    }
    let site = match cells.is_empty() {
        true => None,
        false => {
            eprintln!("making the disk, and recording");
            Some(Site::open(&places)?)
        }
    };
    for round in 1..=args.rounds {
        for cell in shuffle.order(&cells) {
            let Some(site) = &site else {
                break;
            };
            let sample = site.sample(cell).with_context(|| cell.to_string())?;
            eprintln!(
                "round {round}: {cell}: {:.0} ms, {} reads",
                sample.ready_ms, sample.disk_reads
            );
            samples.push(sample);
            keep(args, &machine, &samples)?;
        }
    }
    print!("{}", figures::table(&samples));
    println!();
    for aim in figures::aims(&samples) {
        println!("{aim}");
    }
    args.figures
        .as_ref()
        .map_or(Ok(()), |dir| draw(&samples, dir))
}

/// Writes what was measured so far: a run of all cells takes long.
fn keep(args: &Args, machine: &Machine, samples: &[Sample]) -> anyhow::Result<()> {
    let Some(path) = &args.json else {
        return Ok(());
    };
    let aims = figures::aims(samples);
    Report::new(machine.clone(), caches::PROCEDURE, samples, aims).write(path)
}

/// Returns the samples of an earlier run.
fn earlier(path: &Path) -> anyhow::Result<Vec<Sample>> {
    let text = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let report: Value =
        serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_value(report["samples"].clone())
        .with_context(|| format!("{} is no report of this program", path.display()))
}

fn draw(samples: &[Sample], dir: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    for figure in figures::figures(samples) {
        let path = dir.join(figure.file);
        std::fs::write(&path, figure.svg).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(flags: &[&str]) -> Vec<Cell> {
        let program = ["bench-yolo"].into_iter();
        Args::parse_from(program.chain(flags.iter().copied())).cells()
    }

    #[test]
    fn the_whole_matrix_has_each_cell_once() {
        let all = cells(&[]);
        // Of each disk: four numbers of neighbours, from three modes with three uses of the page cache and a warm one;
        // sixteen machines from one base, and one and sixteen from clones, in three modes; and sixteen warm ones.
        assert_eq!(all.len(), 2 * (4 * (3 * 3 + 1) + 3 * 3 + 1));
        assert!(all.windows(2).all(|two| two[0] < two[1]));
        let warm = all.iter().filter(|cell| cell.mode == Mode::Warm);
        assert!(warm.clone().all(|cell| cell.cache == Cache::Writeback));
        assert_eq!(warm.count(), 2 * (4 + 1));
    }

    #[test]
    fn a_part_of_the_matrix_can_be_chosen() {
        let flags = "--only neighbours --disks hdd --caches none --neighbours 0,15";
        let few = cells(&flags.split(' ').collect::<Vec<_>>());
        assert_eq!(few.len(), 2 * 4);
        let flags = "--only machines --disks ssd --machines 16";
        let many = cells(&flags.split(' ').collect::<Vec<_>>());
        assert_eq!(many.len(), 3 * 2 + 1);
    }
}
