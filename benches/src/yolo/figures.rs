//! What was measured as tables, figures and aims.

use std::collections::BTreeSet;

use super::{Cache, Cell, Disk, Images, Mode, Sample};
use crate::aim::Aim;
use crate::chart::{COLOURS, Chart, Line, Panel, Scale};
use crate::report::count;
use crate::rounds::median;

/// A figure, with the name of its file.
#[derive(Debug)]
pub struct Figure {
    /// The file, without a directory.
    pub file: &'static str,
    /// Its text.
    pub svg: String,
}

const DISKS: [Disk; 2] = [Disk::Hdd, Disk::Ssd];

/// The neighbours that the aims are for, and the machines.
const MANY_NEIGHBOURS: u32 = 15;
const MANY_MACHINES: usize = 16;

/// What of a sample is looked at.
type Value = fn(&Sample) -> f64;

fn ready(sample: &Sample) -> f64 {
    sample.ready_ms
}

fn waited(sample: &Sample) -> f64 {
    sample.read_ms
}

fn requests(sample: &Sample) -> f64 {
    count(sample.disk_reads)
}

fn bytes(sample: &Sample) -> f64 {
    count(sample.disk_bytes)
}

/// Returns the median of a value over the samples of cells like this.
fn of(samples: &[Sample], wanted: impl Fn(&Cell) -> bool, value: Value) -> Option<f64> {
    let values = samples.iter().filter(|sample| wanted(&sample.cell));
    median(&values.map(value).collect::<Vec<_>>())
}

