//! What a bench found: the file of `--measured`, which docs/report.md describes.
//!
//! A bench writes a list of samples, one for each timed boot. Here they become [`Comparison`]s: of
//! one image under one condition, how long its boot took in which way.

mod sample;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use sample::Sample;

/// All measurements of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    comparisons: Vec<Comparison>,
}

/// The boots of one image under one condition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// What booted, as the bench calls it.
    pub subject: String,
    /// The condition, such as `docker, disk at 150 IOPS and contended`.
    pub condition: String,
    /// The measurements, in the order of [`ServedFrom`].
    pub ways: Vec<WayReport>,
}

/// From where a boot was served.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum ServedFrom {
    /// The disk, with empty caches.
    NativeCold,
    /// A daemon's memory: each read is a request to it, as in YOLO.
    YoloStyle,
    /// The page cache, filled before the boot.
    Yolofs,
    /// The page cache, filled by a boot before: as fast as this machine goes.
    NativeWarm,
    /// A name that only the benchmark knows.
    Other(String),
}

/// The measurements of one way, one entry for each boot. Missing counts are left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WayReport {
    /// The way.
    pub way: ServedFrom,
    /// Milliseconds from the start to readiness.
    pub ready_ms: Vec<f64>,
    /// Milliseconds of preparation before the start.
    pub prepare_ms: Vec<f64>,
    /// Read requests that reached the disk.
    pub disk_reads: Vec<f64>,
    /// Read requests that reached a FUSE daemon.
    pub fuse_reads: Vec<f64>,
}

/// Why a file holds no measurements.
#[derive(Debug, thiserror::Error)]
pub enum MeasuredError {
    /// It is longer than any list of samples.
    #[error("it has {len} bytes, and measurements have at most {max}", max = Measured::FILE_MAX)]
    TooLong {
        /// Its length.
        len: u64,
    },
    /// It is not what a bench writes.
    #[error(
        "it is not what a bench writes (a list of samples is needed, each with mode and ready_ms)"
    )]
    Json(#[from] serde_json::Error),
    /// A sample's time is invalid.
    #[error("sample {number} says that a boot took {ready_ms} ms")]
    NoTime {
        /// The sample, from 1.
        number: usize,
        /// Its value.
        ready_ms: f64,
    },
}

#[derive(Deserialize)]
struct Document {
    samples: Vec<Sample>,
}

impl Measured {
    /// The longest file of measurements, in bytes: a hundred thousand samples
    /// with all fields.
    pub const FILE_MAX: u64 = 64 << 20;

    /// Reads what a bench wrote.
    ///
    /// # Errors
    /// If it is too long, no JSON, or has a sample without a way or a time.
    pub fn parse(text: &[u8]) -> Result<Self, MeasuredError> {
        let len = text.len() as u64;
        if len > Self::FILE_MAX {
            return Err(MeasuredError::TooLong { len });
        }
        let document: Document = serde_json::from_slice(text)?;
        let mut groups: BTreeMap<(String, String), BTreeMap<ServedFrom, WayReport>> =
            BTreeMap::new();
        for (index, sample) in document.samples.into_iter().enumerate() {
            if !sample.has_time() {
                return Err(MeasuredError::NoTime {
                    number: index + 1,
                    ready_ms: sample.ready_ms,
                });
            }
            let ways = groups.entry((sample.subject(), sample.condition()));
            let way = sample.way();
            let report = ways.or_default().entry(way.clone());
            sample.add_to(report.or_insert_with(|| WayReport::new(way)));
        }
        let comparisons = groups
            .into_iter()
            .map(|((subject, condition), ways)| Comparison {
                subject,
                condition,
                ways: ways.into_values().collect(),
            });
        Ok(Self {
            comparisons: comparisons.collect(),
        })
    }

    /// Removes and returns the measurements of an image, by any of its names. A benchmark may write `nginx`
    /// for `docker.io/library/nginx:1.25`.
    pub fn take(&mut self, names: &[&str]) -> Vec<Comparison> {
        let is_one = |subject: &str| names.iter().any(|name| is_called(name, subject));
        let (taken, left) = std::mem::take(&mut self.comparisons)
            .into_iter()
            .partition(|comparison| is_one(&comparison.subject));
        self.comparisons = left;
        taken
    }

    /// Returns the remaining measurements.
    #[must_use]
    pub fn into_rest(self) -> Vec<Comparison> {
        self.comparisons
    }
}

/// Returns whether an image's name, written out, can be what a bench calls `subject`: without its
/// registry, its repository's directories, its tag.
fn is_called(name: &str, subject: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    let bare = last.split([':', '@']).next().unwrap_or(last);
    !subject.is_empty() && [name, last, bare].contains(&subject)
}

impl WayReport {
    /// Returns the report of a way of which nothing was measured yet.
    #[must_use]
    pub const fn new(way: ServedFrom) -> Self {
        Self {
            way,
            ready_ms: Vec::new(),
            prepare_ms: Vec::new(),
            disk_reads: Vec::new(),
            fuse_reads: Vec::new(),
        }
    }

    /// Returns the median time to readiness in milliseconds.
    #[must_use]
    pub fn median_ms(&self) -> Option<f64> {
        median(&self.ready_ms)
    }
}

