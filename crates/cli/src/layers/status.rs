//! What `status` shows of a layer.

use std::collections::BTreeMap;
use std::path::PathBuf;

use blocks::Digest;
use serde::{Deserialize, Serialize};

use super::served::Served;
use crate::output::{count, percent, table};
use crate::size::Size;
use crate::status::{BootStatus, ServedStatus};

/// How many changed files are named; the others are counted.
const CHANGED_NAMED: usize = 8;

/// A layer at one moment. Counts are since it was attached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LayerStatus {
    /// Its diff ID.
    pub(crate) layer: Digest,
    /// Where it is served.
    pub(crate) target: PathBuf,
    /// `serving`, or `leaving` if it was detached and somebody still uses it.
    pub(crate) state: String,
    /// Its boot image.
    pub(crate) boot: BootStatus,
    /// Files that somebody changed in the layer since the recording, some of them.
    pub(crate) changed: Vec<String>,
    /// Names in the layer that the recording does not know.
    pub(crate) names_added: u64,
    /// Names that the recording knows and the layer no longer has.
    pub(crate) names_removed: u64,
    /// What it was asked and what it answered.
    pub(crate) served: ServedStatus,
}

impl Served {
    /// Returns its status, as that of a layer in this state.
    pub(super) fn status(&self, state: &str) -> LayerStatus {
        let report = self.image.report();
        let changed = report.dropped.iter().take(CHANGED_NAMED);
        let changed = changed.map(|file| {
            let path = String::from_utf8_lossy(&file.path);
            format!("{path}: {}", file.reason)
        });
        LayerStatus {
            layer: *self.layer(),
            target: self.place.target.clone(),
            state: state.to_owned(),
            boot: self.boot_status(),
            changed: changed.collect(),
            names_added: report.names_added,
            names_removed: report.names_removed,
            served: self.served_status(),
        }
    }

    fn boot_status(&self) -> BootStatus {
        let (report, counts) = (self.image.report(), self.image.counts());
        let counters = self.mount.counters();
        let content = self.image.image().info().id;
        BootStatus {
            image: bootimg::layer_name(self.layer()),
            content: content.to_string(),
            blocks: self.image.plan().block_count(),
            stale_blocks: report.blocks_dropped,
            stale_files: report.dropped.len() as u64,
            damaged: counts.damaged_reads + counts.failed_reads,
            injected_pages: counters.injected_pages,
            evicted_pages: counters.evicted_pages,
            prewarm: self.prewarm_state().to_owned(),
        }
    }

    fn served_status(&self) -> ServedStatus {
        let (counters, cached) = (self.mount.counters(), self.source.counts());
        let boot_bytes = self.image.plan().block_count().saturating_mul(4096);
        let divergence = cached.fallthrough_bytes.saturating_mul(1000);
        let times = self.source.source().timekeeping();
        let requests = counters.by_kind().filter(|(_, count)| *count > 0);
        let requests: BTreeMap<String, u64> = requests
            .map(|(kind, count)| (kind.name().to_owned(), count))
            .collect();
        ServedStatus {
            hits: cached.hits,
            misses: cached.misses,
            hit_bytes: cached.hit_bytes,
            fallthrough_bytes: cached.fallthrough_bytes,
            divergence_permille: divergence.checked_div(boot_bytes).unwrap_or(0),
            diverted_files: counters.diverted_files,
            late_answers: times.late,
            hung_threads: times.hung as u64,
            requests,
        }
    }
}

/// Writes the status of layers for people, a line each.
#[must_use]
pub(crate) fn layers_text(layers: &[LayerStatus]) -> String {
    let head = ["LAYER", "STATE", "BOOT IMAGE", "INJECTED", "FROM SOURCE"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for layer in layers {
        let served = &layer.served;
        let all = served.hit_bytes + served.fallthrough_bytes;
        let injected = Size(layer.boot.injected_pages.saturating_mul(4096));
        rows.push(vec![
            layer.layer.short(),
            layer.state.clone(),
            Size(layer.boot.blocks.saturating_mul(4096)).to_string(),
            format!("{injected} ({})", layer.boot.prewarm),
            format!(
                "{} ({})",
                Size(served.fallthrough_bytes),
                percent(served.fallthrough_bytes, all)
            ),
        ]);
    }
    let mut text = table(&rows);
    for layer in layers {
        text.push_str(&changes_text(layer));
    }
    text
}

/// Says what somebody changed in a layer, which nobody should.
fn changes_text(layer: &LayerStatus) -> String {
    let (files, while_served) = (layer.boot.stale_files, layer.served.diverted_files);
    if files + while_served == 0 {
        return String::new();
    }
    let mut text = format!(
        "layer {} was changed: {} since the recording, {} while served; these are read from {}\n",
        layer.layer.short(),
        count(files, "file"),
        while_served,
        layer.target.display()
    );
    for changed in &layer.changed {
        text.push_str(&format!("  {changed}\n"));
    }
    text
}
