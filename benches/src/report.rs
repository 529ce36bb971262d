//! What a run says: a table for people, and everything for machines.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

use crate::aim::Aim;
use crate::boots::{Disk, Mode, Sample, Subject};
use crate::machine::Machine;
use crate::micro::Series;
use crate::rounds::median;

/// Everything that is known of a run.
#[derive(Debug, Serialize)]
pub struct Report<S> {
    /// Where it was taken, and of which sources.
    pub machine: Machine,
    /// What "cold" means.
    pub caches: &'static str,
    /// What was measured, sample by sample.
    pub samples: S,
    /// What was measured beside them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Series>,
    /// What was asked for, and what was measured of it.
    pub aims: Vec<Aim>,
}

impl<S: Serialize> Report<S> {
    /// Makes a report of what was measured on this machine.
    #[must_use]
    pub fn new(machine: Machine, caches: &'static str, samples: S, aims: Vec<Aim>) -> Self {
        Self {
            machine,
            caches,
            samples,
            series: Vec::new(),
            aims,
        }
    }

    /// Adds what was measured beside the samples.
    #[must_use]
    pub fn with_series(self, series: Vec<Series>) -> Self {
        Self { series, ..self }
    }

    /// Writes it as JSON.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self).context("encoding the report")?;
        fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
    }
}

/// Returns a table for each subject and condition, with medians and their ratio to native warm.
#[must_use]
pub fn tables(samples: &[Sample]) -> String {
    let groups: BTreeSet<_> = samples
        .iter()
        .map(|sample| (sample.subject, sample.disk))
        .collect();
    groups
        .into_iter()
        .map(|group| table(samples, group))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The columns after the mode, and their widths.
const COLUMNS: [(&str, usize); 7] = [
    ("median", 10),
    ("range", 14),
    ("x warm", 8),
    ("disk reads", 11),
    ("requests", 9),
    ("READ", 6),
    ("prepared in", 12),
];

fn table(samples: &[Sample], (subject, disk): (Subject, Disk)) -> String {
    let of = |mode| select(samples, subject, disk, mode);
    let warm = ready(&of(Mode::NativeWarm));
    let rows = Mode::ALL
        .into_iter()
        .filter_map(|mode| Some((mode, row(&of(mode), warm)?)));
    let heads = COLUMNS.map(|(head, _)| head.to_owned());
    let mut text = format!("{subject}, {disk}\n{}", line("", &heads));
    for (mode, cells) in rows {
        text.push_str(&line(&mode.to_string(), &cells));
    }
    text
}

/// One mode's cells, if it was measured.
fn row(samples: &[&Sample], warm: Option<f64>) -> Option<[String; 7]> {
    let middle = ready(samples)?;
    let low = samples
        .iter()
        .map(|sample| sample.ready_ms)
        .fold(f64::INFINITY, f64::min);
    let high = samples
        .iter()
        .map(|sample| sample.ready_ms)
        .fold(0.0, f64::max);
    let whole = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.0}"));
    let prepared = median_of(samples, |sample| {
        sample.fuse_requests.as_ref().map(|_| sample.prepare_ms)
    });
    Some([
        format!("{middle:.1} ms"),
        format!("{low:.0}-{high:.0}"),
        warm.map_or("-".to_owned(), |warm| format!("{:.2}", middle / warm)),
        whole(median_of(samples, |sample| Some(count(sample.disk_reads)))),
        whole(median_of(samples, |sample| {
            fuse_requests(sample).map(count)
        })),
        whole(median_of(samples, |sample| fuse_reads(sample).map(count))),
        prepared.map_or("-".to_owned(), |ms| format!("{ms:.0} ms")),
    ])
}

fn line(name: &str, cells: &[String; 7]) -> String {
    let mut line = format!("  {name:12}");
    for (cell, (_, width)) in cells.iter().zip(COLUMNS) {
        line.push_str(&format!(" {cell:>width$}"));
    }
    line.push('\n');
    line
}

/// Returns the samples of one mode under one condition.
#[must_use]
pub fn select(samples: &[Sample], subject: Subject, disk: Disk, mode: Mode) -> Vec<&Sample> {
    let wanted =
        |sample: &&Sample| (sample.subject, sample.disk, sample.mode) == (subject, disk, mode);
    samples.iter().filter(wanted).collect()
}

/// Returns the median time to ready in milliseconds, or nothing without samples.
#[must_use]
pub fn ready(samples: &[&Sample]) -> Option<f64> {
    median_of(samples, |sample| Some(sample.ready_ms))
}

/// Returns the median of what `value` gives of each sample.
#[must_use]
pub fn median_of(samples: &[&Sample], value: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
    median(
        &samples
            .iter()
            .filter_map(|sample| value(sample))
            .collect::<Vec<_>>(),
    )
}

/// Returns the READ requests to the daemon during a boot, if there was one.
#[must_use]
pub fn fuse_reads(sample: &Sample) -> Option<u64> {
    Some(
        sample
            .fuse_requests
            .as_ref()?
            .get("read")
            .copied()
            .unwrap_or(0),
    )
}

fn fuse_requests(sample: &Sample) -> Option<u64> {
    Some(sample.fuse_requests.as_ref()?.values().sum())
}

/// A count as a number to take medians of; counts here are far below 2^53.
#[must_use]
pub fn count(value: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let value = value as f64;
    value
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn sample(mode: Mode, ready_ms: f64, reads: Option<u64>) -> Sample {
        Sample {
            subject: Subject::Container,
            disk: Disk::Idle,
            mode,
            round: 1,
            ready_ms,
            prepare_ms: 7.0,
            disk_reads: 3,
            disk_bytes: 4096,
            guest_reads: None,
            fuse_requests: reads.map(|reads| {
                BTreeMap::from([("read".to_owned(), reads), ("lookup".to_owned(), 2)])
            }),
        }
    }

    #[test]
    fn a_table_has_medians_ratios_and_counts() {
        let samples = [
            sample(Mode::NativeWarm, 40.0, None),
            sample(Mode::Yolofs, 50.0, Some(0)),
            sample(Mode::Yolofs, 30.0, Some(9)),
            sample(Mode::Yolofs, 44.0, Some(0)),
        ];
        let text = tables(&samples);
        assert!(text.starts_with("container, disk idle\n"), "{text}");
        let ours = text.lines().find(|line| line.contains("yolofs")).unwrap();
        let words: Vec<_> = ours.split_whitespace().collect();
        assert_eq!(
            words,
            [
                "yolofs", "44.0", "ms", "30-50", "1.10", "3", "2", "0", "7", "ms"
            ]
        );
        assert!(!text.contains("native cold"), "{text}");
    }

    #[test]
    fn a_report_is_json_with_all_samples() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let samples = [sample(Mode::Yolofs, 1.0, Some(4))];
        Report::new(Machine::look(), "dropped", &samples[..], Vec::new())
            .write(file.path())
            .unwrap();
        let text = fs::read_to_string(file.path()).unwrap();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["samples"][0]["mode"], "yolofs");
        assert_eq!(report["samples"][0]["fuse_requests"]["read"], 4);
        assert!(
            report["machine"]["kernel"]
                .as_str()
                .is_some_and(|kernel| !kernel.is_empty())
        );
    }
}
