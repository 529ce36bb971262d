//! One timed boot, as benches write it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::{ServedFrom, WayReport};

/// A sample. Other fields are ignored; missing ones are left out.
#[derive(Debug, Deserialize)]
pub(super) struct Sample {
    /// What booted, if it is a container image.
    image: Option<Value>,
    /// What booted, if it is something else.
    subject: Option<Value>,
    /// The engine that started it.
    engine: Option<Value>,
    /// What the disk did meanwhile.
    disk: Option<Value>,
    /// From where the boot was served.
    mode: Value,
    /// Milliseconds until it was ready.
    pub(super) ready_ms: f64,
    prepare_ms: Option<f64>,
    disk_reads: Option<u64>,
    /// Requests to the daemon, by kind.
    fuse_requests: Option<BTreeMap<String, u64>>,
    /// Of these, those for content, if the bench counts no other.
    fuse_reads: Option<u64>,
}

impl Sample {
    pub(super) fn has_time(&self) -> bool {
        self.ready_ms.is_finite() && self.ready_ms >= 0.0
    }

    pub(super) fn subject(&self) -> String {
        let subject = self.image.as_ref().or(self.subject.as_ref());
        subject.map_or_else(String::new, words)
    }

    pub(super) fn condition(&self) -> String {
        let engine = self.engine.as_ref().map(words);
        let disk = self.disk.as_ref().map(disk_words);
        let said = engine
            .into_iter()
            .chain(disk)
            .filter(|text| !text.is_empty());
        said.collect::<Vec<_>>().join(", ")
    }

    pub(super) fn way(&self) -> ServedFrom {
        ServedFrom::from(words(&self.mode))
    }

    pub(super) fn add_to(&self, report: &mut WayReport) {
        report.ready_ms.push(self.ready_ms);
        report.prepare_ms.extend(self.prepare_ms);
        report.disk_reads.extend(self.disk_reads.map(number));
        let by_kind = self.fuse_requests.as_ref();
        let reads = by_kind.map(|kinds| kinds.get("read").copied().unwrap_or(0));
        report
            .fuse_reads
            .extend(self.fuse_reads.or(reads).map(number));
    }
}

/// Returns the state of a disk as people say it.
fn disk_words(disk: &Value) -> String {
    let iops = |key: &str| disk.get(key).and_then(Value::as_u64);
    if let Some(iops) = iops("slow") {
        format!("disk at {iops} IOPS")
    } else if let Some(iops) = iops("contended") {
        format!("disk at {iops} IOPS and contended")
    } else if disk == "idle" {
        "disk idle".to_owned()
    } else {
        words(disk)
    }
}

/// Returns a value as words: benches write the variants of their types as names, or as a name with
/// a value. What is nested deeper is no name.
fn words(value: &Value) -> String {
    let word = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => String::new(),
    };
    match value {
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| format!("{name} {}", word(value)));
            let text = fields.collect::<Vec<_>>().join(", ");
            text.trim_end().to_owned()
        }
        value => word(value),
    }
}

/// A count as a number to take medians of; counts here are far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn number(count: u64) -> f64 {
    count as f64
}
