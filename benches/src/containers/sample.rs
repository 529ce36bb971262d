//! What is known of one timed start, and the ways in which it can go.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::boots::Disk;
use crate::report::count;
use crate::rounds::median;

/// From where a container's layers are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The disk, with empty caches: overlay2 as it is.
    NativeCold,
    /// The disk, with empty caches, while the boot is being recorded.
    Recording,
    /// The page cache, into which the layers' boot images were pushed before.
    Yolofs,
    /// The page cache, filled by a start before: as fast as this machine goes.
    NativeWarm,
}

impl Way {
    /// What is compared for each image, in the order of a table.
    pub const COMPARED: [Self; 3] = [Self::NativeCold, Self::Yolofs, Self::NativeWarm];
    /// All of them, in the order of a table.
    pub const ALL: [Self; 4] = [
        Self::NativeCold,
        Self::Recording,
        Self::Yolofs,
        Self::NativeWarm,
    ];
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NativeCold => "native cold",
            Self::Recording => "recording",
            Self::Yolofs => "yolofs",
            Self::NativeWarm => "native warm",
        })
    }
}

/// One timed start, of one container or of several at once.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// What was started.
    pub subject: String,
    /// Who started it.
    pub engine: &'static str,
    /// What the disk did meanwhile.
    pub disk: Disk,
    /// From where it was served.
    pub mode: Way,
    /// Which round it was part of, from 1.
    pub round: u32,
    /// Milliseconds from the start of `docker run` until the program, or the last of them, answered.
    pub ready_ms: f64,
    /// Of these, the program's: from its first instruction until it answered. It is the part in
    /// which an image is read. Not known of several at once.
    pub program_ms: Option<f64>,
    /// Milliseconds of mounting and prewarming before, off the critical path.
    pub prepare_ms: f64,
    /// Read requests that reached the disk meanwhile; without the neighbour's, give or take those
    /// that it has in flight.
    pub disk_reads: u64,
    /// Bytes they asked for.
    pub disk_bytes: u64,
    /// Write requests that reached the disk meanwhile.
    pub disk_writes: u64,
    /// Requests to the daemon by kind, where there is one.
    pub fuse_requests: Option<BTreeMap<String, u64>>,
}

impl Sample {
    /// Returns the READ requests to the daemon, if there was one.
    #[must_use]
    pub fn fuse_reads(&self) -> Option<u64> {
        let requests = self.fuse_requests.as_ref()?;
        Some(requests.get("read").copied().unwrap_or(0))
    }
}

/// The samples of one subject on one disk.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    /// What was started.
    pub subject: &'a str,
    /// What the disk did meanwhile.
    pub disk: Disk,
    samples: Vec<&'a Sample>,
}