/// Returns a row for each cell, with medians over its rounds.
#[must_use]
pub fn table(samples: &[Sample]) -> String {
    let mut text = String::from(
        "| disk | cache | machines | neighbours | mode | ready, ms | waited for reads, ms | disk reads | MiB |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    let cells: BTreeSet<Cell> = samples.iter().map(|sample| sample.cell).collect();
    for cell in cells {
        let median = |value| of(samples, |other| *other == cell, value).unwrap_or(f64::NAN);
        text.push_str(&format!(
            "| {} | {} | {} of {} | {} | {} | {:.0} | {:.0} | {:.0} | {:.1} |\n",
            cell.disk,
            cell.cache.as_str(),
            cell.machines,
            cell.images,
            cell.neighbours,
            cell.mode,
            median(ready),
            median(waited),
            median(requests),
            median(bytes) / f64::from(1 << 20),
        ));
    }
    text
}

/// Returns the figures of the paper that there are samples for: 2 (what is read), 5 (many machines) and 6 (neighbours).
#[must_use]
pub fn figures(samples: &[Sample]) -> Vec<Figure> {
    let many: Vec<Sample> = samples
        .iter()
        .filter(|sample| sample.cell.neighbours == 0 && sample.cell.cache == Cache::Writeback)
        .copied()
        .collect();
    let beside: Vec<Sample> = samples
        .iter()
        .filter(|sample| sample.cell.machines == 1 && sample.cell.images == Images::Shared)
        .copied()
        .collect();
    let mut figures = Vec::new();
    if many.iter().any(|sample| sample.cell.machines > 1) {
        figures.push(machines(&many, "yolo-2-bytes.svg", "MiB", |sample| {
            bytes(sample) / f64::from(1 << 20)
        }));
        figures.push(machines(&many, "yolo-5-machines.svg", "s", |sample| {
            sample.ready_ms / 1e3
        }));
    }
    if beside.iter().any(|sample| sample.cell.neighbours > 0) {
        let value: [(&str, Value); 2] = [
            ("yolo-6-neighbours.svg", |sample| sample.ready_ms / 1e3),
            ("yolo-6-waiting.svg", |sample| sample.read_ms / 1e3),
        ];
        figures.extend(value.map(|(file, value)| neighbours(&beside, file, value)));
    }
    figures
}

/// Draws a value over the number of machines, for each disk.
fn machines(samples: &[Sample], file: &'static str, unit: &'static str, value: Value) -> Figure {
    let numbers: BTreeSet<usize> = samples.iter().map(|sample| sample.cell.machines).collect();
    let lines: BTreeSet<_> = samples
        .iter()
        .map(|sample| (sample.cell.mode, sample.cell.images))
        .collect();
    let panel = |disk: Disk| Panel {
        title: disk.to_string(),
        marks: numbers.iter().map(ToString::to_string).collect(),
        lines: lines
            .iter()
            .zip(COLOURS.into_iter().cycle())
            .map(|((mode, images), colour)| Line {
                name: format!("{mode}, {images}"),
                colour,
                is_reference: *mode == Mode::Warm,
                heights: numbers
                    .iter()
                    .map(|number| {
                        let like = Cell {
                            disk,
                            cache: Cache::Writeback,
                            images: *images,
                            machines: *number,
                            neighbours: 0,
                            mode: *mode,
                        };
                        of(samples, |cell| *cell == like, value)
                    })
                    .collect(),
            })
            .collect(),
    };
    let measured: BTreeSet<Disk> = samples.iter().map(|sample| sample.cell.disk).collect();
    draw(file, unit, measured.into_iter().map(panel).collect())
}

/// Draws a value over the number of neighbours, for each disk and use of the page cache.
fn neighbours(samples: &[Sample], file: &'static str, value: Value) -> Figure {
    let numbers: BTreeSet<u32> = samples
        .iter()
        .map(|sample| sample.cell.neighbours)
        .collect();
    let cold = samples
        .iter()
        .filter(|sample| sample.cell.mode != Mode::Warm);
    let caches: BTreeSet<Cache> = cold.map(|sample| sample.cell.cache).collect();
    let measured: BTreeSet<Disk> = samples.iter().map(|sample| sample.cell.disk).collect();
    let modes = [Mode::Native, Mode::Yolofs, Mode::Pinned, Mode::Warm];
    let panel = |disk: Disk, cache: Cache| Panel {
        title: format!("{disk}, {}", cache.as_str()),
        marks: numbers.iter().map(ToString::to_string).collect(),
        lines: modes
            .into_iter()
            .zip(COLOURS)
            .map(|(mode, colour)| Line {
                name: mode.to_string(),
                colour,
                is_reference: mode == Mode::Warm,
                heights: numbers
                    .iter()
                    .map(|number| {
                        // Warm machines read through the page cache, whatever the others do.
                        let cache = match mode {
                            Mode::Warm => Cache::Writeback,
                            _ => cache,
                        };
                        let like = Cell {
                            disk,
                            cache,
                            images: Images::Shared,
                            machines: 1,
                            neighbours: *number,
                            mode,
                        };
                        of(samples, |cell| *cell == like, value)
                    })
                    .collect(),
            })
            .collect(),
    };
    let panels = measured
        .iter()
        .flat_map(|disk| caches.iter().map(|cache| panel(*disk, *cache)));
    draw(file, "s", panels.collect())
}

fn draw(file: &'static str, unit: &'static str, panels: Vec<Panel>) -> Figure {
    let scale = Scale::linear_for(&panels);
    let chart = Chart {
        scale,
        unit,
        panels,
    };
    Figure {
        file,
        svg: chart.svg(),
    }
}

/// Returns what was aimed at, beside what was measured.
#[must_use]
pub fn aims(samples: &[Sample]) -> Vec<Aim> {
    let mut aims = Vec::new();
    for disk in DISKS {
        let cell = |mode: Mode| {
            move |cell: &Cell| {
                let beside = (cell.machines, cell.neighbours) == (1, MANY_NEIGHBOURS);
                beside && cell.disk == disk && cell.mode == mode
            }
        };
        let ratio = |a: Mode, b: Mode, value: Value| {
            let (a, b) = (of(samples, cell(a), value)?, of(samples, cell(b), value)?);
            Some(a / b.max(f64::MIN_POSITIVE))
        };
        let factor = match disk {
            Disk::Hdd => 13.0,
            Disk::Ssd => 4.0,
        };
        let what = format!("{disk}, 1 machine, {MANY_NEIGHBOURS} neighbours");
        for mode in [Mode::Yolofs, Mode::Pinned] {
            let name = format!("{what}, {mode}");
            let warm = ratio(mode, Mode::Warm, ready);
            aims.push(Aim::at_most(
                1.05,
                format!("{name}: ready to native warm"),
                warm,
            ));
            let faster = ratio(Mode::Native, mode, waited);
            let what = format!("{name}: times less waiting for reads than native");
            aims.push(Aim::at_least(factor, what, faster));
            let reads = ratio(mode, Mode::Native, requests);
            aims.push(Aim::at_most(
                0.01,
                format!("{name}: disk reads to native"),
                reads,
            ));
        }
        for images in [Images::Shared, Images::Clones] {
            aims.extend(aims_of_many(samples, disk, images));
        }
    }
    aims
}

fn aims_of_many(samples: &[Sample], disk: Disk, images: Images) -> [Aim; 2] {
    let at = |machines: usize, mode: Mode, value: Value| {
        let like = move |cell: &Cell| {
            let same = (cell.machines, cell.mode, cell.disk) == (machines, mode, disk);
            let from = cell.images == images || mode == Mode::Warm;
            same && from && cell.neighbours == 0 && cell.cache == Cache::Writeback
        };
        of(samples, like, value)
    };
    let ready_to_warm = at(MANY_MACHINES, Mode::Pinned, ready)
        .zip(at(MANY_MACHINES, Mode::Warm, ready))
        .map(|(ours, warm)| ours / warm);
    let native = at(1, Mode::Native, bytes);
    let read = at(MANY_MACHINES, Mode::Pinned, bytes)
        .zip(native)
        .map(|(ours, native)| ours / native);
    let what = format!("{disk}, {MANY_MACHINES} of {images}");
    [
        Aim::at_most(1.1, format!("{what}: ready to native warm"), ready_to_warm),
        Aim::at_most(
            0.05,
            format!("{what}: bytes of the disk while they boot, to one native boot"),
            read,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(mode: Mode, neighbours: u32, machines: usize, ms: f64, reads: u64) -> Sample {
        Sample {
            cell: Cell {
                disk: Disk::Hdd,
                cache: Cache::Writeback,
                images: Images::Shared,
                machines,
                neighbours,
                mode,
            },
            ready_ms: ms,
            read_ms: ms / 2.0,
            guest_reads: 100,
            disk_reads: reads,
            disk_bytes: reads * 4096,
            prepare_ms: 1.0,
        }
    }

    #[test]
    fn aims_compare_what_belongs_together() {
        let samples = [
            sample(Mode::Native, 15, 1, 40_000.0, 500),
            sample(Mode::Pinned, 15, 1, 2_000.0, 0),
            sample(Mode::Warm, 15, 1, 2_000.0, 0),
            sample(Mode::Native, 0, 1, 4_000.0, 500),
            sample(Mode::Pinned, 0, 16, 9_000.0, 500),
            sample(Mode::Warm, 0, 16, 9_000.0, 0),
        ];
        let aims = aims(&samples);
        let reached = aims.iter().filter(|aim| aim.reached() == Some(true));
        assert_eq!(reached.count(), 4, "{aims:?}");
        let missed: Vec<_> = aims
            .iter()
            .filter(|aim| aim.reached() == Some(false))
            .collect();
        assert_eq!(missed.len(), 1, "{missed:?}");
        assert!(missed[0].what.contains("16 of one base: bytes"));
        let drawn = figures(&samples);
        assert_eq!(drawn.len(), 4);
        // Of disks that were not measured there is no empty panel.
        assert!(drawn.iter().all(|figure| !figure.svg.contains("SSD-like")));
        assert_eq!(table(&samples).lines().count(), 2 + samples.len());
    }
}