impl Comparison {
    /// Returns the measurements of a way.
    #[must_use]
    pub fn way(&self, way: &ServedFrom) -> Option<&WayReport> {
        self.ways.iter().find(|report| report.way == *way)
    }
}

/// Returns the middle of some numbers, or the mean of the two in the middle.
pub(crate) fn median(numbers: &[f64]) -> Option<f64> {
    let mut numbers = numbers.to_vec();
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    let upper = *numbers.get(middle)?;
    Some(match numbers.len() % 2 {
        0 => f64::midpoint(numbers[middle - 1], upper),
        _ => upper,
    })
}

impl From<String> for ServedFrom {
    fn from(name: String) -> Self {
        match name.as_str() {
            "native-cold" => Self::NativeCold,
            "yolo-style" => Self::YoloStyle,
            "yolofs" => Self::Yolofs,
            "native-warm" => Self::NativeWarm,
            _ => Self::Other(name),
        }
    }
}

impl From<ServedFrom> for String {
    fn from(way: ServedFrom) -> Self {
        match way {
            ServedFrom::NativeCold => "native-cold".to_owned(),
            ServedFrom::YoloStyle => "yolo-style".to_owned(),
            ServedFrom::Yolofs => "yolofs".to_owned(),
            ServedFrom::NativeWarm => "native-warm".to_owned(),
            ServedFrom::Other(name) => name,
        }
    }
}

impl ServedFrom {
    /// Returns its title.
    #[must_use]
    pub fn title(&self) -> &str {
        match self {
            Self::NativeCold => "native, cold",
            Self::YoloStyle => "YOLO-style",
            Self::Yolofs => "yolofs",
            Self::NativeWarm => "native, warm",
            Self::Other(name) => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOTS: &str = r#"{
        "machine": {"kernel": "6.1"}, "caches": "dropped", "aims": [],
        "samples": [
            {"subject": "container", "disk": {"contended": 150}, "mode": "native-cold", "round": 1,
             "ready_ms": 900.5, "prepare_ms": 0.0, "disk_reads": 210, "disk_bytes": 9,
             "guest_reads": null, "fuse_requests": null},
            {"subject": "container", "disk": {"contended": 150}, "mode": "yolofs", "round": 1,
             "ready_ms": 41, "prepare_ms": 30.0, "disk_reads": 0, "disk_bytes": 0,
             "guest_reads": null, "fuse_requests": {"lookup": 3}},
            {"subject": {"vm": "writeback"}, "disk": "idle", "mode": "native-warm", "round": 1,
             "ready_ms": 2000, "prepare_ms": 0, "disk_reads": 1}
        ]}"#;

    #[test]
    fn reads_what_bench_boot_writes() {
        let measured = Measured::parse(BOOTS.as_bytes()).unwrap();
        let [container, vm] = &measured.comparisons[..] else {
            panic!("{measured:?}");
        };
        assert_eq!(container.subject, "container");
        assert_eq!(container.condition, "disk at 150 IOPS and contended");
        let ways: Vec<_> = container.ways.iter().map(|way| way.way.title()).collect();
        assert_eq!(ways, ["native, cold", "yolofs"]);
        assert_eq!(container.ways[0].disk_reads, [210.0]);
        assert!(container.ways[0].fuse_reads.is_empty());
        // It was asked for names and for no content.
        assert_eq!(container.ways[1].fuse_reads, [0.0]);
        assert_eq!(
            (&*vm.subject, &*vm.condition),
            ("vm writeback", "disk idle")
        );
    }

    #[test]
    fn an_image_finds_its_own_measurements() {
        let text = r#"{"samples": [
            {"image": "nginx", "engine": "docker", "mode": "yolofs", "ready_ms": 1, "fuse_reads": 4},
            {"image": "node", "engine": "docker", "mode": "yolofs", "ready_ms": 2}]}"#;
        let mut measured = Measured::parse(text.as_bytes()).unwrap();
        assert!(measured.take(&["docker.io/library/nginxx:1"]).is_empty());
        let taken = measured.take(&["other", "docker.io/library/nginx:1.25"]);
        assert_eq!(taken.len(), 1);
        assert_eq!(taken[0].condition, "docker");
        assert_eq!(taken[0].ways[0].fuse_reads, [4.0]);
        assert_eq!(measured.into_rest()[0].subject, "node");
    }

    #[test]
    fn what_is_no_measurement_is_refused() {
        for text in ["", "{}", "[]", r#"{"samples": [{"mode": "x"}]}"#] {
            let error = Measured::parse(text.as_bytes()).unwrap_err();
            assert!(matches!(error, MeasuredError::Json(_)), "{text}: {error}");
        }
        let text = r#"{"samples": [{"mode": "x", "ready_ms": -1}]}"#;
        let error = Measured::parse(text.as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "sample 1 says that a boot took -1 ms");
        let long = vec![b' '; usize::try_from(Measured::FILE_MAX).unwrap() + 1];
        assert!(matches!(
            Measured::parse(&long),
            Err(MeasuredError::TooLong { .. })
        ));
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
    }
}