impl<'a> Group<'a> {
    /// Sorts samples into groups, in the order in which they came.
    #[must_use]
    pub fn all(samples: &'a [Sample]) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for sample in samples {
            let same =
                |group: &&mut Self| group.subject == sample.subject && group.disk == sample.disk;
            match groups.iter_mut().find(same) {
                Some(group) => group.samples.push(sample),
                None => groups.push(Self {
                    subject: &sample.subject,
                    disk: sample.disk,
                    samples: vec![sample],
                }),
            }
        }
        groups
    }

    /// Returns what `value` gives of each sample of a way.
    pub fn values(&self, way: Way, value: impl Fn(&Sample) -> Option<f64>) -> Vec<f64> {
        let of_way = self.samples.iter().filter(|sample| sample.mode == way);
        of_way.filter_map(|sample| value(sample)).collect()
    }

    /// Returns the median of a value over the samples of a way, or nothing if there are none.
    pub fn median(&self, way: Way, value: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        median(&self.values(way, value))
    }

    /// Returns the median time to ready of a way in milliseconds.
    #[must_use]
    pub fn ready(&self, way: Way) -> Option<f64> {
        self.median(way, |sample| Some(sample.ready_ms))
    }

    /// Returns the median of the program's part of a way in milliseconds.
    #[must_use]
    pub fn program(&self, way: Way) -> Option<f64> {
        self.median(way, |sample| sample.program_ms)
    }

    /// Returns the group as a table, with medians and their ratios to native warm.
    #[must_use]
    pub fn table(&self) -> String {
        let heads = COLUMNS.map(|(head, _)| head.to_owned());
        let mut text = format!("{}, {}\n{}", self.subject, self.disk, line("", &heads));
        for way in Way::ALL {
            if let Some(cells) = self.row(way) {
                text.push_str(&line(&way.to_string(), &cells));
            }
        }
        text
    }

    fn row(&self, way: Way) -> Option<[String; COLUMNS.len()]> {
        let ready = self.ready(way)?;
        let all = self.values(way, |sample| Some(sample.ready_ms));
        let low = all.iter().copied().fold(f64::INFINITY, f64::min);
        let high = all.iter().copied().fold(0.0, f64::max);
        let ratio =
            |ours: Option<f64>, warm: Option<f64>| ours.zip(warm).map(|(ours, warm)| ours / warm);
        let of = |value: fn(&Sample) -> Option<f64>| whole(self.median(way, value), "");
        let program = self.program(way);
        Some([
            whole(Some(ready), " ms"),
            format!("{low:.0}-{high:.0}"),
            hundredths(ratio(Some(ready), self.ready(Way::NativeWarm))),
            whole(program, " ms"),
            hundredths(ratio(program, self.program(Way::NativeWarm))),
            of(|sample| Some(count(sample.disk_reads))),
            of(|sample| Some(count(sample.disk_writes))),
            of(|sample| Some(count(sample.fuse_requests.as_ref()?.values().sum()))),
            of(|sample| sample.fuse_reads().map(count)),
            whole(
                self.median(way, |sample| {
                    sample.fuse_requests.as_ref().map(|_| sample.prepare_ms)
                }),
                " ms",
            ),
        ])
    }
}

/// The columns after the way, and their widths.
const COLUMNS: [(&str, usize); 10] = [
    ("median", 9),
    ("range", 12),
    ("x warm", 7),
    ("program", 9),
    ("x warm", 7),
    ("reads", 6),
    ("writes", 7),
    ("requests", 9),
    ("READ", 5),
    ("prepared in", 12),
];

fn whole(value: Option<f64>, unit: &str) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.0}{unit}"))
}

fn hundredths(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.2}"))
}

fn line(name: &str, cells: &[String; COLUMNS.len()]) -> String {
    let mut line = format!("  {name:12}");
    for (cell, (_, width)) in cells.iter().zip(COLUMNS) {
        line.push_str(&format!(" {cell:>width$}"));
    }
    line.push('\n');
    line
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample(subject: &str, mode: Way, ready_ms: f64, program_ms: f64) -> Sample {
        Sample {
            subject: subject.to_owned(),
            engine: "docker",
            disk: Disk::Contended(150),
            mode,
            round: 1,
            ready_ms,
            program_ms: Some(program_ms),
            prepare_ms: 8.0,
            disk_reads: 3,
            disk_bytes: 4096,
            disk_writes: 100,
            fuse_requests: (mode == Way::Yolofs).then(|| [("lookup".to_owned(), 2)].into()),
        }
    }

    #[test]
    fn a_table_has_medians_ratios_and_counts() {
        let samples = [
            sample("nginx", Way::NativeWarm, 400.0, 100.0),
            sample("redis", Way::NativeWarm, 1.0, 1.0),
            sample("nginx", Way::Yolofs, 500.0, 90.0),
            sample("nginx", Way::Yolofs, 440.0, 110.0),
            sample("nginx", Way::Yolofs, 410.0, 105.0),
        ];
        let groups = Group::all(&samples);
        assert_eq!(groups.len(), 2);
        let text = groups[0].table();
        assert!(
            text.starts_with("nginx, disk at 150 IOPS and contended\n"),
            "{text}"
        );
        let ours = text.lines().find(|line| line.contains("yolofs")).unwrap();
        let words: Vec<_> = ours.split_whitespace().collect();
        let expected = [
            "yolofs", "440", "ms", "410-500", "1.10", "105", "ms", "1.05", "3", "100", "2", "0",
            "8", "ms",
        ];
        assert_eq!(words, expected);
        assert!(!text.contains("native cold"), "{text}");
    }
}
